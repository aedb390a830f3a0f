"""Who may come in: keys, client secrets, rights and rates."""
