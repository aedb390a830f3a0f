"""OpenAI's Live protocol, full duplex."""
