"""Load for an adapter: processes under test, cheap clients, a worker without a model."""
