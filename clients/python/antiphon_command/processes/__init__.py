"""Workers and adapters as child processes that do not outlive their command."""
