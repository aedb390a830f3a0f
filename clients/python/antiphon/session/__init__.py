"""Conversations over a WebSocket: what is sent, and events as they come."""
