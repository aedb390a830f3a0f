"""Training of small models of a domain, `antiphon-mini` among them: data, training and evaluation."""
