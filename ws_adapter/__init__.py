"""The WebSocket adapter: public JSON protocols on one side, the worker's gRPC streams on the other."""
