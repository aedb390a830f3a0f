"""A second engine, for chats, token streams and transcription: vLLM computes, in processes of its own."""
