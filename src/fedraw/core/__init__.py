"""The paper's core on NumPy alone: labels, rarity, buffers, weights, sums, layouts, randomness."""
