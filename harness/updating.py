"""Updating goldens: drive cases one after the other in this process, judge them, write what is accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import environ as process_environ
from typing import TYPE_CHECKING

from harness import oracle
from harness.checks.subject import Subject
from harness.golden.pending import Pending, Review
from harness.golden.store import GoldenStore
from harness.golden.update import GoldenUpdate
from harness.judge import judge
from harness.known import load_known
from harness.truth import Truth
from harness.worker import KNOWN_FILE, Worker

if TYPE_CHECKING:
    from harness.case import Case
    from harness.findings import CaseResult
    from harness.options import RunOptions


PROPOSE = "propose"
"""Mode of a run whose goldens become pending ones."""


class Updating:
    """One update of goldens: `run` cases, then `apply` once."""

    def __init__(self, options: RunOptions, mode: str, reason: str) -> None:
        """Start an update.

        mode: new, changed, all, or `PROPOSE`, which may run anywhere. reason: why values may change,
        kept in the manifests. Raises GoldenError where updating is refused (CI, workers, no reason),
        UsageError where the device is missing.
        """
        self._store = GoldenStore(options.golden_dir)
        environ = {} if mode == PROPOSE else process_environ  # CI may propose: it accepts nothing
        self._update = GoldenUpdate(
            self._store, "all" if mode == PROPOSE else mode, reason, oracle.expected, environ=environ
        )
        self._worker = Worker(replace(options, golden="off"))
        self._known = load_known(options.cases_dir / KNOWN_FILE)
        self._truth = Truth()

    def run(self, case: Case) -> CaseResult:
        """Drive and judge one case, goldens left aside, and take it up."""
        observation, ordinary = self._worker.observe(case)
        subject = Subject.of(observation, self._truth, ordinary, golden_checked=False)
        result = judge(subject, self._known)
        self._update.add(observation, result.findings)
        return result

    def apply(self, echo: Callable[[str], None]) -> None:
        """Write what the mode accepts; `echo` gets the changes line by line.

        Raises GoldenError, with nothing written, where a case had an unexpected finding or the oracle
        contradicts a value.
        """
        self._update.apply(echo)

    def propose(self) -> tuple[Pending, ...]:
        """Keep what differs as pending goldens and return those; nothing accepted is touched.

        Raises GoldenError as `apply` does.
        """
        return Review(self._store).propose(self._update.candidates())

    def accept(self, names: Sequence[str], reason: str, echo: Callable[[str], None]) -> None:
        """Propose, then accept the goldens of these names; `echo` gets what changed, line by line.

        Raises GoldenError as `apply` does, and where one of the names has nothing pending.
        """
        self.propose()
        review = Review(self._store)
        for name in names:
            for line in review.accept(name, reason):
                echo(line)
