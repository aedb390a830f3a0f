"""Simulation of a worker with MiniCPM-o on assumed GPUs: ticks, pages and admission on a simulated clock."""
