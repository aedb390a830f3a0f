"""Performance of one worker with many concurrent conversations, against its goals."""
