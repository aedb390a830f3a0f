"""Many conversations on one worker, measured against its goals."""
