"""Importing part of a server's package without the packages that its metadata path never calls.

Two obstacles stand between a metadata builder and a small environment: package `__init__` modules that
pull in half of the server, and third-party packages that are imported on the way and never called.
`Shim` gives bare packages for the former, whose submodules still load from disk, and placeholder modules
for the latter. It is in force only while the package is imported or called, so that the rest of the
process never sees a placeholder.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Names:
    """What is left out of one package."""

    package: str
    """The server's own top-level package, e.g. `sglang`."""
    placeholders: frozenset[str]
    """Third-party packages that may be missing."""
    bare: tuple[str, ...]
    """Packages whose `__init__` is not run."""
    replaced: tuple[str, ...]
    """Modules that are placeholders even where they are installed."""


class _PlaceholderMeta(type):
    """Gives a placeholder class an attribute of every ordinary name."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # protocols are probed as absent
        return placeholder(name)


def placeholder(name: str) -> Any:
    """Return a class that may be subclassed, called, asked for attributes or used as a decorator."""

    def call(self: object, *args: Any, **kwargs: Any) -> Any:
        decorates = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if decorates else self

    body = {
        "__init__": lambda self, *args, **kwargs: None,
        "__call__": call,
        "__getattr__": lambda self, attribute: placeholder(attribute)(),
    }
    return _PlaceholderMeta(name, (), body)


class PlaceholderModule(ModuleType):
    """A module whose missing attributes are submodules on its path, or else placeholders."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for folder in vars(self).get("__path__") or ():
            path = Path(folder, name)
            if path.is_dir() or path.with_suffix(".py").is_file():
                return importlib.import_module(f"{self.__name__}.{name}")
        value = placeholder(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves placeholder modules: replaced ones first, absent third-party ones last."""

    def __init__(self, names: Names, first: bool) -> None:
        self._names = names
        self._first = first
        self._made: dict[str, ModuleType] = {}

    def made(self) -> dict[str, ModuleType]:
        """Return the modules outside the package that were made since it was last asked, by name."""
        made, self._made = self._made, {}
        inside = self._names.package + "."
        return {name: module for name, module in made.items() if not name.startswith(inside)}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Answer with a placeholder package, or leave the name to the next finder."""
        if self._first:
            replaced = self._names.replaced
            wanted = any(fullname == name or fullname.startswith(name + ".") for name in replaced)
        else:
            top = fullname.partition(".")[0]
            # A missing submodule of an installed package is left to its own ImportError.
            known = top in self._names.placeholders
            wanted = known and isinstance(sys.modules.get(top), PlaceholderModule | None)
        return ModuleSpec(fullname, self, is_package=True) if wanted else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the placeholder."""
        self._made[spec.name] = PlaceholderModule(spec.name)
        return self._made[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing."""


class Shim:
    """Makes a package importable from a folder; `active()` says for how long."""

    def __init__(self, names: Names, folder: Path, stand_ins: Mapping[str, ModuleType]) -> None:
        self._names = names
        self._folder = folder
        self._outside: dict[str, ModuleType] = dict(stand_ins)
        """Modules outside the package that only the package may see, by name."""
        self._finders = (_Finder(names, first=True), _Finder(names, first=False))

    def prepare(self) -> None:
        """Put the bare packages into `sys.modules`, where their submodules find their parents."""
        for name in self._names.bare:
            package = ModuleType(name) if name == self._names.package else PlaceholderModule(name)
            package.__path__ = [str(self._folder.joinpath(*name.split(".")))]
            package.__spec__ = ModuleSpec(name, None, is_package=True)
            sys.modules[name] = package

    @contextmanager
    def active(self) -> Iterator[None]:
        """Serve placeholders within the block; outside it the process does not know of them."""
        hidden = {name: sys.modules[name] for name in self._outside if name in sys.modules}
        sys.modules.update(self._outside)
        sys.meta_path.insert(0, self._finders[0])
        sys.meta_path.append(self._finders[1])
        try:
            yield
        finally:
            for finder in self._finders:
                sys.meta_path.remove(finder)
                self._outside |= finder.made()
            for name in self._outside:
                sys.modules.pop(name, None)
            sys.modules.update(hidden)

    def names(self) -> tuple[str, ...]:
        """Return the top-level names of what stands in for packages outside the server's own, sorted."""
        return tuple(sorted({name.partition(".")[0] for name in self._outside}))
