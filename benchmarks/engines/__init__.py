"""Chats through the whole stack, with either engine behind it."""
