"""Perturbations: attacks and drift. They change data, claims and updates outside the loop."""
