"""Model architectures as plain torch modules, with their tokenizers; no sessions, gRPC or JSON protocols."""
