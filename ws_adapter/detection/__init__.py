"""Voice activity detection (VAD) for all sessions of an adapter."""
