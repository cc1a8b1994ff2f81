"""Temporary problems, such as a full disk; an engine logs each of them once and tries again."""

from __future__ import annotations

import logging
from collections.abc import Callable

LOGGER = logging.getLogger("fedraw.server")


class Problems:
    """The current problems of an engine."""

    def __init__(self) -> None:
        self._present: set[str] = set()

    def report(self, key: str, text: str, problem: object) -> None:
        """Log a problem, unless it is logged already; `text` has a %s for the problem."""
        if key not in self._present:
            self._present.add(key)
            LOGGER.warning(text, problem)

    def resolved(self, key: str, text: str) -> None:
        """Log that a problem is over, if it was reported."""
        if key in self._present:
            self._present.remove(key)
            LOGGER.info(text)

    def try_write(self, what: str, act: Callable[[], None]) -> bool:
        """Call a function that writes to disk; return False if it raises an OSError."""
        try:
            act()
        except OSError as problem:
            why = problem.strerror or problem
            self.report(what, f"{what} cannot be written and will be tried again: %s", why)
            return False
        self.resolved(what, f"{what} is written")
        return True
