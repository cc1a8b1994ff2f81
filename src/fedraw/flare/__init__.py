"""Federations on NVIDIA FLARE: fedraw's strategies with real sites.

    import fedraw.flare

    fedraw.flare.join(label_counts=...)      # in a site's script, after flare.init()
    fedraw.flare.FederationRecipe(...)       # the job

Names are imported at their first use, so that `fedraw.flare.messages` does not need nvflare.
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

_MODULES = {
    "FederationController": "fedraw.flare.controller",
    "FederationRecipe": "fedraw.flare.recipe",
    "join": "fedraw.flare.site",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("nvflare") is None:
        raise MissingExtra("nvflare", "flare")
    return getattr(import_module(_MODULES[name]), name)
