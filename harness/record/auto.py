"""Recording without a change to the server: `REPLAY_HARNESS_RECORD=/traces/run` and nothing else.

SGLang loads the plug-ins of the entry-point group `sglang.srt.plugins` in each of its processes; `plugin` is
one. Elsewhere `import harness.record.auto` does the same. Without the variable nothing happens. The recorder
is put in place when SGLang's backend module has been imported, and costs nothing until then.

Also read: `REPLAY_HARNESS_RECORD_PAGES` (`ids`, `digest`, `none`) and `REPLAY_HARNESS_RECORD_LIMIT`
(records).
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

VARIABLE = "REPLAY_HARNESS_RECORD"
MODULE = "sglang.srt.layers.attention.dsa_backend"


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds SGLang's backend module as the finders after it do, and installs once it has run."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`; None for every other module."""
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)  # once, and `find_spec` below must not come back here
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then_install(module: ModuleType) -> None:
                execute(module)
                _install(module, self._path)

            spec.loader.exec_module = then_install  # type: ignore[method-assign]
        return spec


def plugin() -> None:
    """Arrange for recording where the environment asks for it."""
    path = os.environ.get(VARIABLE, "")
    if not path or any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        return
    if (module := sys.modules.get(MODULE)) is not None:
        _install(module, path)
    else:
        sys.meta_path.insert(0, _Waiting(path))


def _install(module: ModuleType, path: str) -> None:
    from harness.record.install import install
    from harness.record.output import Limits

    if hasattr(module, "_replay_harness_recording"):
        return
    limit = os.environ.get(f"{VARIABLE}_LIMIT", "")
    limits = Limits(records=int(limit)) if limit.isdigit() else Limits()
    pages = os.environ.get(f"{VARIABLE}_PAGES", "ids")
    vars(module)["_replay_harness_recording"] = install(module, path, pages=pages, limits=limits)


plugin()
