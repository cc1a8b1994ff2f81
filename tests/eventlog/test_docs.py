"""The reference page describes every field of every record, and no others."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from fedraw.eventlog.records import FORMAT, KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "event-log.md").read_text(
    encoding="utf-8"
)
SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_the_page_describes_this_format_and_all_record_kinds() -> None:
    assert f"**format {FORMAT}**" in PAGE
    assert list(SECTIONS) == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described_in_its_order(kind: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", SECTIONS[kind], re.MULTILINE)
    own = fields(KINDS[kind])
    assert [name for name, _ in rows] == [field.name for field in own]
    optional = {field.name for field in own if field.default is not MISSING} - {"format"}
    assert {name for name, described in rows if described.endswith(", optional")} == optional
