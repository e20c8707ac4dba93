"""Replacing attributes for a while: every change is recorded and undone in reverse order."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any

_ABSENT = object()


class Patches(AbstractContextManager["Patches"]):
    """A stack of replacements; leaving the context puts everything back exactly as it was.

    An attribute that an object or class merely inherits is shadowed, and the shadow is deleted again,
    so that `vars()` of the owner is the same before and after.
    """

    def __init__(self) -> None:
        self._undo = ExitStack()

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name` to `value`."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        if before is _ABSENT:
            self._undo.callback(delattr, owner, name)
        else:
            self._undo.callback(setattr, owner, name, before)

    def item(self, mapping: MutableMapping[str, Any], key: str, value: Any) -> None:
        """Set `mapping[key]` to `value`."""
        before = mapping.get(key, _ABSENT)
        mapping[key] = value
        if before is _ABSENT:
            self._undo.callback(mapping.pop, key, None)
        else:
            self._undo.callback(mapping.__setitem__, key, before)

    def callback(self, function: Callable[[], object]) -> None:
        """Call `function` when everything is undone."""
        self._undo.callback(function)

    def enter(self, context: AbstractContextManager[Any]) -> None:
        """Enter a context that ends when everything is undone."""
        self._undo.enter_context(context)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()
