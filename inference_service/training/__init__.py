"""Training of the default checkpoint `antiphon-mini`: data, training and evaluation."""
