"""The subcommands: one module each, which imports heavy packages only when it runs."""
