"""The state of a session of OpenAI's Realtime as plain data, with which another adapter goes on."""
