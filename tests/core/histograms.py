"""Label histograms of small federations, at random; and the rarity score written out."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from fedraw.core.types import ClientId, Label, LabelCounts

Counts = dict[ClientId, LabelCounts]

labels: st.SearchStrategy[Label] = st.one_of(st.integers(0, 12), st.sampled_from("abcdef"))
histograms: st.SearchStrategy[LabelCounts] = st.dictionaries(
    labels, st.integers(1, 1000), min_size=1, max_size=12
)
client_ids: st.SearchStrategy[ClientId] = st.one_of(
    st.integers(0, 30), st.text("pqrstu", min_size=1, max_size=3)
)
federations: st.SearchStrategy[Counts] = st.dictionaries(
    client_ids, histograms, min_size=1, max_size=10
)


def score_by_hand(client: ClientId, counts: Mapping[ClientId, LabelCounts]) -> float:
    """Σ_l freq(l, i) / coverage(l), label by label."""
    own = counts[client]
    total = sum(own.values())
    return sum(
        n / total / sum(1 for other in counts.values() if other.get(label, 0) > 0)
        for label, n in own.items()
        if n > 0
    )
