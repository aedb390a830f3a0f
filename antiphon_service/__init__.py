"""Code that adapter and worker share: telemetry, semantic conventions, TLS, Redis, leases, sockets."""
