"""OpenAI's Realtime protocol, transcription sessions."""
