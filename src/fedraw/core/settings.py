"""Settings: frozen dataclasses whose annotations say what each key may hold.

A rule stands beside the type of its key, `lr: Annotated[float, above(0)] = 0.1`. It is checked
once, when the value is made, whether it comes from a SPEC.toml, a run config or keyword arguments,
so the same mistake gets the same message everywhere.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from fedraw.core.removed import is_neutral, removal
from fedraw.errors import BadInput, nearest

# A TOML integer has 64 bits.
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


@runtime_checkable
class ValueRule(Protocol):
    """A rule for the value of a key; its text continues "key = value must be"."""

    def holds(self, value: Any) -> bool:
        """Return whether the value keeps the rule."""


@dataclass(frozen=True)
class Range:
    """The rule of a number: the ends of its interval, and whether they belong to it.

    >>> str(Range(0, 1, open_low=True)), str(Range(1)), str(Range(0, open_low=True))
    ('above 0 and at most 1', 'at least 1', 'a positive number')
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: object) -> bool:
        """Return whether a number is in the interval; no infinite one is, and other types pass."""
        if not isinstance(value, int | float):
            return True
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below and math.isfinite(value)

    def __str__(self) -> str:
        low, high = (_number(end) for end in (self.low, self.high))
        if math.isinf(self.high):
            positive = self.open_low and self.low == 0
            above = f"{'above' if self.open_low else 'at least'} {low}"
            return "a positive number" if positive else above
        if self.open_low:
            both = f"between {low} and {high}"
            return both if self.open_high else f"above {low} and at most {high}"
        return f"from {low} to {'below ' if self.open_high else ''}{high}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def above(low: float) -> Range:
    """Return the rule of a number above `low`."""
    return Range(low, open_low=True)


def at_least(low: float) -> Range:
    """Return the rule of a number of at least `low`."""
    return Range(low)


COUNT = at_least(1)
SHARE = Range(0, 1)
PROBABILITY = Range(0, 1, open_high=True)  # of something that must not be certain


@dataclass(frozen=True)
class With:
    """The rule of a key that belongs to some values of another key.

    Attributes:
        key: The other key.
        values: Its values with which the key may be set.
        default: The value that the key takes with these if it is None.
        optional: Whether the key may be None with these.

    """

    key: str
    values: tuple[Any, ...]
    default: Any = None
    optional: bool = False


@dataclass(frozen=True)
class Mark:
    """A property of a key that is no rule for its value."""

    name: str


# The path of a file. In a SPEC.toml it is relative to the file's folder.
FILE = Mark("file")
# A key that was added later. It is written only if it differs from its default, so that runs whose
# specs and logs do not have it can still be resumed and compared.
LATER = Mark("later")
# A setting that the data and the training determine, so that no spec has it.
DERIVED = Mark("derived")


@dataclass(frozen=True)
class Key:
    """A key of a table.

    Attributes:
        name: Its name.
        kind: Its type.
        default: Its default; MISSING if it has none.
        rules: The rules that the value alone decides.
        goes_with: The other keys that decide whether this one may be set.
        marks: Its other properties.

    """

    name: str
    kind: Any
    default: Any
    rules: tuple[ValueRule, ...]
    goes_with: tuple[With, ...]
    marks: tuple[Mark, ...]

    def converted(self, value: object, named: str) -> Any:
        """Return a value in the type of the key, or refuse it under the name of the key."""
        given = plain(value)
        value = _convert(self.kind, given, named)
        for rule in self.rules if value is not None else ():
            if not rule.holds(value):
                raise BadSetting(f"{named} = {shown(given)} must be {rule}")
        return value


def keys(kind: Any) -> dict[str, Key]:
    """Return the keys of a dataclass by name."""
    return _keys(kind)


@cache
def _keys(kind: Any) -> dict[str, Key]:
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        with suppress(NameError):  # a user's class may have names that only type checkers know
            hints |= get_type_hints(base, include_extras=True)
    found = {}
    for own in fields(kind):
        hint, rules = hints.get(own.name, Any), list[Any]()
        if get_origin(hint) is Annotated:
            hint, *rules = get_args(hint)
        made = own.default_factory
        default = own.default if made is MISSING else made()
        found[own.name] = Key(
            own.name, hint, default, _only(ValueRule, rules), _only(With, rules), _only(Mark, rules)
        )
    return found


def _only(kind: Any, rules: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(rule for rule in rules if isinstance(rule, kind))


def spec_keys(kind: Any) -> dict[str, Key]:
    """Return the keys that a spec may have: all but those that the data determine."""
    return {name: key for name, key in keys(kind).items() if DERIVED not in key.marks}


class BadSetting(BadInput):
    """A value is refused; the text begins with the name of its key."""


@dataclass(frozen=True)
class Settings:
    """The base of dataclasses whose values are checked when they are made.

    >>> @dataclass(frozen=True)
    ... class Training(Settings):
    ...     table = "training"
    ...     lr: Annotated[float, above(0)] = 0.1
    >>> Training.read({"lr": 1})
    Training(lr=1.0)
    >>> Training(lr=-1)
    Traceback (most recent call last):
    ...
    fedraw.core.settings.BadSetting: training.lr = -1 must be a positive number
    >>> Training.read({"lrr": 1})
    Traceback (most recent call last):
    ...
    fedraw.errors.BadInput: [training] has the unknown key 'lrr'; did you mean 'lr'?

    """

    table: ClassVar[str] = ""  # the name of the table in a spec, and in messages

    def __post_init__(self) -> None:
        known = keys(type(self))
        for name, key in known.items():
            value = getattr(self, name)
            if value is not key.default:
                object.__setattr__(self, name, key.converted(value, self.named(name)))
        for name, key in known.items():
            for rule in key.goes_with:
                self._check_companion(name, key, rule)
        self.validate()

    def validate(self) -> None:
        """Refuse what no rule of a single key can say."""

    def refuse(self, name: str, words: str) -> None:
        """Refuse the value of a key; the words continue "key = value"."""
        raise BadSetting(f"{self.named(name)} = {shown(plain(getattr(self, name)))} {words}")

    @classmethod
    def read(cls, table: object, section: str | None = None) -> Self:
        """Return the settings of a table; keys that are absent keep their defaults.

        Args:
            table: The values by key.
            section: The name of the table in messages, if it is not that of the class.

        """
        section = section or cls.table
        given = known_keys(cls, table, section)
        try:
            return cls(**given)
        except BadSetting as problem:
            prefix = "" if cls.table else f"{section}."
            raise BadInput(f"{prefix}{problem}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return the table that `read` reads; keys without a value are left out."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, key in keys(type(self)).items()
            if (value := getattr(self, name)) is not None
            and not (LATER in key.marks and value == key.default)
        }

    def named(self, name: str) -> str:
        """Return the name of a key in messages."""
        return f"{self.table}.{name}" if self.table else name

    def _check_companion(self, name: str, key: Key, rule: With) -> None:
        """Refuse a key beside another choice, and its absence beside its own."""
        given, chosen = getattr(self, name), getattr(self, rule.key)
        wanted = " or ".join(repr(value) for value in rule.values)
        if chosen not in rule.values:
            if given != key.default:
                self.refuse(name, f"goes with {rule.key} = {wanted}, not with {chosen!r}")
        elif given is None and rule.default is not None:
            object.__setattr__(self, name, rule.default)
        elif given is None and not rule.optional:
            needs = f"{rule.key} = {chosen!r} needs it"
            raise BadSetting(f"{self.named(name)} is missing; {needs}")


def known_keys(kind: Any, table: object, section: str, of_method: bool = False) -> dict[str, Any]:
    """Return the table without removed keys that did nothing; refuse unknown and missing keys.

    Args:
        kind: The dataclass whose fields are the keys.
        table: The values by key.
        section: The name of the table in messages.
        of_method: Whether this is the section [strategy] of a spec. It has no derived keys, and
            the caller has read its key `name`.

    """
    if not isinstance(table, Mapping):
        raise BadInput(f"[{section}] must be a table of settings, got {table!r}")
    known = spec_keys(kind) if of_method else keys(kind)
    table = {k: v for k, v in table.items() if k in known or not is_neutral(f"{section}.{k}", v)}
    for name, value in table.items():
        gone = removal(f"{section}.{name}", value)
        if gone or name not in known:
            unknown = f"[{section}] has the unknown key {name!r}"
            others = ["name"] if of_method else []
            raise BadInput(gone or f"{unknown}; {nearest(name, [*others, *known])}")
    for name, key in known.items():
        if key.default is MISSING and name not in table:
            raise BadInput(f"[{section}] lacks the key {name!r}, which has no default")
    return table


def checked_settings(
    kind: Any, table: object, section: str, of_method: bool = False
) -> dict[str, Any]:
    """Return the values of a table in the types of the keys of any dataclass."""
    given, known = known_keys(kind, table, section, of_method), keys(kind)
    return {name: known[name].converted(v, f"{section}.{name}") for name, v in given.items()}


def plain(value: Any) -> Any:
    """Convert NumPy numbers and arrays to Python numbers and lists."""
    if isinstance(value, tuple | list | range):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _convert(kind: Any, value: object, key: str) -> Any:
    for alternative in alternatives(kind):
        if _fits(alternative, value):
            if get_origin(alternative) is tuple:
                return tuple(value)  # type: ignore[arg-type]
            # A subclass of float may say more than its number.
            if alternative in (float, Path) and not isinstance(value, alternative):
                return alternative(value)
            return value
    raise BadSetting(f"{key} = {shown(value)} must be {_describe(kind)}{_too_large(value)}")


def shown(value: object, longest: int = 60) -> str:
    """Return the repr of a value for a message, truncated if it is very long.

    >>> shown("abc", longest=5), shown(10**99, longest=8), len(shown(10**99))
    ("'abc'", '10000000…', 61)
    """
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}…"


def _too_large(value: object) -> str:
    values = value if isinstance(value, list | tuple) else [value]
    large = any(isinstance(v, int) and not _SMALLEST <= v <= _LARGEST for v in values)
    return ", and a whole number has at most 64 bits" if large else ""


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union type, or the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _fits(kind: Any, value: object) -> bool:
    origin = get_origin(kind)
    if origin is Literal:
        return value in get_args(kind)
    if origin is tuple:
        element = get_args(kind)[0]
        return isinstance(value, list | tuple) and all(
            any(_fits(k, v) for k in alternatives(element)) for v in value
        )
    kind = Mapping if origin is Mapping else kind
    if kind is Any or not isinstance(kind, type):  # of a user's class, such as a function
        return True
    return _is_a(kind, value)


def _is_a(kind: type, value: object) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
        return False
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, str | Path if kind is Path else kind)


def _describe(kind: Any) -> str:
    named = {
        int: "a whole number",
        float: "a finite number",
        str: "a text",
        Path: "a text",
        bool: "true or false",
    }
    words = []
    for alternative in alternatives(kind):
        if get_origin(alternative) is Literal:
            words += [repr(choice) for choice in get_args(alternative)]
        elif get_origin(alternative) is tuple:
            element = get_args(alternative)[0]
            example = ", such as [1, 2]" if int in alternatives(element) else ""
            words.append(f"a list, each {_describe(element)}{example}")
        elif get_origin(alternative) is Mapping:
            words.append("a table")
        elif alternative in named:
            words.append(named[alternative])
    return " or ".join(words)


def meanings(kind: Any) -> dict[str, str]:
    """Return what the docstrings of a class of settings and of its bases say of each key.

    >>> @dataclass(frozen=True)
    ... class Training(Settings):
    ...     '''Local training.
    ...
    ...     Args:
    ...         lr: The learning
    ...             rate.
    ...
    ...     '''
    >>> meanings(Training)
    {'lr': 'The learning rate.'}
    """
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, listed = inspect.cleandoc(base.__doc__ or "").partition("Args:\n")
        for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE):
            texts[name] = " ".join(text.split())
    return texts


def one_of(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a value that is not among the known ones."""
    if value not in known:
        raise BadSetting(f"{name} = {value!r} is unknown; known: {', '.join(known)}")
