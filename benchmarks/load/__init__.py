"""Load for an adapter: processes under test, clients that cost next to nothing, a worker without a model."""
