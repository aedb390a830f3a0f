"""Session journals in Redis, from which another adapter continues the sessions of a dead one."""
