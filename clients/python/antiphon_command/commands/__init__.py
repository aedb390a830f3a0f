"""The subcommands: a module each, which imports heavy packages only when it runs."""
