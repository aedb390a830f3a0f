"""Networks on the CPU: linear layers by oneDNN, and kernels of our own for what is between them."""
