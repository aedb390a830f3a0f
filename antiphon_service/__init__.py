"""What adapter and worker share: telemetry, its names, TLS, Redis, leases and the network."""
