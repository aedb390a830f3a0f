"""Cost of the CPU kernels and of batched network parts, relative to torch and to single sessions."""
