"""Crowds of MiniCPM-o on assumed GPUs: ticks, pages and admission of the worker under a simulated clock."""
