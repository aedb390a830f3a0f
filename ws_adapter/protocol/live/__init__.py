"""OpenAI's full-duplex protocol, Live."""
