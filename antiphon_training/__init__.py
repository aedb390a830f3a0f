"""Training of small models for a domain, such as `antiphon-mini`: data, stages and evaluation."""
