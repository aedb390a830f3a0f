"""What the default model is trained on, drawn and synthesised from a recipe."""
