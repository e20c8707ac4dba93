"""Updating goldens: explicit, reviewed, by one process, never with a value that the oracle contradicts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from os import environ as process_environ

from harness.errors import GoldenError, HarnessError
from harness.findings import Finding
from harness.golden.collect import collect, config_of, default_policy, golden_key, tool_versions
from harness.golden.confirm import Confirmation, Oracle
from harness.golden.merge import Change, Merge, UpdateMode, pruned
from harness.golden.model import Golden, Policy, stem
from harness.golden.review import UpdateReport, describe
from harness.golden.store import GoldenStore
from harness.observation import Observation


def refuse_here(environ: Mapping[str, str]) -> None:
    """Raise GoldenError where goldens may not be written: in CI, in a worker of a parallel test run."""
    if environ.get("CI", "").lower() not in ("", "0", "false"):
        raise GoldenError("CI is set: goldens are never updated in CI; update and review them by hand")
    if environ.get("PYTEST_XDIST_WORKER"):
        raise GoldenError("goldens are never updated by parallel workers; run again without -n")


class GoldenUpdate:
    """Collects what a run produced, then writes what the mode accepts."""

    def __init__(
        self,
        store: GoldenStore,
        mode: str,
        reason: str,
        oracle: Oracle,
        *,
        policy: Policy | None = None,
        environ: Mapping[str, str] = process_environ,
    ) -> None:
        """Start an update in a mode of `merge.UpdateMode`.

        reason: why the values may change; stored in the manifest. policy: for goldens made for the
        first time, others keep theirs. Raises GoldenError where updating is refused, the reason is
        empty or the mode unknown.
        """
        refuse_here(environ)
        if not reason.strip():
            raise GoldenError("an update of goldens needs a reason: say in a few words why values change")
        if mode not in list(UpdateMode):
            raise GoldenError(f"golden update mode {mode!r} is none of {', '.join(UpdateMode)}")
        self.problems: list[str] = []
        """Why the update will be refused, one line each."""
        self._store = store
        self._mode = UpdateMode(mode)
        self._reason = " ".join(reason.split())
        self._tools = tool_versions()
        self._confirmation = Confirmation(oracle)
        self._policy = policy
        self._candidates: dict[tuple[str, str], Golden] = {}

    def add(self, observation: Observation, findings: Sequence[Finding]) -> None:
        """Take up one judged observation.

        findings: of all checks; the golden check's own do not count. One that is not known refuses
        the whole update; known ones leave the observation's values out (its structure counts).
        Raises GoldenError where the stored golden is damaged.
        """
        case = observation.case
        serious = [finding for finding in findings if finding.check != "golden"]
        unknown = next((finding for finding in serious if not finding.known), None)
        if unknown is not None:
            self.problems.append(
                f"{case.id} has findings, first {unknown.check}/{unknown.kind}: {unknown.message}"
            )
            return
        pair = golden_key(case)
        known = self._candidates.get(pair)
        if known is not None and known.config != config_of(case):
            self.problems.append(f"{case.id} has another model or geometry than earlier cases of this run")
            return
        policy = known.policy if known else self._policy_for(observation)
        if not serious:
            self.problems.extend(self._confirmation.contradictions(observation, policy))
        new = collect(observation, policy, self._reason, tools=self._tools, values=not serious)
        merge = Merge(known, new, UpdateMode.NEW)
        self._candidates[pair] = merge.result()
        conflicts = (change for change in merge.changes if change.kind == "changed")
        self.problems.extend(
            f"{case.id} disagrees with an earlier case of this run: {describe([change])}"
            for change in conflicts
        )

    def apply(self, echo: Callable[[str], None] | None = None) -> UpdateReport:
        """Write what the mode accepts and return what changed; `echo` is given the report line by line.

        Raises GoldenError, before anything is written, for any of `problems`.
        """

        def merged(old: Golden | None, new: Golden) -> tuple[Golden, tuple[Change, ...]]:
            merge = Merge(old, new, self._mode)
            golden = merge.result()
            dropped = set(old.entries if old else ()) - set(golden.entries)
            if dropped:
                raise HarnessError(f"an update would drop entries of {golden.name}: {sorted(dropped)[0]}")
            return golden, tuple(merge.changes)

        return self._write(merged, echo)

    def candidates(self) -> Mapping[tuple[str, str], Golden]:
        """Return what the run produced, by model and engine. Raises GoldenError for any of `problems`."""
        self._refuse()
        return self._candidates

    def prune(self, echo: Callable[[str], None] | None = None) -> UpdateReport:
        """Remove from the goldens of this run's models what this run did not produce.

        Only after a run of everything that the goldens are for: what a selection leaves out would be
        removed. Goldens of other models stay. Raises GoldenError as `apply` does.
        """

        def without(old: Golden | None, new: Golden) -> tuple[Golden, tuple[Change, ...]]:
            return (new, ()) if old is None else pruned(old, new, self._reason)

        return self._write(without, echo)

    def _write(
        self,
        change: Callable[[Golden | None, Golden], tuple[Golden, tuple[Change, ...]]],
        echo: Callable[[str], None] | None,
    ) -> UpdateReport:
        self._refuse()
        changes: list[Change] = []
        written: list[str] = []
        with self._store.lock():
            planned = []
            for pair, new in sorted(self._candidates.items()):
                golden, found = change(self._store.find(*pair), new)
                changes += found
                if any(one.accepted for one in found):
                    planned.append((pair, golden))
            for pair, golden in planned:
                self._store.save(golden)
                written.append(stem(*pair))
        report = UpdateReport(tuple(changes), self._reason, tuple(written))
        if echo is not None:
            for line in report.lines():
                echo(line)
        return report

    def _refuse(self) -> None:
        if self.problems:
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            raise GoldenError(f"no golden was updated: {self.problems[0]}{more}")

    def _policy_for(self, observation: Observation) -> Policy:
        case = observation.case
        stored = self._store.for_case(case)
        if stored is not None:
            return stored.policy
        return self._policy or default_policy(case)


def prune_files(
    store: GoldenStore,
    known: Collection[tuple[str, str]],
    *,
    environ: Mapping[str, str] = process_environ,
) -> tuple[str, ...]:
    """Remove goldens of no known (model, engine kind), an explicit act; return the stems removed.

    Raises GoldenError where updating is refused, or where nothing is known at all (that would
    remove every golden).
    """
    refuse_here(environ)
    if not known:
        raise GoldenError("no model is known, so every golden would be removed; are the case files there?")
    names = {stem(model, engine) for model, engine in known}
    with store.lock():
        orphans = tuple(name for name in store.stems() if name not in names)
        for name in orphans:
            store.remove(name)
    return orphans
