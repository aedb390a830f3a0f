"""MiniCPM-o 4.5: its ear, its eye and its model, under the published parameter names."""
