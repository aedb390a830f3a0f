"""The library of adapter and worker: telemetry, semantic conventions, TLS, Redis, leases, network."""
