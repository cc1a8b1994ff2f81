"""Digits at four sites, of which one slow one alone holds the digits 8 and 9."""
