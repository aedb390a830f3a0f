"""Load generation for benchmarks of the adapter: processes, light clients, a worker without a model."""
