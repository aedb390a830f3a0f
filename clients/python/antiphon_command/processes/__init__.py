"""Worker and adapter as child processes that do not outlive a command."""
