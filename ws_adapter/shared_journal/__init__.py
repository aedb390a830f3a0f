"""The journals of sessions in Redis, with which another adapter goes on when theirs has died."""
