"""Token2wav: speech tokens to sound at 24 kHz by flow matching and a vocoder, without sessions.

The package follows the published token2wav of MiniCPM-o 4.5 (`stepaudio2-minicpmo` 0.1.1, and the causal
variant of `minicpmo-utils` 1.0.7): the same weights under the same names give the same sound.
"""
