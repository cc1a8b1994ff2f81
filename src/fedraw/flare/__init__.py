"""Federations on NVIDIA FLARE: the strategies of the library, with real sites.

    import fedraw.flare

    fedraw.flare.join(label_counts=...)      # in a site's script, after flare.init()
    fedraw.flare.FederationRecipe(...)       # the job

Names are imported when they are first used, so that `fedraw.flare.messages` needs no nvflare.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedraw.errors import MissingExtra
from fedraw.server.results import Recall

if TYPE_CHECKING:
    from fedraw.flare.controller import FederationController
    from fedraw.flare.recipe import FederationRecipe
    from fedraw.flare.site import join

__all__ = ["FederationController", "FederationRecipe", "Recall", "join"]

_HOME = {
    "FederationController": "fedraw.flare.controller",
    "FederationRecipe": "fedraw.flare.recipe",
    "join": "fedraw.flare.site",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("nvflare") is None:
        raise MissingExtra("nvflare", "flare")
    return getattr(import_module(_HOME[name]), name)
