"""Networks on the CPU by kernels of our own; linear layers in bfloat16 are oneDNN's."""
