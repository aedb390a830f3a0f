"""Compiled kernels for the CPU: frozen, optional, and held to what torch and NumPy compute.

PyTorch is the reference. The kernels gain no functions, data types or instruction sets: only faults are
fixed. Performance work goes into torch, scheduling and models. `--kernels off` runs without them
(`selection`), and every kernel has a test that compares it with torch or NumPy.
"""
