from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from fedraw.errors import BadInput
from fedraw.flower.server import _show_log, read_server_settings, read_strategy
from fedraw.privacy.budget import Privacy
from fedraw.privacy.updates import UpdatePrivacy
from fedraw.server.settings import ServerSettings
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.qfedavg import QFedAvg


def test_every_kind_of_setting_is_read() -> None:
    settings = read_server_settings(
        {
            "lr": 0.1,
            "fedraw.folder": "run",
            "fedraw.min-clients": 1,
            "fedraw.arrivals": 100,
            "fedraw.seconds": 60,
            "fedraw.rare_labels": "8, 9",
            "fedraw.sites": "north",
            "fedraw.pinned": True,
            "fedraw.target-metric": "AvgRare",
            "fedraw.strategy.name": "fedfa",
        }
    )
    assert settings == ServerSettings(
        folder=Path("run"),
        min_clients=1,
        arrivals=100,
        seconds=60.0,
        rare_labels=("8", "9"),
        sites=("north",),
        pinned=True,
        target_metric="AvgRare",
    )
    assert isinstance(settings.seconds, float)


@pytest.mark.parametrize(
    "given", [{"arrivals": 5, "min-clients": 3}, ServerSettings(arrivals=5, min_clients=3)]
)
def test_the_run_config_overrides_the_app(given: Any) -> None:
    settings = read_server_settings({"fedraw.arrivals": 9}, given)
    assert (settings.arrivals, settings.min_clients) == (9, 3)


def test_an_empty_text_means_not_set() -> None:
    run = {"fedraw.arrivals": "", "fedraw.rare_labels": "", "fedraw.folder": ""}
    assert read_server_settings(run, {"arrivals": 5}) == ServerSettings(arrivals=5)


def test_a_single_number_is_a_list_of_one_label() -> None:
    assert read_server_settings({"fedraw.rare_labels": 8}, {"arrivals": 5}).rare_labels == ("8",)
    assert read_server_settings({}, {"arrivals": 5, "rare_labels": [8, 9]}).rare_labels == (
        "8",
        "9",
    )


def test_keys_for_training_are_not_changed() -> None:
    run = {
        "fedraw.train.local-epochs": 2,
        "fedraw.train.optimizer.weight-decay": 0.1,
        "fedraw.train.note": "",
        "fedraw.train-at.west.local-epochs": 5,
        "fedraw.train-at.west.optimizer.lr": 0.5,
        "fedraw.arrivals": 5,
    }
    settings = read_server_settings(run, {"train": {"local-epochs": 1, "lr": 0.1}})
    assert settings.train == {"local-epochs": 2, "lr": 0.1, "optimizer.weight-decay": 0.1}
    assert settings.train_at == {"west": {"local-epochs": 5, "optimizer.lr": 0.5}}


def test_the_tables_of_privacy_settings() -> None:
    run = {
        "fedraw.arrivals": 5,
        "fedraw.summaries.mechanism": "randomised-response",
        "fedraw.summaries.epsilon": 2,
        "fedraw.summaries.score-epsilon": "",
        "fedraw.summaries.labels": "cat, owl",
        "fedraw.update-privacy.clip": 1,
        "fedraw.update-privacy.noise": 0.5,
    }
    settings = read_server_settings(run)
    assert settings.summaries == Privacy("randomised-response", 2.0)
    assert settings.labels == ("cat", "owl")
    assert settings.update_privacy == UpdatePrivacy(1.0, 0.5)
    with pytest.raises(BadInput, match=r"\[fedraw.update_privacy\] lacks the key 'noise'"):
        read_server_settings({"fedraw.arrivals": 5, "fedraw.update-privacy.clip": 1})


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"fedraw.train": 2}, "fedraw.train = 2 must be a table"),
        ({"fedraw.train-at.west": 2}, "fedraw.train-at.west has no setting's name"),
        (
            {"fedraw.trian.lr": 2},
            "fedraw.trian.lr is not in a table of fedraw's settings; known tables: str",
        ),
        ({"fedraw.train.server-round": 2}, "train has the key 'server-round', which the server"),
        (
            {"fedraw.min_client": 2},
            "[fedraw] has the unknown key 'min_client'; did you mean 'min_clients'?",
        ),
        ({"fedraw.arrivals": "many"}, "fedraw.arrivals = 'many' must be a whole number"),
        ({"fedraw.arrivals": 2.5}, "fedraw.arrivals = 2.5 must be a whole number"),
        ({"fedraw.arrivals": True}, "fedraw.arrivals = True must be a whole number"),
        ({"fedraw.poll": True}, "fedraw.poll = True must be a finite number"),
        ({"fedraw.poll": float("inf")}, "fedraw.poll = inf must be a finite number"),
        ({"fedraw.seconds": float("nan")}, "fedraw.seconds = nan must be a finite number"),
        (
            {"fedraw.arrivals": 2**63},
            "fedraw.arrivals = 9223372036854775808 must be a whole number",
        ),
        ({"fedraw.pinned": 1}, "fedraw.pinned = 1 must be true or false"),
        ({"fedraw.folder": 3}, "fedraw.folder = 3 must be a text"),
        ({"fedraw.min_clients": 0}, "fedraw.min_clients = 0 must be at least 1"),
        ({}, "this federation would never end"),
    ],
)
def test_a_wrong_setting_is_named(run: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as error:
        read_server_settings(run)
    assert str(error.value).startswith(words)


def test_a_wrong_setting_of_the_app_is_named() -> None:
    with pytest.raises(BadInput, match=r"\[settings\] has the unknown key 'arrival'; did"):
        read_server_settings({}, {"arrival": 5})


def test_a_strategy_is_named_and_set() -> None:
    assert read_strategy({}) == FedRAW()
    capped = {"fedraw.strategy.cap-at": 0.5, "fedraw.strategy.cap": "naive"}
    run = {"fedraw.strategy.buffer": 4, **capped}
    with pytest.raises(BadInput, match="cap"):
        read_strategy({**run, "fedraw.strategy.cap": "wrong"})
    assert read_strategy(run) == FedRAW(buffer=4, cap="naive", cap_at=0.5)
    assert read_strategy({"fedraw.strategy.name": "fedbuff"}) == FedBuff()
    run = {"fedraw.strategy.name": "fedbuff", "fedraw.strategy.server-lr": 2}
    assert read_strategy(run) == FedBuff(server_lr=2.0)
    run = {"fedraw.strategy.name": "qfedavg", "fedraw.strategy.lr": 0.1}
    assert read_strategy(run) == QFedAvg(lr=0.1)


@pytest.mark.parametrize("name", CATALOG)
def test_every_strategy_can_be_named(name: str) -> None:
    assert read_strategy({"fedraw.strategy.name": name}) == CATALOG[name].make()


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"name": "fedrow"}, "fedraw.strategy.name = 'fedrow' is unknown; did you mean 'fedraw'?"),
        ({"bufer": 3}, "[fedraw.strategy] has the unknown key 'bufer'; did you mean 'buffer'?"),
        ({"buffer": "3"}, "fedraw.strategy.buffer = '3' must be a whole number"),
        ({"weighting": "rare"}, "fedraw.strategy.weighting = 'rare' must be 'rarity' or 'uniform'"),
        ({"name": "fedbuff", "layout": "x"}, "[fedraw.strategy] has the unknown key 'layout'"),
        ({"name": 3}, "fedraw.strategy.name = 3 is unknown"),
    ],
)
def test_a_wrong_strategy_is_named(run: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as error:
        read_strategy({f"fedraw.strategy.{key}": value for key, value in run.items()})
    assert str(error.value).startswith(words)


def test_logs_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("fedraw")
    before = list(logger.handlers), logger.level
    try:
        logger.handlers = []
        _show_log("json")
        _show_log("json")
        logging.getLogger("fedraw.server").info("training begins with %d sites", 4)
    finally:
        logger.handlers, level = before[0], before[1]
        logger.setLevel(level)
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "training begins with 4 sites"
