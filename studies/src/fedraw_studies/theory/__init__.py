"""Closed forms of `docs/explanation/theory.md` that no other part of fedraw uses.

`staleness` has the gaps between two updates of a client, `aggregations` the number of aggregations
in a run, and `bound` the convergence theorem with its constants. Presence and influence, from which
the audit predicts, are in `fedraw.auditing`.
"""
