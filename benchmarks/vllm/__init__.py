"""Comparison with vLLM in chats and token streams on the same machine."""
