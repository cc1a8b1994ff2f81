"""Labels in LEAF's files that are refused; tests/data/test_natural.py has the rest of LEAF."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedraw.data.leaf import load_leaf
from fedraw.errors import BadInput


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ([[1], [1, 2]], "[1]"),  # lists of unequal length
        ([[1], [2]], "[1]"),
        ([1, None], "None"),
    ],
)
def test_a_label_that_is_neither_a_number_nor_a_text_is_refused(
    tmp_path: Path, labels: list[object], named: str
) -> None:
    file = tmp_path / "train/all_data.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"user_data": {"ann": {"x": [[0.0], [1.0]], "y": labels}}}))
    told = f"{file}: user 'ann' has the label {named}, which is neither a number nor a text; write"
    with pytest.raises(BadInput, match=re.escape(told)):
        load_leaf(tmp_path, np.random.default_rng(0))
