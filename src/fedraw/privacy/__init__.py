"""Label summaries that reveal less than a histogram per client; see docs/privacy.md.

budget          which mechanism is used, and with which epsilon
response        randomised response: noisy presence bits, and coverage estimated from them
secure_sum      the exact sum of the presence bits under pairwise masks; keys has the shared seeds
scores          a client's own rarity score, with or without noise
summaries       the label table that a simulated server sees
opendp_library  the mechanisms of OpenDP, within a budget
"""
