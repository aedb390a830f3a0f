"""How many conversations of a MiniCPM-o of full size a GPU holds."""
