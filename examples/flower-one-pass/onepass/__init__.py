"""Digits at four sites, each of which sends sums once; only "west" holds the digits 8 and 9."""
