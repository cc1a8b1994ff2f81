"""The core, on NumPy alone: labels, rarity, buffers, weights, sums, layouts, random streams."""
