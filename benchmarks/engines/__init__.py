"""Comparison of the engines `antiphon` and `vllm` in chats through the whole stack."""
