"""One pass: what it keeps of the contract of all methods, and what is its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies.server import bits

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.linear_head import LinearHead
from fedraw.core.sums import MOST_SAMPLES, SumsShape, digest, on_grid
from fedraw.core.types import ClientId, Floats, Ints
from fedraw.core.update import Update
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.storage import snapshot
from fedraw.strategies.one_pass import OnePass, OnePassState
from fedraw.strategies.protocol import Arrived, Declared, Joined, Left, Needs, Receivers, Setup

USUAL = OnePass()
LABELS = ("x", "y", "z")
SHAPE = SumsShape(3, 4)
LAYOUT = Layout.of([("weight", (3, 4)), ("bias", (3,))])
RNG = np.random.default_rng(7)
# Six clients; only client 5 has label z.
OWN: dict[ClientId, Ints] = {
    0: np.repeat([0, 1], [9, 3]),
    1: np.repeat([0], [20]),
    2: np.repeat([0, 1], [1, 1]),
    3: np.repeat([1], [14]),
    4: np.repeat([0, 1], [2, 9]),
    5: np.repeat([0, 1, 2], [1, 2, 15]),
}
MEANS = np.array([[2.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0]])
FEATURES = {c: on_grid(MEANS[own] + RNG.normal(size=(len(own), 4))) for c, own in OWN.items()}


def counts_of(labels: Ints) -> dict[str, int]:
    return {LABELS[i]: int(n) for i, n in enumerate(np.bincount(labels, minlength=3)) if n}


def update(client: ClientId, floor: int = 1, **changes: Any) -> Update:
    message: Any = SHAPE.of_samples(FEATURES[client], OWN[client], floor)
    return replace(Update(client, 0, message, len(OWN[client])), **changes)


def begun(strategy: OnePass = USUAL) -> tuple[OnePassState, Receivers]:
    table = LabelTable.from_counts({c: counts_of(own) for c, own in OWN.items()})
    return strategy.start(Setup(np.zeros(15, np.float32), table, LAYOUT, LABELS))


def heard(order: list[Any], strategy: OnePass = USUAL) -> OnePassState:
    state, _ = begun(strategy)
    for client in order:
        state, receivers = strategy.step(state, Arrived(update(client, strategy.floor)))
        assert not receivers
    return state


def totals_of(clients: Any) -> Floats:
    total = SHAPE.zeros()
    for client in clients:
        total += update(client).vector
    return total


def test_every_client_is_asked_once_and_the_model_is_solved_from_all() -> None:
    state, receivers = begun()
    assert list(receivers) == list(OWN)
    state = heard(list(OWN))
    whole = SHAPE.of_samples(np.concatenate(list(FEATURES.values())),
                             np.concatenate(list(OWN.values())))  # fmt: skip
    assert digest(state.totals) == digest(whole)
    assert state.model.tobytes() == LinearHead().solve(SHAPE, whole).tobytes()
    assert state.version == 6


@settings(deadline=None)
@given(st.permutations(list(OWN)))
def test_the_order_does_not_matter_to_the_bit(order: list[Any]) -> None:
    one, other = heard(order), heard(list(OWN))
    assert digest(one.totals) == digest(other.totals)
    assert one.model.tobytes() == other.model.tobytes()


def test_a_label_counts_in_full_once_its_holder_was_heard() -> None:
    own = FEATURES[5][OWN[5] == 2]
    for order in ([5, 0, 3], [0, 3, 5], [0, 1, 2, 3, 4, 5]):
        model = heard(order).model
        scores = own @ model[:12].reshape(3, 4).T + model[12:]
        assert np.mean(np.argmax(scores, axis=1) == 2) > 0.7
    model = heard([0, 1, 2, 3, 4]).model
    scores = own @ model[:12].reshape(3, 4).T + model[12:]
    assert 2 not in np.argmax(scores, axis=1)


def test_it_is_finished_when_every_member_was_heard() -> None:
    state, strategy = begun()[0], OnePass()
    for client in OWN:
        assert state.finished is None
        state, _ = strategy.step(state, Arrived(update(client)))
    assert state.finished == "every member was heard"


def test_labels_of_which_nobody_has_sent_samples_are_named_when_it_finishes() -> None:
    """Client 5 alone has label z; with a floor of 19 nobody sends labels y and z."""
    state = heard([0, 1, 2, 3, 4])
    state, _ = USUAL.step(state, Left(5))
    assert state.finished == (
        "every member was heard; nobody has sent samples of z, and the model leaves it out; check "
        "the label counts and the floor"
    )
    with_floor = heard(list(OWN), OnePass(floor=19))
    assert "nobody has sent samples of y, z, and the model leaves them out" in (
        with_floor.finished or ""
    )


def test_who_leaves_unheard_is_no_longer_waited_for_and_who_was_heard_stays() -> None:
    strategy, state = OnePass(), heard([0, 1, 2, 3, 4])
    state, receivers = strategy.step(state, Left(0))
    assert not receivers
    assert digest(state.totals) == digest(totals_of([0, 1, 2, 3, 4]))
    state, _ = strategy.step(state, Left(5))
    assert state.finished is not None


def test_a_newcomer_and_a_member_with_new_labels_are_asked() -> None:
    strategy, state = OnePass(), heard(list(OWN))
    state, _ = strategy.step(state, Left(5))
    state, receivers = strategy.step(state, Joined(5, counts_of(OWN[5])))
    assert list(receivers) == [5]
    assert state.finished is None
    state, _ = strategy.step(state, Arrived(update(5)))
    assert digest(state.totals) == digest(totals_of(OWN))
    state, receivers = strategy.step(state, Declared(1, {"y": 14}))
    assert list(receivers) == [1]
    moved = replace(update(3), client=1)
    state, _ = strategy.step(state, Arrived(moved))
    assert digest(state.totals) == digest(totals_of([0, 2, 3, 3, 4, 5]))


@settings(deadline=None)
@given(st.permutations(list(OWN)), st.sampled_from(list(OWN)))
def test_a_client_that_is_forgotten_was_never_heard(order: list[Any], gone: Any) -> None:
    state = heard(order)
    assert state.forget(gone)
    assert not state.forget(gone)
    never = heard([client for client in order if client != gone])
    assert digest(state.totals) == digest(never.totals)
    assert state.model.tobytes() == never.model.tobytes()
    assert gone not in state.contents.clients


def test_weights_are_the_shares_of_samples() -> None:
    assert heard([3, 5]).contents == ((3, 5), (14 / 32, 18 / 32))


@pytest.mark.parametrize("arrivals", range(7))
def test_a_run_goes_on_bit_for_bit_from_disk(arrivals: int, tmp_path: Path) -> None:
    strategy, state = OnePass(), heard(list(OWN)[:arrivals])
    snapshot.save(state, tmp_path / "state")
    restored = snapshot.load(OnePassState, tmp_path / "state")
    assert bits(restored) == bits(state)
    for client in list(OWN)[arrivals:]:
        state, _ = strategy.step(state, Arrived(update(client)))
        restored, _ = strategy.step(restored, Arrived(update(client)))
    assert bits(restored) == bits(state)
    assert restored.model.tobytes() == state.model.tobytes()


def test_the_model_is_solved_when_somebody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []
    solve = LinearHead.solve

    def noted(*own: Any) -> Any:
        solved.append(1)
        return solve(*own)

    monkeypatch.setattr(LinearHead, "solve", noted)
    state = heard(list(OWN))
    assert not solved
    assert state.model is state.model
    assert len(solved) == 1
    with pytest.raises(ValueError, match="read-only"):
        state.model[0] = 1


def test_the_floor_goes_to_the_clients_and_is_checked() -> None:
    strategy = OnePass(floor=3)
    assert strategy.needs.payload.floor == 3  # type: ignore[union-attr]
    state = heard(list(OWN), strategy)
    assert SHAPE.counts(state.totals).tolist() == [29, 26, 15]
    state, _ = begun(strategy)
    with pytest.raises(RefusedUpdate, match="the sums of 2 samples of label 'x' and declares 0"):
        strategy.step(state, Arrived(update(4, floor=1)))


TOO_MANY: Any = update(5).vector.copy()
TOO_MANY[1] += 1
BAD: list[tuple[dict[str, Any], str]] = [
    ({"client": "stranger"}, "client 'stranger' is unknown; it has to join first"),
    ({"vector": update(5).vector[:-1]}, "client 5 sent 24 numbers, a message of this method has"),
    ({"vector": update(5).vector.astype(np.float32)}, "numbers of type float32, not float64"),
    ({"vector": np.full(25, np.nan)}, "client 5 sent 25 numbers that are NaN or infinite"),
    ({"start_version": 3}, "client 5 started from version 3, the newest is"),
    ({"examples": 0}, "client 5 trained on 0 examples"),
    ({"examples": 4}, "client 5 sent counts of 18 samples, and says that it has 4"),
    ({"vector": update(5).vector * 2, "examples": 36}, "sums of 2 samples of label 'x' and decl"),
    ({"vector": TOO_MANY, "examples": 19}, "sums of 3 samples of label 'y' and declares 2"),
    ({"vector": update(5).vector * 1e6, "examples": 18e6}, "client 5 sent the sums of 1,000,000"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), BAD)
def test_an_unusable_message_is_named_and_leaves_no_trace(
    change: dict[str, Any], words: str
) -> None:
    strategy, state = OnePass(), heard([0, 5])
    before, model = bits(state), state.model
    with pytest.raises(RefusedUpdate, match=words):
        strategy.step(state, Arrived(replace(update(5), **change)))
    assert bits(state) == before
    assert state.model is model


def test_totals_have_room_for_so_many_samples() -> None:
    strategy = OnePass()
    table = LabelTable.from_counts({0: {"x": MOST_SAMPLES}, 1: {"x": 1}})
    state, _ = strategy.start(Setup(np.zeros(15, np.float32), table, LAYOUT, LABELS))
    one: Any = SHAPE.of_samples(np.ones((1, 4)), np.zeros(1, np.int64))
    state, _ = strategy.step(state, Arrived(Update(0, 0, one * MOST_SAMPLES, MOST_SAMPLES)))
    with pytest.raises(RefusedUpdate, match="more than 33,554,432 samples"):
        strategy.step(state, Arrived(Update(1, 0, one, 1)))
    state, _ = strategy.step(state, Arrived(Update(0, 0, one * MOST_SAMPLES, MOST_SAMPLES)))


def test_a_model_that_is_no_linear_layer_is_refused() -> None:
    table = LabelTable.from_counts({0: {"x": 1}})
    with pytest.raises(BadInput, match="one linear layer with weights and biases"):
        OnePass().start(Setup(np.zeros(5, np.float32), table))


REGRESSION = OnePass(readout="regression")
# Two targets that are linear in the four features.
TARGETS = {
    c: on_grid(own @ [[1, 0], [-0.5, 0.5], [0, 1], [0, 0]] + 1) for c, own in FEATURES.items()
}


def of_targets(client: ClientId, strategy: OnePass = REGRESSION, **changes: Any) -> Update:
    payload = strategy.payload
    message: Any = payload.exact(payload.shape(2, 4), FEATURES[client], TARGETS[client])
    return replace(Update(client, 0, message, len(OWN[client])), **changes)


def regressed(order: list[Any], strategy: OnePass = REGRESSION) -> OnePassState:
    """The state of a regression; the labels that clients declare are groups."""
    table = LabelTable.from_counts({c: counts_of(own) for c, own in OWN.items()})
    layout = Layout.of([("weight", (2, 4)), ("bias", (2,))])
    state, receivers = strategy.start(Setup(np.zeros(10, np.float32), table, layout, LABELS))
    assert list(receivers) == list(OWN)
    for client in order:
        state, _ = strategy.step(state, Arrived(of_targets(client, strategy)))
    return state


@settings(deadline=None)
@given(st.permutations(list(OWN)), st.sampled_from(list(OWN)))
def test_a_regression_depends_neither_on_order_nor_on_who_is_forgotten(
    order: list[Any], gone: Any
) -> None:
    state = regressed(order)
    assert digest(state.totals) == digest(regressed(list(OWN)).totals)
    assert state.model.tobytes() == regressed(list(OWN)).model.tobytes()
    state.forget(gone)
    never = regressed([client for client in OWN if client != gone])
    assert digest(state.totals) == digest(never.totals)
    assert state.model.tobytes() == never.model.tobytes()


def test_a_regression_finds_the_line_of_all_samples(tmp_path: Path) -> None:
    state = regressed(list(OWN))
    weights, biases = state.model[:8].reshape(2, 4), state.model[8:]
    assert weights == pytest.approx(np.array([[1, -0.5, 0, 0], [0, 0.5, 1, 0]]), abs=2e-3)
    assert biases == pytest.approx([1, 1], abs=2e-3)
    assert state.finished == "every member was heard"
    assert state.contents.weights == tuple(len(own) / 77 for own in OWN.values())
    snapshot.save(state, tmp_path / "state")
    restored = snapshot.load(OnePassState, tmp_path / "state")
    assert bits(restored) == bits(state)
    assert restored.model.tobytes() == state.model.tobytes()


def test_clients_below_the_floor_send_zeros_in_a_regression() -> None:
    state = regressed(list(OWN), OnePass(readout="regression", floor=12))
    assert state.shape.counts(state.totals).tolist() == [
        64
    ]  # without clients 2 and 4, with 2 and 11
    nothing = regressed(list(OWN), OnePass(readout="regression", floor=99))
    assert not nothing.model.any()
    assert "the totals tell of no samples" in (nothing.finished or "")


def test_targets_that_are_too_small_for_the_grid_are_named() -> None:
    state, payload = regressed([]), REGRESSION.payload
    for client in OWN:
        message: Any = payload.exact(state.shape, FEATURES[client], TARGETS[client] / 1000)
        state, _ = REGRESSION.step(state, Arrived(of_targets(client, vector=message)))
    assert "no target has a standard deviation of 0.03125" in (state.finished or "")


WITHOUT_ONE: Any = REGRESSION.payload.exact(SumsShape(1, 6, 2), FEATURES[5][1:], TARGETS[5][1:])
BAD_TARGETS: list[tuple[dict[str, Any], str]] = [
    ({"vector": update(5).vector}, "client 5 sent 25 numbers, a message of this method has 28"),
    ({"vector": WITHOUT_ONE}, "sent the sums of 17 samples and declares 18; declare the counts"),
    ({"vector": of_targets(5).vector * 2, "examples": 36}, "sums of 36 samples and declares 18"),
    ({"vector": of_targets(5).vector + 0.3}, "client 5 sent counts that are not whole numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), BAD_TARGETS)
def test_unusable_sums_of_targets_leave_no_trace(change: dict[str, Any], words: str) -> None:
    state = regressed([0, 1])
    before = bits(state)
    with pytest.raises(RefusedUpdate, match=words):
        REGRESSION.step(state, Arrived(of_targets(5, **change)))
    assert bits(state) == before


def test_a_far_mean_of_a_regression_is_named_without_a_label() -> None:
    state, payload = regressed([]), REGRESSION.payload
    for client in OWN:
        moved = FEATURES[client] + (8.0 if client == 1 else 0.0)
        message: Any = payload.exact(state.shape, moved, TARGETS[client])
        state, _ = REGRESSION.step(state, Arrived(of_targets(client, vector=message)))
    assert "compare the samples of client 1: its mean is" in (state.finished or "")


NOISY = OnePass(epsilon=2.0)


def noisy_update(client: ClientId, **changes: Any) -> Update:
    payload: Any = NOISY.needs.payload
    exact = payload.exact(SHAPE, FEATURES[client], OWN[client])
    message = payload.sent(SHAPE, exact, np.random.default_rng(int(client)))
    examples = payload.examples(SHAPE, message, len(OWN[client]))
    return replace(Update(client, 0, message, examples), **changes)


def heard_with_noise(order: list[Any]) -> OnePassState:
    state, _ = begun(NOISY)
    for client in order:
        state, _ = NOISY.step(state, Arrived(noisy_update(client)))
    return state


@settings(deadline=None)
@given(st.permutations(list(OWN)), st.sampled_from(list(OWN)))
def test_noise_keeps_order_and_forgetting_exact(order: list[Any], gone: Any) -> None:
    state = heard_with_noise(order)
    assert digest(state.totals) == digest(heard_with_noise(list(OWN)).totals)
    state.forget(gone)
    never = heard_with_noise([client for client in OWN if client != gone])
    assert digest(state.totals) == digest(never.totals)
    assert state.model.tobytes() == never.model.tobytes()


def test_labels_that_noise_hides_are_named_when_it_finishes() -> None:
    """30 to 40 samples of a label, and noise of 14 in the count of each label."""
    state = heard_with_noise(list(OWN))
    assert state.noise is not None
    assert state.noise.counts == pytest.approx(np.sqrt(6) * NOISY.privacy.noise(SHAPE).counts)  # type: ignore[union-attr]
    hidden = [LABELS[i] for i in range(3) if SHAPE.counts(state.totals)[i] < 2 * state.noise.counts]
    assert hidden
    reason = state.finished or ""
    assert reason.startswith("every member was heard; noise hides whether anyone has")
    assert all(label in reason for label in hidden)
    assert (state.model[12:][[LABELS.index(label) for label in hidden]] < -1e8).all()


def test_a_state_with_noise_goes_on_from_disk(tmp_path: Path) -> None:
    state = heard_with_noise([0, 1, 2])
    snapshot.save(state, tmp_path / "state")
    restored = snapshot.load(OnePassState, tmp_path / "state")
    assert bits(restored) == bits(state)
    assert restored.model.tobytes() == state.model.tobytes()


def test_noisy_counts_are_not_compared_with_declared_ones_but_bounded() -> None:
    state, _ = begun(NOISY)
    wrong: Any = noisy_update(5).vector.copy()
    wrong[0] = 0.5
    with pytest.raises(RefusedUpdate, match="client 5 sent counts that are not whole numbers"):
        NOISY.step(state, Arrived(noisy_update(5, vector=wrong)))
    state, _ = NOISY.step(state, Arrived(noisy_update(5)))
    assert state.awaited.get(5) is None


def test_noise_beyond_exact_totals_is_refused() -> None:
    strategy = OnePass(epsilon=0.01, delta=1e-12, clip=5000.0)
    state, _ = begun(strategy)
    assert strategy.privacy is not None
    message: Any = strategy.privacy.noised(SHAPE, SHAPE.zeros(), np.random.default_rng(0))
    with pytest.raises(RefusedUpdate, match="the totals would be above 8,589,934,592"):
        strategy.step(state, Arrived(Update(0, 0, message, 1)))


def test_a_far_mean_is_named_when_it_finishes() -> None:
    """Client 1 has 20 samples of label x, 8 deviations away; three others have that label."""
    state = begun()[0]
    for client, own in OWN.items():
        moved = FEATURES[client] + (8.0 if client == 1 else 0.0)
        message: Any = SHAPE.of_samples(moved, own)
        state, _ = USUAL.step(state, Arrived(Update(client, 0, message, len(own))))
    assert "compare the samples of client 1: its mean of label 'x' is" in (state.finished or "")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"clip": 2.0}, "clip = 2.0 has no effect without epsilon"),
        ({"delta": 1e-6}, "delta = 1e-06 has no effect without epsilon"),
        ({"group": 3}, "group = 3 has no effect without epsilon"),
        ({"epsilon": 1.0, "floor": 5}, "floor = 5 does not go with epsilon"),
    ],
)
def test_settings_of_noise_that_cannot_hold_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        OnePass(**wrong)


@pytest.mark.parametrize("wrong", [{"sends": "sums"}, {"payload": OnePass().needs.payload}])
def test_sums_and_their_form_are_declared_together(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="clients that send sums have a payload, and no others"):
        Needs(**wrong)
