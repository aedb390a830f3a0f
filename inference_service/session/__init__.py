"""The rules of a session, without I/O: leases, slots, order of units, deadlines."""
