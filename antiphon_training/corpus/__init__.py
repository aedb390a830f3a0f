"""The training data of a domain, drawn and synthesised from a recipe."""
