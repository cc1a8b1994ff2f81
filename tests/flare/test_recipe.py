"""The folder of the job: its configuration and its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nvflare.client.config import TransferType

from fedraw.errors import BadInput
from fedraw.flare import FederationRecipe

pytestmark = pytest.mark.slow

FILES = Path(__file__).parent / "fault_job"


def recipe(**more: Any) -> FederationRecipe:
    chosen = {
        "model": "model:initial_model",
        "train_script": str(FILES / "trainer.py"),
        "files": [str(FILES / "model.py")],
        "settings": {"arrivals": 5},
        **more,
    }
    return FederationRecipe(**chosen)


def exported(folder: Path, **more: Any) -> tuple[dict[str, Any], dict[str, Any], Path]:
    recipe(**more).export(str(folder))
    (app,) = (folder / "fedraw").glob("app*")
    server = json.loads((app / "config" / "config_fed_server.json").read_text())
    client = json.loads((app / "config" / "config_fed_client.json").read_text())
    return server, client, app


def test_the_job_has_the_controller_the_script_and_no_code_of_fedraw(tmp_path: Path) -> None:
    server, client, app = exported(tmp_path, task_interval=0.25, train_args="1")
    (workflow,) = server["workflows"]
    assert workflow["path"] == "fedraw.flare.controller.FederationController"
    assert workflow["args"] == {"model": "model:initial_model", "settings": {"arrivals": 5}}
    assert server["server"] == {"task_request_interval": 0.25}
    (executor,) = client["executors"]
    arguments = executor["executor"]["args"]
    assert arguments["task_script_path"] == "trainer.py"
    assert arguments["task_script_args"] == "1"
    assert {path.name for path in (app / "custom").iterdir()} == {"trainer.py", "model.py"}


def test_the_script_may_run_in_a_separate_process_and_send_differences(tmp_path: Path) -> None:
    _, client, _ = exported(
        tmp_path,
        launch_external_process=True,
        command="torchrun --standalone",
        train_args="--lr 0.1",
        params_transfer_type=TransferType.DIFF,
    )
    arguments = client["executors"][0]["executor"]["args"]
    words = ["torchrun", "--standalone", "custom/trainer.py", "--lr", "0.1"]
    assert arguments["command"] == words
    assert arguments["params_transfer_type"] == "DIFF"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"settings": {}}, "this federation would never end"),
        ({"settings": {"arivals": 5}}, "did you mean 'arrivals'"),
        ({"strategy": {"name": "fedrow"}}, "did you mean 'fedraw'"),
        ({"strategy": {"bufer": 3}}, "did you mean 'buffer'"),
        ({"train_script": "nowhere.py"}, "nowhere.py does not exist"),
    ],
)
def test_a_mistake_is_refused_before_the_job_is_created(more: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        recipe(**more)


def test_a_file_that_hides_a_standard_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("")
    with pytest.raises(BadInput, match="hide Python's standard module 'random'"):
        recipe(files=[str(tmp_path / "random.py")])
