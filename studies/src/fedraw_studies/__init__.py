"""The studies of fedraw: every table, figure and claim of the FedRAW paper, and our own.

The package contributes the command `fedraw reproduce`. Studies are data: `paper/`, `beyond/` and
`evidence/` contain the artefacts as TOML files, and `paper/claims.toml` the claims and their rules.
"""
