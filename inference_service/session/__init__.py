"""The rules of the contract, without I/O: leases, slots, the units of a session and their order."""
