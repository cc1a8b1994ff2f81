"""Problems that pass, such as a full disk: an engine logs each of them once and tries again."""

from __future__ import annotations

import logging
from collections.abc import Callable

LOGGER = logging.getLogger("fedraw.server")


class Problems:
    """The problems that an engine has at the moment."""

    def __init__(self) -> None:
        self._present: set[str] = set()

    def report(self, key: str, text: str, problem: object) -> None:
        """Log a problem once until it is over."""
        if key not in self._present:
            self._present.add(key)
            LOGGER.warning(text, problem)

    def solved(self, key: str, text: str) -> None:
        """Log that a problem is over, if it was there."""
        if key in self._present:
            self._present.remove(key)
            LOGGER.info(text)

    def written(self, what: str, act: Callable[[], None]) -> bool:
        """Do something that writes; return False if the disk refused."""
        try:
            act()
        except OSError as problem:
            why = problem.strerror or problem
            self.report(what, f"{what} cannot be written, it is kept and tried again: %s", why)
            return False
        self.solved(what, f"{what} could be written")
        return True
