"""OpenAI's protocol of turns, Realtime, in the dialect of its general availability."""
