"""The command `antiphon`: one module per subcommand, which imports heavy packages only when it runs."""
