"""vLLM, opened: any of its functions can be wrapped while it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from harness.case import Case
from harness.engine.protocol import Engine
from harness.errors import HarnessError
from harness.faults.scene import Given, Hooks
from harness.sut.patches import Patches
from harness.sut.protocol import SpanRecorder
from harness.sut.vllm.loader import load
from harness.sut.vllm.seams import Seams
from harness.sut.vllm.sut import VllmSut
from harness.traffic import build_program

Around = Callable[..., Any]
"""(the plain function, its arguments ...) -> what is returned instead."""


@dataclass(frozen=True)
class _Opened:
    """A function of vLLM that is wrapped during its calls."""

    owners: Callable[[Seams], Iterable[Any]]
    name: str
    around: Around


class VllmTarget(VllmSut):
    """See `harness.faults.scene.Target`, as far as vLLM has what it asks for; besides, functions are
    wrapped."""

    def __init__(self, case: Case, engine: Engine, span: SpanRecorder) -> None:
        self.hooks = Hooks()
        self._opened: list[_Opened] = []
        super().__init__(case, engine, span, load(None, engine.device), max(build_program(case).buckets))

    @property
    def seams(self) -> Seams:
        """vLLM's own objects."""
        return self._loaded.seams

    def wrap(self, owners: Callable[[Seams], Iterable[Any]], name: str, around: Around) -> None:
        """Have `around` stand around a function of these owners from now on."""
        self._opened.append(_Opened(owners, name, around))

    @contextmanager
    def _calls(self) -> Iterator[Patches]:
        with super()._calls() as patches:
            for one in self._opened:
                for owner in one.owners(self.seams):
                    patches.attribute(owner, one.name, _around(one.around, getattr(owner, one.name)))
            yield patches

    def point(self, step: int, bucket: int, metadata: Any, *, entry: bool = True) -> None:
        """See `Target`: all steps have one object."""
        self.drafts.metadata[bucket] = metadata

    def rebind_state(self, step: int, name: str, tensor: torch.Tensor) -> None:
        """See `Target`: there is no state but the runner's."""
        raise HarnessError(f"vLLM has no state {name} to bind")

    def given(self, bucket: int) -> Given:
        """See `Target`: vLLM's runner has other inputs."""
        raise HarnessError("vLLM's inputs are its runner's buffers: wrap the function that reads them")

    def reading(self, given: Given) -> AbstractContextManager[None]:
        """See `Target`, and `given`."""
        raise HarnessError("vLLM's inputs are its runner's buffers: wrap the function that reads them")


def _around(around: Around, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function proper, so that it becomes a method where it is put into a class."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(plain, *args, **kwargs)

    return wrapped
