"""A span recorder that counts: which parts of a refresh ran, and how often, at next to no cost."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager

from harness.case import Case
from harness.engine.protocol import Engine
from harness.sut.protocol import SpanRecorder, Sut, SutFactory


class Counting:
    """Counts spans and hands them on to another recorder."""

    def __init__(self) -> None:
        """Count from zero."""
        self.spans: Counter[str] = Counter()
        self._inner: SpanRecorder | None = None

    def __call__(self, name: str, step: int = -1) -> AbstractContextManager[None]:
        """Count one span."""
        self.spans[name] += 1
        assert self._inner is not None
        return self._inner(name, step)

    def taken(self) -> Counter[str]:
        """Return what was counted since the last call."""
        spans, self.spans = self.spans, Counter()
        return spans

    def factory(self, make: SutFactory) -> SutFactory:
        """Return a factory whose systems' spans are counted here."""

        def made(case: Case, engine: Engine, span: SpanRecorder) -> Sut:
            self._inner = span
            return make(case, engine, self)

        return made
