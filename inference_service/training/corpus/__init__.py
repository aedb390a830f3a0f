"""The training data of the default model, drawn and synthesised from a recipe."""
