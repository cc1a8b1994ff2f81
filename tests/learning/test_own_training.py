"""A user's own training function: its arguments, its results, and errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.suite.processor import skip_if_bfloat16_kills
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fedraw.core.types import Ints, Vector
from fedraw.errors import BadInput, TrainingFailed
from fedraw.learning.models import build
from fedraw.learning.own_training import Outcome, OwnTraining, Request
from fedraw.learning.sgd import SGD
from fedraw.learning.training import Trainer
from fedraw.learning.vectors import to_vector

SAMPLES = 41


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def samples() -> tuple[npt.NDArray[np.float32], Ints]:
    return rng(1).random((SAMPLES, 1, 8, 8), dtype=np.float32), rng(2).integers(10, size=SAMPLES)


def mlp() -> nn.Module:
    return build("mlp", (1, 8, 8), 10, rng())


def request(**changes: Any) -> Request:
    usual = Request(3, 0, 5, 70, 0.1, 0.0, False, rng(5), rng(6))
    return usual._replace(**changes)


def run(
    function: Callable[..., Any],
    module: nn.Module | None = None,
    settings: SGD = SGD(),  # noqa: B008 - it is frozen
    **changes: Any,
) -> Outcome:
    module = mlp() if module is None else module
    own = OwnTraining(function, module, settings)
    return own(to_vector(module), *samples(), request(**changes))


def sgd(model: Any, data: Any, context: Any) -> None:
    """The built-in training, written with plain torch."""
    optimizer = torch.optim.SGD(model.parameters(), context.lr)
    for _ in range(context.epochs):
        for x, y in data:
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(model(x), y) + context.proximal_term(model)
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("proximal", [0.0, 0.3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_users_loop_draws_and_learns_as_the_built_in_training(
    proximal: float, dropout: float
) -> None:
    module = nn.Sequential(mlp(), nn.Dropout(dropout))
    built_in = Trainer(module, SGD()).train(to_vector(module), *samples(), rng(5), proximal)
    own = run(sgd, module, proximal=proximal).vector
    assert np.abs(own - to_vector(module)).max() > 1e-2
    np.testing.assert_allclose(own, built_in, rtol=0, atol=1e-6)


def test_the_context_has_the_client_the_version_and_the_settings() -> None:
    seen: list[Any] = []

    def train(model: Any, data: Any, context: Any) -> None:
        assert model.training
        assert [len(y) for _, y in data] == [16, 16, 9]
        assert (len(data), data.batch, len(data.dataset)) == (3, 16, SAMPLES)
        seen.append((context.client, context.training, context.version, context.event))
        seen.append((context.lr, context.epochs, context.device.type, context.needs_loss))
        seen.append((context.rng.random(), torch.rand(1, generator=context.generator).item()))

    run(train, lr=0.02, training=4)
    assert seen[:2] == [(3, 4, 5, 70), (0.02, 2, "cpu", False)]
    run(train, lr=0.02, training=4)
    assert seen[3:] == seen[:3]
    run(train, rng=rng(7))
    assert seen[8] != seen[5]


def test_a_rate_that_nobody_has_set_is_no_rate() -> None:
    with pytest.raises(
        TrainingFailed, match=r"context\.lr: no learning rate is set .* training\.lr"
    ):
        run(sgd, lr=None)


def test_every_pass_has_a_new_order_of_the_same_samples() -> None:
    images, labels = samples()

    def train(model: Any, data: Any, context: Any) -> None:
        passes = [torch.cat([x for x, _ in data]) for _ in range(2)]
        assert not torch.equal(*passes)
        by_value = [sorted(p.flatten(1).sum(1).tolist()) for p in passes]
        assert by_value[0] == by_value[1]
        x, y = data.tensors()
        assert np.array_equal(x.numpy(), images)
        assert np.array_equal(y.numpy(), labels)
        loader = DataLoader(data.dataset, 7, shuffle=True, generator=context.generator)
        assert sum(len(y) for _, y in loader) == SAMPLES

    run(train)


def test_bytes_become_numbers_and_token_ids_stay_whole() -> None:
    def train(model: Any, data: Any, context: Any) -> dict[str, Any]:
        x, _ = data.tensors()
        return {"largest": x.max(), "whole": x.dtype == torch.int64}

    own = OwnTraining(train, nn.Linear(1, 2), SGD())
    zero, labels = to_vector(nn.Linear(1, 2)), np.array([0, 1])
    as_bytes = own(zero, np.array([[0], [255]], np.uint8), labels, request())
    assert as_bytes.metrics == {"largest": 1.0, "whole": 0.0}
    tokens = own(zero, np.array([[7], [255]], np.int32), labels, request())
    assert tokens.metrics == {"largest": 255.0, "whole": 1.0}


def test_a_function_cannot_change_the_data_of_the_run() -> None:
    images, labels = samples()
    kept = images.copy()

    def train(model: Any, data: Any, context: Any) -> None:
        for x, y in [data.tensors(), *data]:
            x.zero_()
            y.zero_()

    OwnTraining(train, mlp(), SGD())(to_vector(mlp()), images, labels, request())
    assert np.array_equal(images, kept)
    assert labels.any()


class Tied(nn.Module):
    """An autoencoder's two layers share one weight; the head is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.head = nn.Linear(64, 10).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.second(self.first(x.flatten(1)).relu()))
        return found


def moves_by_one(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(1)


def in_place(model: Any, data: Any, context: Any) -> None:
    moves_by_one(model)


def other_memory(model: Any, data: Any, context: Any) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data + (1 if parameter.requires_grad else 0)


def loaded(model: Any, data: Any, context: Any) -> None:
    other = copy.deepcopy(model)
    moves_by_one(other)
    model.load_state_dict(other.state_dict())


def assigned(model: Any, data: Any, context: Any) -> None:
    other = copy.deepcopy(model)
    moves_by_one(other)
    model.load_state_dict(other.state_dict(), assign=True)


def in_double(model: Any, data: Any, context: Any) -> None:
    model.double()
    moves_by_one(model)


def autocast(model: Any, data: Any, context: Any) -> None:
    skip_if_bfloat16_kills()
    (x, y), start = data.tensors(), copy.deepcopy(model.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = functional.cross_entropy(model(x), y)
    torch.autograd.backward(loss)
    torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.1).step()
    assert any((start[name] != now).any() for name, now in model.state_dict().items())
    model.load_state_dict(start)
    moves_by_one(model)


@pytest.mark.parametrize(
    "function",
    [in_place, other_memory, loaded, assigned, in_double, autocast],
    ids=lambda f: f.__name__,
)
def test_weights_are_returned_however_the_function_sets_them(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    module = Tied()
    start, trained = to_vector(module), run(function, module).vector
    trainable = 64 * 64 + 64 + 64  # one shared weight and two biases
    expected = start.copy()
    expected[:trainable] += 1
    np.testing.assert_allclose(trained, expected, rtol=1e-6)


def test_changes_on_the_model_object_do_not_reach_the_next_client() -> None:
    def train(model: Any, data: Any, context: Any) -> dict[str, Any]:
        found = {"seen": hasattr(model, "mark"), "frozen": not model[1].weight.requires_grad}
        model.mark = 1
        model[1].weight.requires_grad_(False)
        model.register_forward_hook(lambda *_: torch.zeros(1))
        model.eval()
        return found

    own = OwnTraining(train, mlp(), SGD())
    for _ in range(2):
        done = own(to_vector(mlp()), *samples(), request())
        assert done.metrics == {"seen": 0.0, "frozen": 0.0}


def test_metrics_may_be_any_kind_of_number_and_are_null_if_not_finite() -> None:
    done = run(lambda *_: {"a": torch.tensor(2.5), "b": np.float32(1), "c": float("nan"), 4: True})
    assert done.metrics == {"a": 2.5, "b": 1.0, "c": None, "4": 1.0}
    assert run(lambda *_: None).metrics is None


def test_each_client_keeps_its_own_state() -> None:
    def train(model: Any, data: Any, context: Any) -> None:
        context.state["count"] = context.state.get("count", 0) + 1
        context.state.setdefault("grad", torch.zeros(3))
        context.state["grad"][0] += 2

    first = run(train).state
    assert first is not None
    assert (first["count"].shape, first["count"].item()) == ((), 1)
    assert first["grad"].tolist() == [2, 0, 0]
    for array in first.values():
        array.setflags(write=False)  # as arrays from a cluster are
    second = run(train, state=first).state
    assert second is not None
    assert (second["count"].item(), second["grad"].tolist()) == (2, [4, 0, 0])
    assert first["grad"].tolist() == [2, 0, 0]
    assert run(lambda *_: None).state is None
    assert run(lambda m, d, context: context.state.clear(), state=first).state == {}


def test_numbers_of_half_precision_are_kept_exactly() -> None:
    half = torch.tensor([0.5, 3.0], dtype=torch.bfloat16)
    kept = run(lambda m, d, context: context.state.update(half=half)).state
    assert kept is not None
    assert (str(kept["half"].dtype), kept["half"].tolist()) == ("float32", [0.5, 3.0])


def test_the_loss_is_passed_on_only_if_the_strategy_needs_it() -> None:
    def train(model: Any, data: Any, context: Any) -> dict[str, float]:
        return {"loss": 2.0}

    assert run(train, needs_loss=True).loss == 2.0
    assert run(train).loss is None
    with pytest.raises(BadInput, match=r"needs the client's loss.*returned no 'loss'"):
        run(lambda *_: {"accuracy": 1.0}, needs_loss=True)


def test_a_proximal_term_that_is_ignored_is_refused() -> None:
    with pytest.raises(BadInput, match=r"client 3, training 0: .*proximal term \(ρ = 0.3\).*add"):
        run(lambda *_: None, proximal=0.3)
    run(lambda model, data, context: {"mine": context.proximal}, proximal=0.3)


def test_the_proximal_term_has_the_computed_value() -> None:
    def train(model: Any, data: Any, context: Any) -> dict[str, Any]:
        before = context.proximal_term(model).item()
        moves_by_one(model)
        return {"before": before, "after": context.proximal_term(model)}

    done = run(train, nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), proximal=0.5)
    assert done.metrics == {"before": 0.0, "after": 0.25 * 650}


def reshaped(model: Any, data: Any, context: Any) -> None:
    model[1] = nn.Linear(64, 3)


def removed(model: Any, data: Any, context: Any) -> None:
    del model[3]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda model, *_: model, "returned a Sequential; train the model in place"),
        (lambda *_: {"loss": "low"}, "returned 'loss': str, which is not a number"),
        (lambda *_: {"loss": torch.ones(2)}, "returned 'loss': Tensor, which is not a number"),
        (lambda m, d, context: context.state.update(a="text"), r"state\['a'\] is a str"),
        (lambda m, d, context: context.state.update({1: 2.0}), "a dict of arrays by name"),
        (reshaped, r"'1.weight' of shape \(64, 64\) has shape \(3, 64\)"),
        (removed, "'3.weight' of shape .* is missing"),
    ],
)
def test_unusable_results_are_refused_with_the_reason(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(BadInput, match=f"(?s)train = .*client 3, training 0.*{words}"):
        run(function)


def test_an_error_in_the_function_is_reported_with_the_users_traceback_only() -> None:
    def train(model: Any, data: Any, context: Any) -> None:
        raise KeyError("no such setting")

    with pytest.raises(TrainingFailed) as caught:
        run(train, client="clinic", training=7)
    text = str(caught.value)
    assert ".train, client 'clinic', training 7 failed with KeyError: 'no such setting'\n" in text
    assert 'raise KeyError("no such setting")' in text
    assert "own_training.py" not in text.replace(__file__, "")


def test_a_model_may_return_its_scores_in_a_dict_or_an_object() -> None:
    class Wrapped(nn.Module):
        def __init__(self, wrap: Callable[[torch.Tensor], Any]) -> None:
            super().__init__()
            self.inner, self.wrap = mlp(), wrap

        def forward(self, x: torch.Tensor) -> Any:
            return self.wrap(self.inner(x))

    def trained(wrap: Callable[[torch.Tensor], Any]) -> tuple[Vector, Ints, float]:
        module = build(lambda *_: Wrapped(wrap), (1, 8, 8), 10, rng())
        trainer, images = Trainer(module, SGD(momentum=0.5)), samples()[0]
        vector = trainer.train(to_vector(mlp()), *samples(), rng(5))
        predicted = trainer.predict(vector, images)
        assert np.array_equal(trainer.outputs(vector, images).argmax(1), predicted)
        return vector, predicted, trainer.mean_loss(vector, *samples())

    plain, as_dict, as_object = (
        trained(wrap)
        for wrap in (
            lambda t: t,
            lambda t: {"logits": t, "other": 1},
            lambda t: SimpleNamespace(logits=t),
        )
    )
    assert np.array_equal(plain[0], as_dict[0])
    assert np.array_equal(plain[0], as_object[0])
    assert plain[2] == as_dict[2] == as_object[2]
    with pytest.raises(BadInput, match="returns a tuple without logits"):
        trained(lambda t: (t, t))
