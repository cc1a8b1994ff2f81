"""How long work on data is followed."""

from __future__ import annotations

from collections.abc import Callable

# Told what is being done, how much of it is done, and how much there is in all.
Progress = Callable[[str, int, int], None]
