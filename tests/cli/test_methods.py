"""`fedraw methods`: the list, one method, and JSON."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command import fedraw

from fedraw.strategies.catalog import CATALOG


def test_the_list_has_every_method_and_what_it_needs(tmp_path: Path) -> None:
    done = fedraw("methods", cwd=tmp_path)
    assert done.returncode == 0
    words = " ".join(done.stdout.split())
    assert all(f"{name} " in words for name in CATALOG)
    assert "server: 4 + K + N models; clients send differences; it uses no labels" in words
    assert "clients send models and their training loss" in words  # q-FedAvg
    assert "rule from its authors' code; special case of mifa (buffer = 1)" in words  # ACE
    assert "rule from this project; variant of fedraw-replay" in words


def test_one_method_has_its_settings_and_its_publication(tmp_path: Path) -> None:
    words = " ".join(fedraw("methods", "fedraw-replay-debt", cwd=tmp_path).stdout.split())
    assert 'strategy.select "debt" (fixed) "rarity" | "debt"' in words
    assert 'strategy.target "mix" "rarity" | "samples" | "mix"' in words
    assert "strategy.server_lr 1.0 float The server rate: the factor" in words
    assert "strategy.buffer 10 int The number of updates K in a step of the server, and" in words
    assert "docs/research/beyond.md" in words


def test_json_has_the_settings_and_their_types(tmp_path: Path) -> None:
    found = json.loads(fedraw("methods", "aced", "--json", cwd=tmp_path).stdout)
    assert found["settings"] == {"server_lr": 0.1, "tau_algo": "clients", "age": "contact"}
    assert found["types"]["tau_algo"] == 'int | "clients"'
    assert found["meanings"]["server_lr"].startswith("The server rate: the factor by which")
    assert (found["source"], found["relation"]) == ("its authors' code", "")
    assert found["server_models"] == {"always": 3, "per_slot": 0, "per_client": 1}
    listed = json.loads(fedraw("methods", "--json", cwd=tmp_path).stdout)["methods"]
    assert [own["name"] for own in listed] == list(CATALOG)


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    done = fedraw("methods", "fedrow", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "NAME = 'fedrow' is unknown; " in done.stderr
