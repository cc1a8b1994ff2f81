"""Digits at four sites; only one of them, which is slow, holds the digits 8 and 9."""
