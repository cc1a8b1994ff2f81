"""Digits at four sites, of which only the last has images of 8 and 9."""
