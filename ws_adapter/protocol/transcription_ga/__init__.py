"""OpenAI's Realtime in sessions that only write down what is said."""
