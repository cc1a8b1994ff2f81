"""Plugins: the user's own modules that a spec lists, and the parts in them that it names.

A spec imports the modules in its `plugins` list and no others. They are next to the SPEC.toml
or on Python's path. "my_module:net" then names `net` in `my_module`.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedraw.errors import BadInput, nearest

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Plugins(NamedTuple):
    """The modules that a spec may use, and the folder that is searched for them first."""

    modules: Sequence[str] = ()
    folder: str | None = None

    def find(self, name: str, key: str) -> Any:
        """Return the part named "module:attribute"; messages call the setting `key`."""
        module, _, attribute = name.partition(":")
        if module not in self.modules:
            listed = ", ".join(f'"{known}"' for known in (*self.modules, module))
            raise BadInput(
                f"{key} = {name!r} is in a module that is not listed; write plugins = [{listed}] "
                "at the top of the spec if you trust it"
            )
        found = import_plugin(module, self.folder)
        if not hasattr(found, attribute):
            public = [known for known in vars(found) if not known.startswith("_")]
            raise BadInput(
                f"{key} = {name!r}: module {module} ({found.__file__}) has no {attribute!r}; "
                f"{nearest(attribute, public)}"
            )
        return getattr(found, attribute)


NO_PLUGINS = Plugins()


def import_plugin(name: str, folder: str | None = None) -> ModuleType:
    """Import one module, which may import others from its folder."""
    if not _MODULE.fullmatch(name):
        raise BadInput(f'plugins has {name!r}; give the names of modules, such as "my_module"')
    file = _file_in(folder, name)
    if file is not None:
        _refuse_other(name, file)
    try:
        with _first_on_path(folder if file is not None else None):
            module = importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name is not None and name.startswith(problem.name):
            place = f"in {folder} or " if folder else ""
            raise BadInput(
                f"plugins: there is no module {name!r} {place}on Python's path; put {name}.py "
                "next to the SPEC.toml, or install it"
            ) from None
        raise _failed(name, problem) from problem
    except Exception as problem:  # a module may fail in any way
        raise _failed(name, problem) from problem
    if file is not None:
        _send_by_value(module)
    return module


def holds_plugin(folder: Path, modules: Sequence[str]) -> bool:
    """Return whether one of the modules is in the folder."""
    return any(_file_in(str(folder), name) is not None for name in modules)


def _file_in(folder: str | None, name: str) -> str | None:
    """Return the file of a module, or of its top-level package, in the folder, or None."""
    if folder is None:
        return None
    importlib.invalidate_caches()
    found = PathFinder.find_spec(name.partition(".")[0], [folder])
    return None if found is None else found.origin or str(Path(folder) / name.partition(".")[0])


def _refuse_other(name: str, file: str) -> None:
    """Refuse a module if another of the same name has been imported from elsewhere."""
    top = sys.modules.get(name.partition(".")[0])
    imported = getattr(top, "__file__", None)
    if imported is not None and Path(imported).resolve() != Path(file).resolve():
        raise BadInput(
            f"plugins: module {name!r} is already imported from {imported}, so {file} cannot be "
            "imported; rename one of them, or run in a new process"
        )


@contextmanager
def _first_on_path(folder: str | None) -> Iterator[None]:
    """Search the folder for modules first, as Python does for the folder of a script."""
    if folder is None:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _send_by_value(module: ModuleType) -> None:
    """Send the module's functions to worker processes by value, as these cannot import it."""
    with suppress(ModuleNotFoundError):
        import cloudpickle

        cloudpickle.register_pickle_by_value(module)


def _failed(name: str, problem: Exception) -> BadInput:
    return BadInput(
        f"plugins: importing {name!r} failed ({type(problem).__name__}: {problem}); correct the "
        "module"
    )
