"""A server clips updates and adds noise before it uses or stores them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.server.conftest import MakeEngine
from tests.server.engine import LAYOUT, Engine

from fedraw.core.layout import Layout
from fedraw.errors import BadInput
from fedraw.privacy.updates import UpdatePrivacy
from fedraw.server.discarded import add_discarded, discarded_updates
from fedraw.server.rollback import backup, rollback
from fedraw.strategies.fedasync import FedAsync
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.qfedavg import QFedAvg

pytest.importorskip("opendp")
CLIPPED = UpdatePrivacy(clip=5.0, noise=0.0)
LONG = np.array([6, 8, 0, 0], np.float32)


def journal(engine: Engine) -> list[list[float]]:
    """The vectors of all accepted updates on disk."""
    kept = engine.coordinator._store.journal
    return [kept.read(event)[0].vector.tolist() for event in kept.events()]


def sending(engine: Engine, change: Any) -> None:
    for site in engine.sites.values():
        site.reply = lambda task, honest: replace(
            honest, vector=np.asarray(task.model + change, np.float32), is_model=True
        )


@pytest.mark.parametrize(
    ("strategy", "stored"), [(FedFa(buffer=4), [3, 4, 0, 0]), (FedBuff(buffer=4), [3, 4, 0, 0])]
)
def test_every_update_is_clipped_for_models_and_for_differences(
    make_engine: MakeEngine, strategy: Any, stored: list[float]
) -> None:
    """The first four updates start from a model of zeros, so models equal differences."""
    engine = make_engine(strategy, update_privacy=CLIPPED, norm_bound=100.0)
    sending(engine, LONG)
    engine.accept(3)
    assert journal(engine)[:3] == [pytest.approx(stored)] * 3
    assert [r["norm"] for r in engine.log("arrival")] == [pytest.approx(10.0)] * 3


def test_noise_is_on_the_disk_and_survives_a_restart(make_engine: MakeEngine) -> None:
    engine = make_engine(
        FedBuff(buffer=2), update_privacy=UpdatePrivacy(1.0, 0.5), norm_bound=100.0
    )
    sending(engine, LONG)
    engine.accept(3)
    before, model = journal(engine), engine.coordinator._store.strategy_state.model.copy()
    assert before[0] != pytest.approx([0.6, 0.8, 0, 0], abs=1e-3)
    assert before[0] != before[1]
    engine.restart()
    assert journal(engine) == before
    assert engine.coordinator._store.strategy_state.model.tolist() == model.tolist()


def test_the_logged_budget_counts_updates_before_a_restart(make_engine: MakeEngine) -> None:
    """`north` sends one update per second; four updates at noise 4 have an epsilon of 2.1."""
    engine = make_engine(
        update_privacy=UpdatePrivacy(1.0, 4.0),
        norm_bound=100.0,
        evaluate=lambda model: {"x": 1.0},
        evaluate_every=4,
    )
    sending(engine, LONG / 10)
    engine.accept(4)
    engine.restart()
    engine.accept(8)
    notes = [r["reason"] for r in engine.log("note") if r["reason"].startswith("update privacy")]
    sent = [r["client"] for r in engine.log("arrival")]
    assert len(notes) == 2
    assert f"after {sent.count('north')} updates of 'north'" in notes[1]
    epsilon = UpdatePrivacy(1.0, 4.0).epsilon(sent.count("north"))
    assert f"epsilon = {epsilon:.3g} at delta = 1e-05" in notes[1]


def budget_note(engine: Engine) -> str:
    """The first note of the privacy budget in a log after a rollback."""
    notes = [str(r["reason"]) for r in engine.log("note")]
    first = next(i for i, note in enumerate(notes) if note.startswith("rolled back"))
    return next(note for note in notes[first:] if note.startswith("update privacy"))


def test_the_budget_counts_updates_that_a_rollback_removes(make_engine: MakeEngine) -> None:
    """Two rollbacks to the first model remove 6 and 4 of `north`'s updates; then it sends 4."""
    engine = make_engine(
        FedAsync(),
        sites={"north": {"cat": 1}, "south": {"cat": 1}},
        update_privacy=UpdatePrivacy(1.0, 4.0),
        evaluate=lambda model: {"x": 1.0},
    )
    engine.sites["south"].seconds = 1e9
    for arrivals in (6, 4):
        engine.accept(arrivals)
        engine.coordinator.abandon()
        rollback(engine.settings.folder, "0")
        engine.restart(evaluate_every=4)
        assert engine.coordinator.accepted == 0
    engine.accept(4)
    assert "after 14 updates of 'north'" in budget_note(engine)
    at = engine.settings.folder.with_name("backup")
    backup(engine.settings.folder, at)
    assert discarded_updates(at) == {"north": 10}


def test_a_repeated_rollback_counts_updates_once(tmp_path: Path) -> None:
    """The first attempt finds 3 and 2 updates; the second finds those that it has not removed."""
    add_discarded(tmp_path, "to version 4", {"north": 3, "south": 2})
    add_discarded(tmp_path, "to version 4", {"south": 2})
    add_discarded(tmp_path, "to version 2", {"north": 1})
    assert discarded_updates(tmp_path) == {"north": 4, "south": 2}
    assert (tmp_path / "discarded.json").stat().st_mode & 0o77 == 0


def test_an_unreadable_list_of_discarded_updates_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(update_privacy=CLIPPED)
    engine.coordinator.abandon()
    (engine.settings.folder / "discarded.json").write_text("[]", encoding="utf-8")
    with pytest.raises(BadInput, match=r"discarded.json is not a list of updates"):
        engine.restart()


def test_update_privacy_refuses_statistics_and_losses(make_engine: MakeEngine) -> None:
    norms = Layout.of([("w", (4,))], [("bn.running_var", (1,))])
    with pytest.raises(BadInput, match="does not protect batch-norm statistics"):
        make_engine(layout=norms, update_privacy=CLIPPED)
    with pytest.raises(BadInput, match="does not protect the losses"):
        make_engine(QFedAvg(lr=0.1), folder="two", update_privacy=CLIPPED)
    assert LAYOUT.statistics_count == 0
