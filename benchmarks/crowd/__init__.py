"""What one worker does for a crowd of conversations, against its goals."""
