"""Rarity scores from declared labels, checked labels, or the updates alone."""

from fedraw.strategies.scoring.scorer import (
    DeclaredScorer,
    EvidenceScorer,
    LabelEvidence,
    Scorer,
    make_scorer,
)

__all__ = ["DeclaredScorer", "EvidenceScorer", "LabelEvidence", "Scorer", "make_scorer"]
