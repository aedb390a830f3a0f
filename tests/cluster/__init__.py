"""Redis, adapters and workers under talkers, while one of each dies and one of each is replaced."""
