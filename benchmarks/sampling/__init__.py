"""Cost of drawing tokens and speech codes, for all sessions at once and for one after another."""
