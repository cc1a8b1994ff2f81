"""An experiment as data: the checked content of a SPEC.toml."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard, get_args

from fedraw.core.removed import removal
from fedraw.core.settings import FILE, Settings, keys, shown, spec_keys
from fedraw.errors import BadInput, MissingExtra, nearest
from fedraw.eventlog.log_file import LOG
from fedraw.experiment.plugins import Plugins, holds_plugin, import_plugin
from fedraw.experiment.sections import (
    IMAGENET,
    Availability,
    Calibration,
    Costs,
    DataSpec,
    Drift,
    Features,
    LabelNoise,
    Losses,
    Membership,
    Metrics,
    Misreport,
    Partition,
    Run,
    Speeds,
    StrategySpec,
    Summaries,
    Training,
    is_plugin,
)
from fedraw.strategies.catalog import CATALOG, settings_of
from fedraw.strategies.protocol import Strategy

VERSION = 1


@dataclass(frozen=True)
class Spec:
    """One experiment: one strategy, several seeds.

    A spec whose settings contradict each other cannot be created.

    >>> spec = Spec.from_dict({"strategy": {"name": "fedbuff", "server_lr": 0.5}})
    >>> strategy = spec.make_strategy()
    >>> type(strategy).__name__, strategy.buffer, strategy.server_lr
    ('FedBuff', 10, 0.5)
    """

    data: DataSpec = field(default_factory=DataSpec)
    features: Features | None = None
    partition: Partition = field(default_factory=Partition)
    speeds: Speeds = field(default_factory=Speeds)
    availability: Availability | None = None
    losses: Losses | None = None
    membership: Membership | None = None
    costs: Costs | None = None
    strategy: StrategySpec = field(default_factory=StrategySpec)
    misreport: Misreport | None = None
    label_noise: LabelNoise | None = None
    drift: Drift | None = None
    summaries: Summaries | None = None
    training: Training = field(default_factory=Training)
    calibration: Calibration | None = None
    metrics: Metrics = field(default_factory=Metrics)
    run: Run = field(default_factory=Run)
    plugins: tuple[str, ...] = ()  # the user's own modules, which the sections may name
    plugin_folder: str | None = None  # the folder that is searched for them first

    def __post_init__(self) -> None:
        for name, kind in sections().items():
            _check_section(name, getattr(self, name), kind)
        for key, value in self._paths():
            _refuse_unwritable(key, value)
        if self.speeds.kind == "auto" and self.partition.rare_labels:
            object.__setattr__(self, "speeds", replace(self.speeds, kind="correlated"))
        _refuse_contradictions(self)
        for key, name in self.plugin_parts.values():
            self.plugin_modules.find(name, key)
        self.make_strategy()  # refuses impossible settings now, not in the middle of a run

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> Spec:
        """Read nested tables, as in a SPEC.toml; missing keys have their defaults."""
        if not isinstance(tables, Mapping):
            raise BadInput(f"a spec is a table of sections, got {shown(tables)}; give a dict")
        tables = dict(tables)
        version = tables.pop("version", VERSION)
        if version != VERSION:
            raise BadInput(
                f"version = {shown(version)}: this fedraw reads version {VERSION}; "
                f"run 'fedraw new' to see its form"
            )
        refuse_parts(tables.pop("parts", {}))
        modules = _plugins(tables)
        known = sections()
        for name, table in tables.items():
            if name not in known:
                place = _places(name)
                remedy = f"it is a key of {place}" if place else nearest(name, known)
                raise BadInput(f"unknown section [{name}]; {remedy}")
            _refuse_misplaced(name, table)
        parts: dict[str, Any] = {
            name: known[name].read(table) for name, table in tables.items() if name != "strategy"
        }
        if "strategy" in tables:
            parts["strategy"] = StrategySpec.read(tables["strategy"], modules)
        parts |= {"plugins": tuple(modules.modules), "plugin_folder": modules.folder}
        return cls(**parts)

    @classmethod
    def from_file(cls, path: str | Path, changes: Mapping[str, Any] | None = None) -> Spec:
        """Read a file, after applying `changes` such as {"strategy.buffer": 5}.

        Paths in the file are relative to the file, paths in changes to the working directory. A
        change of `strategy.name` keeps the file's [strategy] keys that the new strategy has too. A
        change of `training.model` drops the file's `stem` and `weights`.
        """
        path = Path(path)
        tables = _read_toml(path)
        with naming(path):
            _change(tables, changes or {})
            _find_plugins(tables, path.parent.absolute())
            return cls.from_dict(tables)._with_paths_from(path.parent.absolute())

    def with_changes(self, changes: Mapping[str, Any]) -> Spec:
        """Return the spec with some keys changed, as by `fedraw run --set`.

        >>> Spec().with_changes({"strategy.buffer": 5}).make_strategy().buffer
        5
        """
        tables = self.set_tables()
        _change(tables, changes)
        return Spec.from_dict(tables)

    def replaying(self, folder: Path) -> Spec:
        """Return the same experiment with the speeds, joins and leaves of an event log.

        Args:
            folder: The folder of a server or of a run, with its `events.jsonl`.

        """
        log = (folder / LOG).absolute()
        if not log.is_file():
            raise BadInput(
                f"{folder} has no {LOG}; name the folder of a server, or of one seed of a run"
            )
        kind = "auto" if self.speeds.kind == "ratio" else self.speeds.kind
        speeds = Speeds(kind, arrivals="recorded", trace=str(log))
        if self.membership is not None:
            raise BadInput(f"membership says who joins and leaves, and so does {log}; leave it out")
        return Spec.from_dict(
            replace(self, speeds=speeds, membership=Membership(trace=str(log))).set_tables()
        )

    def make_strategy(self) -> Strategy[Any]:
        """Create the strategy that the spec names, with its settings."""
        return self.strategy.make(self.plugin_modules)

    @property
    def plugin_parts(self) -> dict[str, tuple[str, str]]:
        """The parts from plugins other than the strategy: the key and the name of each."""
        settings = {
            "data": ("data.name", self.data.name),
            "partition": ("partition.kind", self.partition.kind),
            "model": ("training.model", self.training.model),
            "train": ("training.kind", self.training.kind),
        }
        return {part: own for part, own in settings.items() if is_plugin(own[1])}

    @property
    def plugin_modules(self) -> Plugins:
        """The modules that hold the spec's plugins."""
        return Plugins(self.plugins, self.plugin_folder)

    def to_dict(self) -> dict[str, Any]:
        """Return the nested tables that `from_dict` reads: with every default, and without None.

        A setting that was added later is left out at its default.
        """
        given = {name: getattr(self, name) for name in sections()}
        tables = {name: own.to_dict() for name, own in given.items() if own is not None}
        strategy = self.make_strategy()
        if is_dataclass(strategy):
            tables["strategy"] = {"name": self.strategy.name, **spec_settings_of(strategy)}
        return {
            "version": VERSION,
            **({"plugins": list(self.plugins)} if self.plugins else {}),
            **({"plugin_folder": self.plugin_folder} if self.plugin_folder is not None else {}),
            **{name: table for name, table in tables.items() if table},
        }

    def set_tables(self) -> dict[str, Any]:
        """Return the tables of `to_dict` without a learning rate that nobody has set."""
        tables = self.to_dict()
        if self.training.chosen_lr is None:
            del tables["training"]["lr"]
        return tables

    def _with_paths_from(self, folder: Path) -> Spec:
        """Make the paths absolute; in a file they are relative to the file's folder."""
        changed = {}
        for key, value in self._paths():
            section, name = key.split(".")
            changed[section] = replace(getattr(self, section), **{name: str(folder / value)})
        return replace(self, **changed)

    def _paths(self) -> Iterator[tuple[str, str]]:
        """Yield the keys that hold the path of a file, with their values."""
        for key in _paths():
            section, name = key.split(".")
            value = getattr(getattr(self, section), name, None)
            if _is_path(value):
                yield key, value


_OPTIONAL = frozenset(own.name for own in fields(Spec) if own.default is None)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        # Editors on Windows begin a file with a byte-order mark.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; 'fedraw new {path}' writes one") from None
    except IsADirectoryError:
        raise BadInput(f"{path} is a folder; name the SPEC.toml in it") from None
    except UnicodeDecodeError as problem:
        raise BadInput(f"{path} is not UTF-8 ({problem}); save it as UTF-8") from None
    except OSError as problem:
        raise BadInput(f"cannot read {path}: {problem}") from None
    except (ValueError, RecursionError) as problem:  # TOML's own errors are ValueErrors too
        raise BadInput(f"{path} is not valid TOML: {problem}") from None


def names_version(path: Path) -> bool:
    """Return whether a SPEC.toml says for which version of the format it was written."""
    return "version" in _read_toml(path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Prefix every error about a spec with the path of its file."""
    try:
        yield
    except MissingExtra:  # the problem is the installation, not the spec
        raise
    except BadInput as problem:
        prefix = "" if str(problem).startswith(str(path)) else f"{path}: "
        raise BadInput(f"{prefix}{problem}") from None


def spec_settings_of(strategy: Strategy[Any]) -> dict[str, Any]:
    """Return the settings that a spec can hold; a user's own strategy may have other fields."""
    own = settings_of(strategy)
    if isinstance(strategy, Settings):
        own = {name: own[name] for name in spec_keys(type(strategy)) if name in own}
    return {name: value for name, value in own.items() if isinstance(value, str | int | float)}


def parse_change(text: str) -> tuple[str, Any]:
    """Parse `section.key=value` from the command line; the value is TOML, otherwise text.

    >>> parse_change("strategy.buffer=5"), parse_change("strategy.name=fedfa")
    (('strategy.buffer', 5), ('strategy.name', 'fedfa'))
    """
    key, separator, value = text.partition("=")
    if not separator or not is_key(key.strip()):
        place = _places(key.strip()).split("]")[0].removeprefix("[")
        hint = f"; did you mean {place}.{text}?" if place else ", such as strategy.name=fedfa"
        raise BadInput(f"--set {text!r} is not of the form section.key=value{hint}")
    return key.strip(), parse_value(value)


def is_key(text: str) -> bool:
    """Return whether text has the form section.key."""
    return re.fullmatch(r"[a-z_]+\.[a-z_]+", text) is not None


def parse_value(text: str) -> Any:
    """Parse a value from the command line: TOML, otherwise text.

    >>> parse_value("0.5"), parse_value("true"), parse_value("none")
    (0.5, True, 'none')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text.strip()


def to_toml(tables: Mapping[str, Any]) -> str:
    """Format tables one level deep, with strings, numbers, booleans and lists as values.

    >>> print(to_toml({"version": 1, "run": {"seeds": [42], "fast": True}}), end="")
    version = 1
    <BLANKLINE>
    [run]
    seeds = [42]
    fast = true
    """
    lines = [f"{key} = {_toml_value(v)}" for key, v in tables.items() if not isinstance(v, Mapping)]
    for name, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {_toml_value(v)}" for key, v in table.items())]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml_value(v) for v in value)}]"
    if isinstance(value, str):
        # TOML's basic strings have JSON's escapes; unlike JSON, TOML does not allow a raw DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def _change(tables: dict[str, Any], changes: Mapping[str, Any]) -> None:
    _forget_other_model(tables, changes.get("training.model"))
    new_name = changes.get("strategy.name")
    if isinstance(tables.get("strategy"), dict) and isinstance(new_name, str):
        tables["strategy"] = _kept_settings(tables["strategy"], new_name)
    for key, value in changes.items():
        if not isinstance(key, str) or not is_key(key):
            raise BadInput(f"{key!r} is not of the form section.key, such as 'strategy.buffer'")
        section, name = key.split(".")
        table = tables.setdefault(section, {})
        if not isinstance(table, dict):
            raise BadInput(f"{key}: {section} is not a table in this file")
        is_path = key in _paths() and _is_path(value)
        table[name] = str(Path(value).absolute()) if is_path else value


def _kept_settings(strategy: Mapping[str, Any], new_name: str) -> dict[str, Any]:
    """Return the settings that stay when a spec changes to another method.

    A setting stays if the new method has it too and if it is not what the old method has anyway:
    the default rates of two methods may differ.
    """
    new, old = CATALOG.get(new_name), CATALOG.get(str(strategy.get("name")))
    known = set() if new is None else set(new.spec_settings) - set(new.preset)
    usual = {} if old is None or old is new else old.spec_settings
    return {k: v for k, v in strategy.items() if k in known and v != usual.get(k)}


def _forget_other_model(tables: dict[str, Any], new: object) -> None:
    """Drop the stem and the weights of the file's model when another model is chosen."""
    training = tables.get("training")
    if new is not None and isinstance(training, dict) and new != training.get("model"):
        tables["training"] = {k: v for k, v in training.items() if k not in ("stem", "weights")}


def _refuse_unwritable(key: str, value: str) -> None:
    """Refuse a path that a file system or a spec.toml cannot hold."""
    if "\0" in value:
        raise BadInput(f"{key} = {shown(value)} has a NUL character, which no path can have")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"{key} = {shown(value)} is not UTF-8, and a spec can hold nothing else; rename the "
            "file or its folder"
        ) from None


def _is_path(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value != IMAGENET


@cache
def sections() -> dict[str, Any]:
    """Return the dataclass of each section, without the None of optional sections."""
    own = {name: key.kind for name, key in keys(Spec).items() if not name.startswith("plugin")}
    return {name: next(iter(get_args(hint)), hint) for name, hint in own.items()}


def _places(key: str) -> str:
    """Return the sections that have a key; empty if none has it."""
    owners = [f"[{name}]" for name, kind in sections().items() if key in keys(kind)]
    if any(key in method.spec_settings for method in CATALOG.values()):
        owners.append("[strategy]")
    return " or ".join(dict.fromkeys(owners))


def _refuse_misplaced(section: str, table: object) -> None:
    """Refuse a key that only other sections have, and name these."""
    if not isinstance(table, Mapping):
        return
    for key in table:
        place = _places(str(key))
        if place and f"[{section}]" not in place and removal(f"{section}.{key}") is None:
            raise BadInput(f"[{section}] has the unknown key {key!r}, which is a key of {place}")


@cache
def _paths() -> tuple[str, ...]:
    """Return the keys that hold the path of a file."""
    return tuple(
        f"{section}.{name}"
        for section, kind in sections().items()
        for name, key in keys(kind).items()
        if FILE in key.marks
    )


def _check_section(name: str, value: Any, kind: type[Any]) -> None:
    if not isinstance(value, kind) and not (value is None and name in _OPTIONAL):
        raise BadInput(
            f"{name} = {shown(value)} is not a {kind.__name__}; create the spec with "
            "fedraw.Spec.from_dict, or give keyword arguments to fedraw.simulate"
        )


def _plugins(tables: dict[str, Any]) -> Plugins:
    """Remove the plugins from the tables of a spec, and import them."""
    modules, folder = tables.pop("plugins", []), tables.pop("plugin_folder", None)
    if not isinstance(modules, list | tuple) or not all(isinstance(m, str) for m in modules):
        raise BadInput(
            f'plugins = {shown(modules)} must be a list of modules, such as ["my_module"]'
        )
    if folder is not None and not isinstance(folder, str):
        raise BadInput(f"plugin_folder = {shown(folder)} must be a text")
    for module in modules:
        import_plugin(module, folder)
    return Plugins(tuple(modules), folder)


def _find_plugins(tables: dict[str, Any], place: Path) -> None:
    """Set the folder of plugins that are next to the spec, or in the folder that it names."""
    modules, folder = tables.get("plugins", []), tables.get("plugin_folder", "")
    if not isinstance(modules, list) or not isinstance(folder, str):
        return  # `_plugins` refuses them
    names = [name for name in modules if isinstance(name, str)]
    if folder or holds_plugin(place, names):
        tables["plugin_folder"] = str(place / folder)


def refuse_parts(names: object) -> None:
    """Refuse a spec of a run with parts that were given in Python: no file can name them."""
    if not names:
        return
    parts = names.items() if isinstance(names, Mapping) else [("parts", names)]
    listed = ", ".join(f"{part} ({shown(name)})" for part, name in parts)
    raise BadInput(
        f"this run has parts that were given in Python: {listed}; continue it with "
        "fedraw.simulate(..., resume=True) and the same parts, or put them into a module and name "
        "them in a SPEC.toml through its plugins setting"
    )


def _refuse_contradictions(spec: Spec) -> None:
    """Refuse settings that would be ignored or that contradict each other."""
    labels = spec.strategy.settings.get("labels", "declared")
    _refuse_summaries(spec, labels)
    _refuse_drift(spec)
    _refuse_membership(spec)
    _refuse_receivers(spec, labels)
    if spec.training.kind == "none":
        _refuse_without_models(spec, labels)


def _refuse_summaries(spec: Spec, labels: str) -> None:
    if spec.summaries is None:
        return
    if labels == "checked":
        raise BadInput(
            "strategy.labels = 'checked' compares claims with updates, and with summaries "
            "the server sees no claims; use 'declared' or 'inferred'"
        )
    if labels == "inferred":
        raise BadInput(
            "strategy.labels = 'inferred' needs no reports of labels, so summaries has nothing "
            "to protect; leave one of them out"
        )
    if spec.drift is not None and spec.drift.declared == "again":
        raise BadInput(
            "drift.declared = 'again' reports counts openly, which summaries is meant to "
            "prevent; use 'once'"
        )


def _refuse_drift(spec: Spec) -> None:
    drift, events = spec.drift, spec.run.events
    if drift is None:
        return
    if round(drift.at * events) >= events:
        raise BadInput(f"drift.at = {drift.at} is at the end of run.events = {events}; give less")
    if drift.declared == "again" and spec.misreport is not None:
        raise BadInput(
            "drift.declared = 'again' reports true counts, including those of the attackers of "
            "misreport; use 'once', or leave one of them out"
        )


def _refuse_membership(spec: Spec) -> None:
    if spec.membership is None:
        return
    for name, wrong in (("misreport", spec.misreport), ("summaries", spec.summaries)):
        if wrong is not None:
            raise BadInput(
                f"membership: clients that join declare their counts openly, so it does not go "
                f"with {name}; leave one of them out"
            )
    if spec.drift is not None and spec.drift.declared == "again":
        raise BadInput(
            "drift.declared = 'again' needs all clients at that moment, and with membership some "
            "may be away; use 'once'"
        )


def _refuse_receivers(spec: Spec, labels: str) -> None:
    run, clients = spec.run, spec.partition.clients
    if run.receivers != "rare-first":
        return
    if run.concurrency is None or (clients is not None and run.concurrency >= clients):
        raise BadInput(
            "run.receivers = 'rare-first' changes nothing while all clients train at once; set "
            f"run.concurrency below partition.clients = {clients}"
        )
    if labels == "inferred":
        raise BadInput(
            "run.receivers = 'rare-first' uses the labels that clients report, and with "
            "strategy.labels = 'inferred' they report none; use 'declared' or 'checked'"
        )


def _refuse_without_models(spec: Spec, labels: str) -> None:
    remedy = "and with training.kind = 'none' there is no model; use 'sgd'"
    if labels != "declared":
        raise BadInput(f"strategy.labels = {labels!r} reads the updates of a model, {remedy}")
    if spec.misreport is not None and spec.misreport.support is not None:
        raise BadInput(f"misreport.support forges the updates of a model, {remedy}")
    if spec.calibration is not None:
        raise BadInput(f"calibration trains the output layer of a model, {remedy}")
    if spec.label_noise is not None:
        raise BadInput(f"label_noise changes the labels that a model is trained with, {remedy}")
