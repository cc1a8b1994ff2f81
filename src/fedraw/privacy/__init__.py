"""Label summaries that reveal less than a histogram per client; see docs/how-to/privacy.md.

budget      which mechanism is used, with which epsilon, and OpenDP's mechanisms within it
summaries   noisy presence bits, coverage estimated from them, scores, and the server's label table
rounds      the questions of a server and the answers of a site, for an engine to carry
secure_sum  the exact sum of the presence bits under pairwise masks
updates     clipping and noise of updates on the server, and the epsilon that they come to
"""
