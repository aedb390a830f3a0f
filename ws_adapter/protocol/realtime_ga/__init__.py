"""OpenAI's Realtime protocol, conversations in turns."""
