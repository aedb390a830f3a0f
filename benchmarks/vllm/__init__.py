"""Chats and token streams, beside vLLM on the same machine."""
