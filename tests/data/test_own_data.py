"""Every form of a user's own data, and the errors for bad data."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from fedraw.data.arrays import from_arrays
from fedraw.data.columns import Columns
from fedraw.data.dataset import Dataset, Inputs
from fedraw.data.own_data import own_dataset
from fedraw.errors import BadInput

X = np.arange(24, dtype=np.float32).reshape(8, 3)
Y = np.array([0, 1] * 4)


def made(data: Any, **settings: Any) -> Dataset:
    return own_dataset(data, rng=np.random.default_rng(0), **settings)


def everything(data: Dataset) -> dict[tuple[float, ...], int]:
    """Return all samples with their labels, including the test set."""
    inputs = np.concatenate([data.inputs, data.test_inputs])
    labels = np.concatenate([data.labels, data.test_labels])
    return {tuple(x): int(y) for x, y in zip(inputs.tolist(), labels, strict=True)}


class Pairs(TorchDataset):  # type: ignore[type-arg]
    """A map-style dataset that makes its items when they are asked for."""

    def __init__(self, x: Any = X, y: Any = Y) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return torch.as_tensor(self.x[i]), self.y[i]


class ClassLabel:
    """A feature with the names of classes, as in Hugging Face's library."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)


class Table:
    """The part of a Hugging Face Dataset that fedraw uses."""

    def __init__(self, columns: Mapping[str, Any], **features: Any) -> None:
        self.columns = columns
        self.features = {name: features.get(name, "value") for name in columns}
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def select_columns(self, names: list[str]) -> Table:
        kept = {n: self.columns[n] for n in names}
        return Table(kept, **{n: self.features[n] for n in names})

    def with_format(self, kind: str | None) -> Table:
        assert kind in ("numpy", None)
        return self

    def __getitem__(self, part: slice) -> dict[str, Any]:
        return {name: values[part] for name, values in self.columns.items()}


class Splits(dict[str, Table]):
    """A DatasetDict: splits by name, and the columns of each."""

    @property
    def column_names(self) -> dict[str, list[str]]:
        return {split: table.column_names for split, table in self.items()}


def frame(**columns: Any) -> pandas.DataFrame:
    """Return X and Y as a data frame with the columns a, b, c and y, and further ones."""
    return pandas.DataFrame(X, columns=["a", "b", "c"]).assign(**{"y": Y, **columns})


FORMS: dict[str, Callable[[], Any]] = {
    "arrays": lambda: (X, Y),
    "lists": lambda: (X.tolist(), Y.tolist()),
    "tensors": lambda: (torch.tensor(X, requires_grad=True), torch.tensor(Y)),
    "torch tensors": lambda: TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "torch items": Pairs,
    "torch subset": lambda: torch.utils.data.Subset(Pairs(), range(8)),
    "table": lambda: Table({"x": X, "label": Y}),
    "columns": lambda: Columns(Table({"x": X, "y": Y, "z": X}), inputs="x", labels="y"),
    "frame": lambda: Columns(frame(), labels="y"),
    "dictionary": lambda: Columns({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": Y}, labels="y"),
    "rows of lists": lambda: Table({"x": list(X), "label": list(Y)}),
    "clients": lambda: [(X[:3], Y[:3]), Pairs(X[3:], Y[3:])],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_samples(form: str) -> None:
    data = made(FORMS[form]())
    assert everything(data) == everything(made((X, Y)))
    assert [data.inputs.dtype, data.labels.dtype] == ["f4", "i8"]
    assert len(data.test_labels) == 2  # a fifth of each label, at least one


@pytest.mark.parametrize("form", FORMS)
def test_own_test_data_come_in_every_form(form: str) -> None:
    data = made((X[:4] + 1, Y[:4]), test=FORMS[form]())
    assert (len(data.labels), len(data.test_labels)) == (4, 8)
    np.testing.assert_array_equal(data.test_inputs, X)


def test_a_dataset_is_used_unchanged_and_its_test_set_can_be_replaced() -> None:
    whole = from_arrays(X, Y, test_inputs=X[:1], test_labels=[1], label_names=["cat", "dog"])
    assert made(whole) is whole
    other = made(whole, test=(X[2:5], ["dog", "cat", "dog"]))
    assert other.test_labels.tolist() == [1, 0, 1]
    assert made((X, Y), test=whole).test_labels.tolist() == [1]


@pytest.mark.parametrize("stored", [np.int16, np.int32, np.int64])
def test_token_ids_stay_whole_numbers(stored: type[np.generic]) -> None:
    tokens = made((np.array([[3, 70_000 % 2**15]] * 4).astype(stored), [0, 1, 0, 1])).inputs
    assert [tokens.dtype, tokens[:1].dtype] == ["i8", "i8"]


def test_the_names_of_classes_are_those_of_the_feature() -> None:
    table = Table({"x": X, "kind": Y}, kind=ClassLabel("cat", "dog"))
    assert made(table).label_names == ("cat", "dog")
    splits = Splits(
        train=table, test=Table({"x": X[:2], "kind": Y[:2]}, kind=table.features["kind"])
    )
    data = made(splits)
    assert (len(data.labels), len(data.test_labels), data.clients) == (8, 2, ())


def test_several_input_columns_are_stacked() -> None:
    table = Table({"age": np.arange(8), "bmi": np.arange(8) / 2, "ill": Y})
    data = made(Columns(table, inputs=["age", "bmi"], labels="ill"))
    assert (2.0, 1.0) in everything(data) and data.inputs.dtype == np.float32


def test_a_column_of_a_frame_names_the_clients() -> None:
    sites = ["rome"] * 3 + ["oslo"] * 5
    words = np.array(["well", "ill"])[Y]
    data = made(
        Columns(frame(site=sites, y=words), labels="y", client="site"),
        test=Columns(frame(y=words), labels="y"),
    )
    assert (data.clients, data.label_names) == (("oslo", "rome"), ("ill", "well"))
    assert data.owners is not None and data.owners.tolist() == [1] * 3 + [0] * 5
    np.testing.assert_array_equal(data.inputs, X)


def test_the_columns_of_a_hugging_face_dataset_name_clients_too() -> None:
    data = made(Columns(Table({"x": X, "label": Y, "site": ["a", "b"] * 4}), client="site"))
    assert data.clients == ("a", "b")
    assert data.input_shape == (3,)


def test_a_test_frame_needs_the_columns_of_the_training_frame() -> None:
    train, test = Columns(frame(), labels="y"), Columns(frame()[["b", "a", "c", "y"]], labels="y")
    with pytest.raises(BadInput, match="the test set has the input columns b, a, c"):
        made(train, test=test)


def test_each_client_has_its_own_samples() -> None:
    data = made({"paris": (X[:5], Y[:5]), "oslo": (X[5:], Y[5:])})
    assert (data.clients, data.owners is not None) == (("paris", "oslo"), True)
    assert data.owners is not None
    of_paris = data.inputs[:][data.owners == 0]
    assert of_paris.max() < X[5].min() <= data.inputs[:][data.owners == 1].min()


def test_a_client_never_loses_all_its_samples_to_the_test_set() -> None:
    for seed in range(20):
        clients = [(X[i : i + 1], Y[i : i + 1]) for i in range(8)]
        data = own_dataset(clients, holdout=0.5, rng=np.random.default_rng(seed))
        assert data.owners is not None and sorted(set(data.owners.tolist())) == list(range(8))


def test_index_lists_count_the_rows_of_the_arrays_that_were_given() -> None:
    data = made((X, Y), shares={"a": [0, 1, 2, 3], "b": [4, 5, 6]})
    assert data.owners is not None
    first = data.inputs[:][:, 0] / 3
    for row, owner in zip(first.astype(int).tolist(), data.owners.tolist(), strict=True):
        assert owner == (0 if row < 4 else 1 if row < 7 else -1)


def test_a_regression_has_targets_and_groups() -> None:
    ages = np.linspace(20, 90, 8)
    data = made((X, ages, ["f", "m"] * 4))
    assert (data.label_names, data.has_labels) == (("f", "m"), True)
    assert data.targets is not None and data.targets.dtype == np.float32
    assert data.test_targets is not None and len(data.test_targets) == 2
    alone = made((X, ages))
    assert (alone.label_names, alone.has_labels, set(alone.labels)) == (("all",), False, {0})
    assert alone.sha256() != made((X, ages + 1)).sha256()


def test_mapped_arrays_stay_in_their_file_for_every_process(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.astype(np.float64))
    np.save(tmp_path / "y.npy", Y)
    data = made((tmp_path / "x.npy", str(tmp_path / "y.npy")))
    assert data.inputs.is_mapped and data.inputs.dtype == np.float32
    sent = pickle.dumps(data.inputs)
    np.testing.assert_array_equal(pickle.loads(sent)[:], data.inputs[:])
    assert everything(data) == everything(made((X, Y)))


@pytest.mark.parametrize("part", [slice(None), slice(2, 7), slice(0, 0)])
def test_a_raw_map_and_a_block_of_it_are_pickled_as_a_location(tmp_path: Path, part: slice) -> None:
    raw = np.memmap(tmp_path / "raw", np.int32, "w+", offset=8, shape=(8, 3))
    raw[:] = X
    raw.flush()
    block = raw[part]
    arrived = pickle.loads(pickle.dumps(Inputs(block)))
    assert arrived.is_mapped == bool(len(block)) and arrived.dtype == np.int64
    np.testing.assert_array_equal(arrived[:], block)


def test_a_view_that_is_not_one_block_is_pickled_with_its_values(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert not Inputs(mapped[::2]).is_mapped
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(Inputs(mapped[::2])))[:], X[::2])


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield X[0], 0


class Streamed:
    """A Hugging Face IterableDataset: it has no length, and may not know its columns."""

    column_names = features = None


def test_the_labels_of_items_may_be_names() -> None:
    data = own_dataset(Pairs(X, ["cat", "owl"] * 4), rng=np.random.default_rng(0))
    assert data.label_names == ("cat", "owl")
    assert len(data.labels) + len(data.test_labels) == 8


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "an array alone": (lambda: X, r"an array of shape \(8, 3\); give \(X, y\)"),
    "a tensor alone": (lambda: torch.tensor(X), r"an array of shape \(8, 3\); give \(X, y\)"),
    "too many arrays": (lambda: (X, Y, Y, Y), r"a tuple of 4; give \(X, y\)"),
    "another thing": (lambda: 7, "the data are int 7; give"),
    "different lengths": (lambda: (X, Y[:3]), r"inputs have shape \(8, 3\) and labels \(3,\)"),
    "one number": (lambda: (7, Y), r"inputs have shape \(\)"),
    "NaN": (lambda: (X * np.nan, Y), r"inputs\[0\] has a value that is not a finite number"),
    "words": (lambda: ([["a"]] * 8, Y), "give an array of numbers"),
    "no file": (lambda: ("gone.npy", Y), r"inputs: gone\.npy: No such file"),
    "half numbers": (lambda: (torch.zeros(8, 2).bfloat16(), Y), r"bfloat16.*\.float\(\)"),
    "no clients": (lambda: [], "have no clients"),
    "an idle client": (lambda: [(X, Y), (X[:0], Y[:0])], "client 1: the client has no samples"),
    "NaN at a client": (lambda: [(X, Y), (X * np.nan, Y)], r"client 1: inputs\[0\] has a value"),
    "lengths of a client": (
        lambda: [(X[:7], Y), (X, Y[:7])],
        r"client 0: inputs have shape \(7, 3\) and labels \(8,\)",
    ),
    "groups of other length": (lambda: (X, Y / 2, Y[:3]), r"and groups \(3,\); they need"),
    "arrays in a list": (lambda: [X, Y], r"client 0: the data are an array of shape \(8, 3\)"),
    "other shapes": (
        lambda: {"a": (X, Y), "b": (X[:, :2], Y)},
        r"client 'b' has inputs of shape \(2,\) and type float32 and client 'a' has .*\(3,\)",
    ),
    "other types": (lambda: [(X, Y), (X.astype(int), Y)], "client 1 has inputs.*int64.*float32"),
    "names and numbers": (
        lambda: [(X, Y), (X, ["cat"] * 8)],
        "client 1 has names as labels and client 0 has numbers as labels; give all names",
    ),
    "other label names": (
        lambda: [
            Table({"x": X, "y": Y}, y=ClassLabel("cat", "dog")),
            Table({"x": X, "y": Y}, y=ClassLabel("dog", "cat")),
        ],
        "client 1 has the label names dog, cat and client 0 has the label names cat, dog",
    ),
    "label names of one": (
        lambda: [(X, Y), Table({"x": X, "y": Y}, y=ClassLabel("cat", "dog"))],
        "only one of client 0 and client 1 names its labels",
    ),
    "one of many label names": (
        lambda: [
            Table({"x": X, "y": Y}, y=ClassLabel(*"abcdefghijk", last)) for last in ("l", "m")
        ],
        "client 1 has the label names a, b, .* and 2 more and client 0 has",
    ),
    "one of many columns": (
        lambda: [
            Columns(frame(**dict.fromkeys([*"defghijk", last], Y)), labels="y") for last in "lm"
        ],
        "client 1 has the input columns a, b, .* and 2 more and client 0 has",
    ),
    "labels of some": (lambda: [(X, Y), (X, Y / 2)], "client 1 has no labels and client 0"),
    "bad client name": (lambda: {1.5: (X, Y)}, "client 1.5 is not a name; use text or a whole"),
    "same client name": (lambda: {1: (X, Y), "1": (X, Y)}, "two clients are called '1'"),
    "no length": (Endless, "Endless has no length"),
    "streamed": (Streamed, "Streamed has no length.*load it without streaming"),
    "items alone": (
        lambda: torch.utils.data.Subset(cast(Any, X), [0]),
        "item 0 of Subset is an array",
    ),
    "ragged items": (
        lambda: Pairs([X[0], X[0, :2]], [0, 1]),
        r"sample 1 has shape \(2,\) and sample 0 has shape \(3,\)",
    ),
    "no train split": (lambda: Splits(rest=Table({"x": X, "label": Y})), "splits rest and no 'tra"),
    "no such column": (
        lambda: Columns(Table({"x": X, "y": Y}), inputs="pixels", labels="y"),
        r"no column 'pixels' \(its columns: x, y\); name its columns with fedraw.Columns",
    ),
    "which labels": (lambda: Table({"x": X, "y": Y}), "labels could be any of the columns x, y"),
    "which inputs": (
        lambda: Table({"x": X, "z": X, "label": Y}),
        r"inputs could be any of the columns x, z; .*labels='label'",
    ),
    "columns of arrays": (lambda: Columns((X, Y), inputs="x"), "a Hugging Face dataset, got tuple"),
    "a frame alone": (frame, r"are a DataFrame; .* fedraw.Columns\(data, labels=\.\.\.\)"),
    "no label column": (lambda: Columns(frame()), "labels could be any of the columns a, b, c, y"),
    "unknown client": (lambda: Columns(frame(), labels="y", client="site"), "no column 'site'"),
    "texts as inputs": (
        lambda: Columns(frame(sex=["f", "m"] * 4), labels="y"),
        r"column 'sex' has texts.*pandas\.get_dummies.*inputs=\[",
    ),
    "days as inputs": (
        lambda: Columns(frame(day=pandas.Timestamp(2026, 1, 1)), labels="y"),
        r"column 'day' has the type datetime64",
    ),
    "a number is missing": (
        lambda: Columns(frame(d=[1, None, None] + [2] * 5), labels="y"),
        r"column 'd' has no value in 2 of 8 rows \(the first is row 1\); fill them.*dropna",
    ),
    "a label is missing": (
        lambda: Columns(frame(ill=["no", None] + ["yes"] * 6), labels="ill", inputs=["a"]),
        "column 'ill' has no value in 1 of 8 rows",
    ),
    "a client is missing": (
        lambda: Columns(
            frame(site=pandas.array([1, None] * 4, dtype="Int64")), labels="y", client="site"
        ),
        "column 'site' has no value in 4 of 8 rows",
    ),
    "a client is a fraction": (
        lambda: Columns(frame(site=[0.5, 1] * 4), labels="y", client="site"),
        "client = 'site': column 'site' have type float64",
    ),
    "a constant": (lambda: Columns(frame(d=7), labels="y"), "in every row of 'd', and nothing"),
    "one label": (lambda: Columns(frame(d="x"), labels="d"), "every row has the label x"),
    "the same name twice": (
        lambda: Columns(pandas.concat([frame(), frame()], axis=1), labels="y"),
        "two columns are called 'a'",
    ),
    "no inputs": (lambda: Columns({"y": Y}, labels="y"), "none is an input"),
    "frames in another order": (
        lambda: [Columns(frame(), labels="y"), Columns(frame()[["b", "a", "c", "y"]], labels="y")],
        "client 1 has the input columns b, a, c and client 0 has the input columns a, b, c",
    ),
    "clients of clients": (
        lambda: {"oslo": Columns(frame(site=1), labels="y", client="site")},
        "client 'oslo': the data of a client have clients themselves",
    ),
    "ragged rows": (
        lambda: Table({"x": [[1, 2], [3]], "label": [0, 1]}),
        "column 'x' do not all have the same shape; pad or resize",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_data_are_refused_with_a_remedy(what: str) -> None:
    form, words = BAD[what]
    with pytest.raises(BadInput, match=words):
        made(form())


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ((X[:, :2], Y), r"test set has inputs of shape \(2,\)"),
        ((X.astype(np.uint8), Y), "give all the same shape and type"),
        (
            (X, Y / 2),
            "the test set has no labels and the training set has labels; give all the same",
        ),
        (X, "test: the data are an array"),
    ],
)
def test_test_data_that_do_not_fit_are_refused(test: Any, words: str) -> None:
    for data in ((X, Y), from_arrays(X, Y, test_inputs=X, test_labels=Y)):
        with pytest.raises(BadInput, match=words):
            made(data, test=test)


def test_test_data_with_other_labels_are_refused() -> None:
    whole = from_arrays(X, ["cat", "dog"] * 4, test_inputs=X[:1], test_labels=["dog"])
    with pytest.raises(BadInput, match=r"test_labels\[0\] = 9 is outside 0 to 1"):
        made(whole, test=(X, [9] * 8))
    with pytest.raises(
        BadInput, match="the test set has the label names dog, cat and the training set"
    ):
        made(whole, test=Table({"x": X, "y": Y}, y=ClassLabel("dog", "cat")))


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([[0, 1], [1, 2]], "sample 1 is held by client 0 and again by client 1"),
        ({"a": [0], "b": []}, "client 'b' of the partition has no samples"),
        ([[0], [8]], "client 1 holds sample 8, but samples go from 0 to 7"),
        (7, "the partition is int; give a list of index arrays"),
    ],
)
def test_bad_index_lists_are_refused_by_client(shares: Any, words: str) -> None:
    for data in ((X, Y), from_arrays(X, Y, test_inputs=X, test_labels=Y)):
        with pytest.raises(BadInput, match=words):
            made(data, shares=shares)


def test_data_of_clients_cannot_be_divided_again() -> None:
    with pytest.raises(BadInput, match="already say which samples each of 2 clients has"):
        made([(X, Y), (X, Y)], shares=[[0], [1]])


def test_a_real_hugging_face_dataset() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's library is not installed")
    features = datasets.Features(
        {
            "input_ids": datasets.Sequence(datasets.Value("int32")),
            "label": datasets.ClassLabel(names=["good", "bad"]),
        }
    )
    rows = {"input_ids": [[1, 2, 3], [4, 5, 6]] * 4, "label": [0, 1] * 4}
    table = datasets.Dataset.from_dict(rows, features=features)
    data = made(table)
    assert (data.label_names, str(data.inputs.dtype)) == (("good", "bad"), "int64")
    assert data.input_shape == (3,)
    splits = datasets.DatasetDict(train=table, test=table.select(range(2)))
    assert len(made(splits).test_labels) == 2


def test_columns_that_cannot_name_clients_are_left_out() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's library is not installed")
    rows = {
        **{"age": range(8), "ill": [0, 1] * 4, "ward": ["a", "b"] * 4, "bed": range(8)},
        **{"zip": [None, *range(7)], "note": [None, *"abcdefg"], "letter": ["x" * 50_000] * 8},
    }
    data = made(Columns(datasets.Dataset.from_dict(rows), inputs=["age"], labels="ill"))
    assert list(data.columns) == ["ward", "bed"]
