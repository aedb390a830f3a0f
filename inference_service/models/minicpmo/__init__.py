"""MiniCPM-o 4.5: audio encoder, vision encoder and language model, under the published parameter names."""
