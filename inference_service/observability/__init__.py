"""What others see: figures, spans, the status page, and whether the engine gets on."""
