"""The kinds of sessions: full duplex, chat, transcription, token stream."""
