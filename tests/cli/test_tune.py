from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command import SMALL, fedraw

from fedraw.experiment.spec import Spec

OVER = ("--over", "training.lr=0.0001,0.2", "--events", 40, "-j", 1)


def test_tune_writes_the_choice_and_one_document(tmp_path: Path) -> None:
    spec = tmp_path / "my.toml"
    spec.write_text(SMALL)
    refused = fedraw("tune", "my.toml", *OVER, "--seeds", "3,1", cwd=tmp_path)
    assert refused.returncode == 2
    assert "1 is in run.seeds of the spec too" in refused.stderr
    done = fedraw("tune", "my.toml", *OVER, "--seeds", 3, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["chosen"] == {"training.lr": 0.2}
    assert [point["settings"]["training.lr"] for point in document["points"]] == [0.0001, 0.2]
    assert document["notes"][0] in done.stderr
    assert "0.2 is the highest value of the grid" in done.stderr
    tuned = Spec.from_file(tmp_path / "my-tuned.toml")
    assert tuned.to_dict() == Spec.from_file(spec, {"training.lr": 0.2}).to_dict()
    taken = fedraw("tune", "my.toml", *OVER, "--seeds", 3, "-o", "my.toml", cwd=tmp_path)
    assert taken.returncode == 2
    assert "was not written by a tuning" in taken.stderr
