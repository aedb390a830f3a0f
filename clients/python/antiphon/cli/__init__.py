"""The command `antiphon`: its entry points; the subcommands load none but what they need."""
