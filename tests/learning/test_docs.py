"""The code blocks of docs/how-to/training.md run in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "training.md"


def test_the_examples_of_the_page_run() -> None:
    pytest.importorskip("fedraw.experiment.simulate")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert len(blocks) == 6
    names: dict[str, Any] = {"__name__": "docs_training"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
