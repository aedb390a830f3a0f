"""One forward for many sessions: scheduling, contexts, KV cache, sampling."""
