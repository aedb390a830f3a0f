"""Many conversations on one worker, against its goals."""
