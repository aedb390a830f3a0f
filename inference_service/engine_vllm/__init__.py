"""A second engine, for chats and token streams: vLLM computes, in processes of its own."""
