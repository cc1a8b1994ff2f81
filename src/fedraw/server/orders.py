"""What an engine is to send to a node, and what it hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedraw.core.types import Vector

# summary: who are you, which labels do you hold?   train, evaluate: with this model
Kind = Literal["summary", "train", "evaluate"]


@dataclass(frozen=True, eq=False)
class Order:
    """One thing to ask of one node; `model` is None where none is needed."""

    number: int
    kind: Kind
    node: int
    site: str | None
    deadline: float  # seconds from when it is sent
    version: int = 0
    model: Vector | None = None


@dataclass(frozen=True, eq=False)
class Summary:
    """A site's name and how many training samples of each label it has; empty: it does not say."""

    site: str
    counts: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Trained:
    """What a site has sent back for a model: see core.update. `counts` if it declares them anew."""

    site: str
    order: int
    version: int
    vector: Vector
    examples: int
    loss: float | None = None
    counts: Mapping[str, int] | None = None


@dataclass(frozen=True, eq=False)
class Evaluated:
    """How many of a site's own test samples the model recognised, by label."""

    site: str
    order: int
    right: Mapping[str, int]
    total: Mapping[str, int]


@dataclass(frozen=True)
class Failure:
    """No answer that could be used.

    `to_blame` is false where the site cannot help it. `malformed` says that the site did answer,
    with what no honest client app sends.
    """

    reason: str
    to_blame: bool = True
    malformed: bool = False


Answer = Summary | Trained | Evaluated | Failure
