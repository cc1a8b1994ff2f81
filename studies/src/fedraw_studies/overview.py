"""The verdicts of all scales side by side, from their summary.json files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from fedraw.errors import BadInput
from fedraw.storage.files import atomic_write
from fedraw_studies.artefacts import Scale
from fedraw_studies.markdown import NOTHING, WIDTH, escaped_table
from fedraw_studies.render import counted
from fedraw_studies.rules import Verdict

# The scales whose results say something about the paper, the closest to it first.
SCALES = ("paper", "level", "ham10000", "cpu")
JUDGED = (Verdict.HOLDS, Verdict.PARTLY, Verdict.FAILS, Verdict.NOT_COMPARABLE)
HOW_TO_READ = (
    "A claim has parts, such as one for each data set. A bold verdict is that of the claim, and "
    "the verdicts of its parts follow in brackets if they differ from it. A claim without a bold "
    "verdict waits for runs, and only some of its parts are judged. All verdicts here are by the "
    "last model, as in the paper. A scale is corrected if its intervals allow for the number of "
    "claims. The file verdicts.md of each scale has the values, and the verdicts by the mean of "
    "the last five evaluations."
)


def write_overview(results: Path) -> None:
    """Write claims.md if `results` has the verdicts of two or more scales."""
    found = {name: results / name / "summary.json" for name in SCALES}
    judged = {name: _claims(name, path) for name, path in found.items() if path.exists()}
    if len(judged) > 1:
        atomic_write(results / "claims.md", overview_markdown(judged).encode())


def _claims(scale: str, path: Path) -> list[dict[str, Any]]:
    """Read the claims of a summary.json, with their verdicts."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return [
            {key: claim[key] for key in ("name", "claim", "where", "verdict")}
            | {"parts": [{"verdict": Verdict(part["verdict"])} for part in claim["parts"]]}
            for claim in read["claims"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise BadInput(
            f"{path} is no summary of a reproduction ({type(problem).__name__}: {problem}); write "
            f"it again with 'fedraw reproduce --render --scale {scale}'"
        ) from None


def overview_markdown(judged: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Write the number of verdicts of each scale, and a line with all verdicts for each claim.

    `judged` has the claims of each scale.
    """
    claims = {name: {claim["name"]: claim for claim in own} for name, own in judged.items()}
    every = {name: claim for own in claims.values() for name, claim in own.items()}
    lines = [
        [claim["claim"], claim["where"], *(_cell(own.get(name)) for own in claims.values())]
        for name, claim in every.items()
    ]
    head = ["claim", "where", *(f"`{name}`" for name in claims)]
    counts = [_count(name, own) for name, own in judged.items()]
    columns = ["scale", "claims", *(own.value for own in JUDGED), "waiting", "parts"]
    parts = ["# The paper's claims at every scale\n", escaped_table(columns, counts)]
    return "\n".join([*parts, fill(HOW_TO_READ, WIDTH) + "\n", escaped_table(head, lines)])


def _count(scale: str, claims: Sequence[Mapping[str, Any]]) -> list[str]:
    verdicts = Counter(claim["verdict"] for claim in claims)
    parts = [part["verdict"] for claim in claims for part in claim["parts"]]
    return [
        f"`{scale}`{', corrected' * Scale.named(scale).strict}",
        str(len(claims)),
        *(str(verdicts[verdict]) for verdict in JUDGED),
        str(verdicts[Verdict.NOT_RUN]),
        counted(parts),
    ]


def _cell(claim: Mapping[str, Any] | None) -> str:
    """Return the verdict of a claim, with those of its judged parts if these differ from it."""
    if claim is None:
        return NOTHING
    parts = [part["verdict"] for part in claim["parts"]]
    judged = [verdict for verdict in parts if verdict != Verdict.NOT_RUN]
    if claim["verdict"] == Verdict.NOT_RUN:
        return f"{len(judged)} of {len(parts)} parts ({counted(judged)})" if judged else NOTHING
    bold = f"**{claim['verdict']}**"
    return bold if set(judged) == {claim["verdict"]} else f"{bold} ({counted(judged)})"
