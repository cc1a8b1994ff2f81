"""Label summaries that reveal less than label counts, and protected updates.

budget     the settings: a mechanism and its epsilon; OpenDP's mechanisms within a budget
summaries  noisy presence bits, coverage estimated from them, scores, and the server's label table
rounds     the questions of a server and the answers of a site
updates    clipping and noise of updates on the server, and their epsilon

See docs/how-to/privacy.md.
"""
