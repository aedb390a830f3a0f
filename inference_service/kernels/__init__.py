"""Compiled CPU kernels: frozen, optional, and tested against torch and NumPy.

PyTorch is the reference. The kernels gain no functions, data types or instruction sets: only faults are
fixed. Performance work goes into torch, scheduling and models. `--kernels off` runs without them
(`selection`), and every kernel has a test that compares it with torch or NumPy.
"""
