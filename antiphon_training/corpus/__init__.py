"""The training data of a domain, drawn at random and synthesised."""
