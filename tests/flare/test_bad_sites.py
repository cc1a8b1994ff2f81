"""Sites that send invalid replies are logged, and the federation continues without them.

Controller, communicator, site API, folder, shareables and their bytes are real; see memory.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs.datum import DatumManager
from safetensors.numpy import load_file
from tests.flare.memory import MemoryFlare, MemorySite, over_the_wire

from fedraw.flare import controller as controller_module
from fedraw.flare.controller import FederationController
from fedraw.server.results import Recall

pytestmark = pytest.mark.slow

MODEL = {"w": np.zeros((2, 2), np.float32), "b": np.zeros(2, np.float32), "seen": np.array(0)}
LABELS = {
    "north": {"cat": 3},
    "south": {"cat": 2, "dog": 2},
    "east": {"dog": 5},
    "west": {"owl": 5},
}
OTHERS = {"north", "south", "east"}
PATIENCE, ARRIVALS = 3, 30

Change = Callable[[Shareable], Any]


def initial_model() -> dict[str, Any]:
    return MODEL


def trainer(site: str) -> Callable[[FLModel], FLModel]:
    """Each site moves one number of the model towards one."""

    def train(received: FLModel) -> FLModel:
        model = {name: array.copy() for name, array in received.params.items()}
        model["w"].flat[list(LABELS).index(site)] = 1.0
        return FLModel(params=model)

    return train


def a_federation(
    folder: Path, change: Change = lambda reply: None, kind: str = "train", **more: Any
) -> MemoryFlare:
    """Four sites; all replies of one kind from `west` are changed before they are sent."""
    settings = {
        "folder": str(folder),
        "min_clients": 4,
        "arrivals": ARRIVALS,
        "patience": PATIENCE,
        "back_off": 0.001,
        "poll": 0.005,
        **more,
    }
    controller = FederationController(
        f"{__name__}:initial_model", settings, {"name": "fedraw", "buffer": 3}
    )
    sites = [MemorySite(site, trainer(site), {"label_counts": LABELS[site]}) for site in LABELS]
    sites[-1].tamper = lambda name, reply: change(reply) if name == kind else None
    return MemoryFlare(controller, sites, folder.parent)


def log(folder: Path, kind: str, site: str | None = None) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [r for r in records if r["kind"] == kind and site in (None, r.get("client"))]


def check_end(folder: Path) -> None:
    """Check that all other sites sent their updates and the model is correct."""
    arrivals = [r["client"] for r in log(folder, "arrival")]
    assert len(arrivals) == ARRIVALS
    assert set(arrivals) >= OTHERS
    assert not any(log(folder, kind, site) for site in OTHERS for kind in ("left", "rejected"))
    assert log(folder, "end")[0]["reason"] == f"{ARRIVALS} updates accepted"
    tensors = load_file(folder / "model.safetensors")
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())
    assert np.abs(tensors["w"]).max() <= 1


def check_quarantined(folder: Path, flare: MemoryFlare, words: str) -> None:
    """Check that `west` was logged after each failure and quarantined after `patience` failures."""
    told = [*log(folder, "note", "west"), *log(folder, "rejected", "west")]
    again = [r["reason"] for r in told if r["reason"].startswith("asked again in ")]
    assert len(again) == PATIENCE - 1 and all(words in reason for reason in again), told
    (left,) = log(folder, "left", "west")
    assert f"quarantined for 3600 s after {PATIENCE} failures in a row" in left["reason"]
    assert words in left["reason"]
    assert flare.sites[-1].asked.count("train") == PATIENCE
    assert not log(folder, "arrival", "west")


def data(reply: Shareable) -> Any:
    return from_shareable(reply).data


def tensor(name: str, value: Any) -> Change:
    return lambda reply: data(reply).update({name: value})


def fact(name: str, value: Any) -> Change:
    return lambda reply: from_shareable(reply).meta["fedraw"].update({name: value})


def another(dxo: DXO) -> Change:
    return lambda reply: dxo.to_shareable()


def raising(reply: Shareable) -> None:
    raise ArithmeticError("CUDA out of memory")


def torn(reply: Shareable) -> None:
    reply["DXO"] = "no table"


BAD: dict[str, tuple[Change, str]] = {
    "NaN": (tensor("b", np.array([np.nan, 0], np.float32)), "sent 1 numbers that are NaN or"),
    "infinite": (tensor("b", np.full(2, np.inf, np.float32)), "sent 2 numbers that are NaN or"),
    "wrong shape": (
        tensor("w", np.zeros((2, 3), np.float32)),
        "'w' is float32 of shape (2, 3), but the model's is",
    ),
    "flat": (
        tensor("w", np.zeros(4, np.float32)),
        "'w' is float32 of shape (4,), but the model's is",
    ),
    "wrong type": (tensor("w", np.zeros((2, 2), np.complex64)), "'w' is complex64 of shape (2, 2)"),
    "no array": (tensor("w", [[0.0, 0.0], [0.0, 0.0]]), "'w' is list, not a NumPy array"),
    "a set": (tensor("w", {1.0, 2.0}), "'w' is set, not a NumPy array"),
    "a date": (tensor("w", datetime.now(UTC)), "'w' is datetime, not a NumPy array"),
    "a model in a tensor": (tensor("w", FLModel(params={})), "'w' is FLModel, not a NumPy array"),
    "missing tensor": (lambda reply: data(reply).pop("b"), "tensor 'b' is missing"),
    "more tensors": (tensor("x", np.zeros(2, np.float32)), "tensor 'x' is not part of the model"),
    "another task": (fact("task", 10_000), "but replied for version"),
    "another version": (fact("version", 10_000), "but replied for version 10000"),
    "negative examples": (fact("examples", -5), "trained on -5 examples"),
    "examples in words": (fact("examples", "many"), "examples is 'many', not a whole number"),
    "a date as version": (fact("version", datetime.now(UTC)), "version is datetime"),
    "garbage": (another(DXO(DataKind.WEIGHTS, {"w": 1}, {"fedraw": [7]})), "'fedraw' is missing"),
    "metrics": (another(DXO(DataKind.METRICS, {}, {"fedraw": {}})), "task is missing"),
    "nothing": (lambda reply: Shareable(), "unreadable reply"),
    "torn": (torn, "unreadable reply"),
    "long tensor name": (tensor("x" * 100_000, np.zeros(2)), "tensor 'xxxx"),
    "large integer": (tensor("seen", np.zeros(10**6, np.int64)), "bytes; the limit is 104"),
    "exception": (raising, "its job process replied EXECUTION_EXCEPTION"),
    "return code": (lambda reply: make_reply("x" * 9999), "its job process replied xxxx"),
}


@pytest.mark.parametrize("bad", BAD, ids=lambda name: name.replace(" ", "-"))
def test_a_bad_update_is_logged_and_its_sender_quarantined(bad: str, tmp_path: Path) -> None:
    change, words = BAD[bad]
    flare = a_federation(tmp_path / "run", change)
    flare.run()
    check_quarantined(tmp_path / "run", flare, words)
    check_end(tmp_path / "run")
    assert max(map(len, (tmp_path / "run" / "events.jsonl").read_bytes().splitlines())) < 2000


def test_an_honest_reply_has_only_the_types_that_it_needs() -> None:
    """FOBS names every type that is not plain; other types do not reach the server."""
    site = MemorySite("north", trainer("north"), {"label_counts": {"cat": np.int64(3)}})
    meta = {"kind": "train", "task": 1, "version": 0, "wants_loss": False}
    task = DXO(DataKind.WEIGHTS, dict(MODEL), {"fedraw": meta})
    reply = site.execute("train", task.to_shareable())
    found: set[str] = set()

    def note(table: dict[Any, Any]) -> dict[Any, Any]:
        found.add(table.get("__fobs_type__", "dict"))
        return table

    msgpack.unpackb(fobs.serialize(reply, DatumManager()), strict_map_key=False, object_hook=note)
    assert found == {
        "dict",
        "nvflare.apis.shareable.Shareable",
        "nvflare.apis.dxo.DataKind",
        "numpy.ndarray",
    }


class Trap:
    """An object that writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_does_not_get_through_fobs(tmp_path: Path) -> None:
    """A pickle is refused in an array of objects, and as a class that FOBS should load."""
    trace = tmp_path / "unpickled"
    with pytest.raises(Exception, match="Object arrays cannot be saved"):
        over_the_wire(DXO(DataKind.WEIGHTS, {"w": np.array([Trap(trace)])}).to_shareable())
    forged = {
        "__fobs_type__": "pathlib.Path",
        "__fobs_data__": {"path": str(trace)},
        "__fobs_dc__": "nvflare.fuel.utils.fobs.decomposer.DataClassDecomposer",
    }
    with pytest.raises(ValueError, match=r"pathlib.Path' is not allowed"):
        fobs.deserialize(msgpack.packb({"w": forged}), DatumManager())
    tensor = {**forged, "__fobs_type__": "torch.Tensor"}
    with pytest.raises(ValueError, match=r"torch.Tensor' is not allowed"):
        fobs.deserialize(msgpack.packb({"w": tensor}), DatumManager())
    assert not trace.exists()


@pytest.mark.parametrize("honest", [0, 3])
def test_a_huge_update_is_refused_even_as_the_first_update(honest: int, tmp_path: Path) -> None:
    trained: list[int] = []

    def change(reply: Shareable) -> None:
        trained.append(1)
        if len(trained) > honest:
            tensor("w", np.full((2, 2), 1e30, np.float32))(reply)

    a_federation(tmp_path / "run", change).run()
    assert len(log(tmp_path / "run", "arrival", "west")) == honest
    words = [r["reason"] for r in log(tmp_path / "run", "rejected", "west")]
    assert len(words) == PATIENCE and all("more than 10 times the " in reason for reason in words)
    check_end(tmp_path / "run")


def test_a_site_that_recovers_takes_part_again(tmp_path: Path) -> None:
    trained: list[int] = []

    def change(reply: Shareable) -> None:
        trained.append(1)
        if len(trained) <= PATIENCE:
            raise ArithmeticError

    a_federation(tmp_path / "run", change, quarantine=0.005).run()
    assert len(log(tmp_path / "run", "left", "west")) == 1
    assert len(log(tmp_path / "run", "joined", "west")) == 2
    assert log(tmp_path / "run", "arrival", "west")
    check_end(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (fact("counts", {"owl": -5}), "count -5 is negative"),
        (fact("counts", {}), "reports no labels"),
        (fact("counts", {"owl": 0.5}), "not a whole number"),
        (fact("counts", {"x" * 300: 5}), "a label of 300 characters"),
        (fact("error", "OSError: no such disk"), "its script failed: OSError: no such disk"),
        (raising, "replied EXECUTION_EXCEPTION"),
    ],
    ids=["negative", "no-labels", "fraction", "long-label", "error", "exception"],
)
def test_a_site_with_an_invalid_summary_may_not_join(
    change: Change, words: str, tmp_path: Path
) -> None:
    flare = a_federation(tmp_path / "run", change, kind="fedraw_summary", min_clients=3)
    west = flare.sites[-1]
    west.is_offline = True  # until training has begun: the log begins then, too

    def before() -> None:
        west.is_offline = "train" not in flare.sites[0].asked

    flare.before = before
    flare.run()
    told = [r["reason"] for r in log(tmp_path / "run", "note")]
    assert any(words in reason for reason in told), told
    assert {r["client"] for r in log(tmp_path / "run", "joined")} == OTHERS
    assert "train" not in west.asked
    check_end(tmp_path / "run")


def test_invalid_new_counts_are_logged_and_the_old_counts_stay(tmp_path: Path) -> None:
    a_federation(tmp_path / "run", fact("counts", {"owl": -5})).run()
    told = [r["reason"] for r in log(tmp_path / "run", "note", "west")]
    assert told and all("new label counts are refused" in reason for reason in told)
    assert not log(tmp_path / "run", "declared")
    assert log(tmp_path / "run", "arrival", "west"), "the update itself was in order"
    check_end(tmp_path / "run")


def test_a_duplicate_reply_counts_once(tmp_path: Path) -> None:
    flare = a_federation(tmp_path / "run")
    flare.times = lambda site, task_id, name, reply: 2
    flare.run()
    arrivals = log(tmp_path / "run", "arrival")
    stamps = [(r["client"], r["start_time"], r["start_version"]) for r in arrivals]
    assert len(set(stamps)) == len(stamps)
    assert not log(tmp_path / "run", "left") and not log(tmp_path / "run", "rejected")
    check_end(tmp_path / "run")


def test_an_old_reply_to_a_new_task_is_refused(tmp_path: Path) -> None:
    first: list[Shareable] = []

    def change(reply: Shareable) -> Shareable:
        first.append(over_the_wire(reply))
        return first[0]

    a_federation(tmp_path / "run", change).run()
    assert len(log(tmp_path / "run", "arrival", "west")) == 1
    (left,) = log(tmp_path / "run", "left", "west")
    assert "but replied for version 0" in left["reason"]
    check_end(tmp_path / "run")


def test_a_late_reply_counts_if_no_newer_reply_arrived(tmp_path: Path) -> None:
    """`west` delays its first reply until after its deadline."""
    flare = a_federation(tmp_path / "run", deadline=0.3, arrivals=300, norm_bound=1e9)
    held: list[tuple[str, str, Shareable]] = []

    def times(site: str, task_id: str, name: str, reply: Shareable) -> int:
        if site == "west" and name == "train" and not held:
            held.append((task_id, name, reply))
            flare.sites[-1].is_offline = True
            return 0
        return 1

    def before() -> None:
        late = held and any("no reply in" in r["reason"] for r in log(tmp_path / "run", "note"))
        if late and flare.sites[-1].is_offline:
            task_id, name, reply = held[0]
            with flare.engine.new_context() as fl_ctx:
                client = flare.communicator._client_task_map[task_id].client
                flare.communicator.process_submission(client, name, task_id, reply, fl_ctx)
            flare.sites[-1].is_offline = False

    flare.times, flare.before = times, before
    flare.run()
    notes = [r["reason"] for r in log(tmp_path / "run", "note", "west")]
    assert any("no reply in" in reason for reason in notes)
    first = log(tmp_path / "run", "arrival", "west")[0]
    assert first["start_version"] == 0
    assert first["time"] - first["start_time"] > 0.3


def test_a_repeated_request_for_a_task_does_not_crash_flares_monitor(tmp_path: Path) -> None:
    """The reply to a site's request for a task can be lost; the site then asks again."""
    flare = a_federation(tmp_path / "run", arrivals=ARRIVALS)
    lost: list[str] = []

    def times(site: str, task_id: str, name: str, reply: Shareable) -> int:
        if name == "train" and site not in lost:
            lost.append(site)
            return 0
        return 1

    flare.times = times
    flare.run()
    check_end(tmp_path / "run")
    assert set(lost) == set(LABELS)
    assert flare.monitor_was_alive


def test_a_new_job_continues_the_folder_of_an_aborted_job(tmp_path: Path) -> None:
    first = a_federation(tmp_path / "run")

    def stop_after_ten() -> None:
        started = (tmp_path / "run" / "events.jsonl").exists()
        if started and len(log(tmp_path / "run", "arrival")) >= 10:
            first.abort.trigger(True)

    first.before = stop_after_ten
    first.run()
    accepted = log(tmp_path / "run", "arrival")
    assert 10 <= len(accepted) < ARRIVALS
    assert not log(tmp_path / "run", "end")
    a_federation(tmp_path / "run").run()
    assert log(tmp_path / "run", "arrival")[: len(accepted)] == accepted
    assert len(log(tmp_path / "run", "restarted")) == 1
    check_end(tmp_path / "run")


def test_sites_evaluate_the_model_on_their_own_data(tmp_path: Path) -> None:
    flare = a_federation(tmp_path / "run", federated_evaluation=True, evaluate_every=10)
    for site in flare.sites:
        right = "owl" if site.name == "west" else "cat"
        site.api._evaluate = lambda params, right=right: (Recall.of([right], [right]), {"auc": 0.5})
    flare.run()
    check_end(tmp_path / "run")
    evaluation = log(tmp_path / "run", "evaluation")[-1]
    assert evaluation["recall"] == {"cat": 100.0, "owl": 100.0}
    assert evaluation["own"] == {"auc": 0.5}
    assert evaluation["sites"] == 4


@pytest.mark.parametrize("sign_of_life", ["jobHeartbeat", "getTask"])
def test_a_silent_site_leaves_if_it_has_sent_heartbeats(
    sign_of_life: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLARE's simulator sends no heartbeats, and a site may train for a long time."""
    monkeypatch.setattr(controller_module, "LONGEST_SILENCE", 0.2)
    flare = a_federation(tmp_path / "run", absence=0.1, seconds=2.0, arrivals=10**6, norm_bound=1e9)
    flare.sign_of_life = sign_of_life

    def before() -> None:
        flare.sites[-1].is_offline = "train" in flare.sites[-1].asked

    flare.before = before
    flare.run()
    left = [r["reason"] for r in log(tmp_path / "run", "left")]
    if sign_of_life == "getTask":
        assert left == []
    else:
        assert len(left) == 1 and "out of reach" in left[0]
    assert {r["client"] for r in log(tmp_path / "run", "arrival")} >= OTHERS


def slow_evaluation(arrays: Any) -> dict[str, float]:
    time.sleep(1.5)
    return {"auc": 0.5}


@pytest.mark.parametrize("absence", [0.75, 0.0])
def test_connected_sites_stay_members_while_the_server_is_busy(
    absence: float, tmp_path: Path
) -> None:
    flare = a_federation(tmp_path / "run", absence=absence, evaluate_every=15)
    flare.controller.evaluate = f"{__name__}:slow_evaluation"
    flare.run()
    assert not log(tmp_path / "run", "left")
    check_end(tmp_path / "run")


def test_a_mistake_in_the_settings_ends_the_job_with_its_reason(tmp_path: Path) -> None:
    controller = FederationController("nowhere:model", {"arrivals": 1, "folder": "x"})
    flare = MemoryFlare(controller, [], tmp_path)
    flare.run()
    (reason,) = flare.engine.panic
    assert "model = 'nowhere:model': No module named 'nowhere'" in reason
