"""OpenAI's chat completions: one request over HTTP, one answer, whole or as server-sent events."""
