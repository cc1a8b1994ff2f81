"""The Python code of guides runs as it stands, and its commands name the user who runs them.

The guides to data, training and availability have tests of their own, beside what they describe.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.mark.parametrize(
    ("guide", "blocks", "needs"),
    [
        ("audit", 1, ()),
        ("strategies", 1, ()),
        ("privacy", 3, ("opendp", "flwr")),
        ("flower-apps", 3, ("torch", "flwr")),
        ("one-pass", 7, ("torch", "flwr")),
    ],
)
def test_the_code_of_a_guide_runs(
    guide: str,
    blocks: int,
    needs: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for package in needs:
        pytest.importorskip(package)
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    # Indented blocks belong to an app with files of its own.
    found = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(found) == blocks
    names: dict[str, Any] = {"__name__": guide}
    for block in found:
        exec(compile(block, guide, "exec"), names)


@pytest.mark.parametrize(("guide", "commands"), [("operate-a-server", 18), ("deploy", 1)])
def test_commands_on_a_server_run_as_the_user_of_its_service(guide: str, commands: int) -> None:
    """Root could run them too, but the service's user could not read what root has written."""
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```bash\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    found = [line for line in lines if re.search(r"\b(fedraw server|flwr supernode) ", line)]
    assert len(found) == commands
    assert [line for line in found if not line.startswith("runuser -u fedraw -- ")] == []
