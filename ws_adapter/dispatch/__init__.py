"""The queue for the workers' slots: tickets, order, leases."""
