"""What holds for all tests of the studies, those in the docstrings of their sources included."""

from __future__ import annotations

# Imported before pytest collects its modules, for the reason that the conftest.py above names.
import fedraw_studies  # noqa: F401
