"""How the default checkpoint `antiphon-mini` is made: data, training and evaluation."""
