"""Metrics of a run: accuracy by label, and fairness between clients. NumPy only."""
