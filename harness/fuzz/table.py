"""Every fault of the catalogue that traffic can reach, planted and fuzzed: how soon it is found, how small.

`replay-harness fuzz --catalogue` prints the table and, with `--json`, writes it as data.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from harness.errors import UsageError
from harness.faults.catalogue import entries
from harness.fuzz.campaign import Campaign, Outcome
from harness.fuzz.planted import plant, reachable, unreachable
from harness.fuzz.session import FuzzOptions, Say, prepare
from harness.pool import worker_context

SCHEMA = 1
LEAST_SHARE = 0.95
"""Of the reachable faults have to be found within the time, and of those have to shrink to few operations."""
MOST_OPERATIONS = 4
"""How many operations are few."""
DEFAULT_SEED = 0


@dataclass(frozen=True)
class Row:
    """One fault under the fuzzer."""

    id: str
    text: str
    setting: str
    found: bool
    seconds: float
    """Until it was found; all the time given where it was not."""
    sequences: int
    """Run until then."""
    drawn: int
    """Operations of the sequence as it was drawn; 0 where nothing was found."""
    operations: int
    """Operations after shrinking."""
    requests: int
    """Live requests of all its batches, after shrinking."""
    shrinking: int
    """Runs spent on shrinking."""
    steady: bool
    checks: tuple[str, ...]
    """Checks that spoke about the shrunk sequence."""
    as_expected: bool
    """Whether one of those that the catalogue names spoke about it as it was drawn or shrunk."""
    sequence: str
    """The shrunk sequence as TOML."""


def run(options: FuzzOptions, ids: Sequence[str], jobs: int, say: Say) -> list[Row]:
    """Fuzz each fault by itself; rows in the order of the catalogue, `say` gets a line for each.

    ids: only these, all reachable ones where there are none. Raises UsageError for an id that does not exist
    or that traffic cannot reach.
    """
    names = [fault.id for fault in reachable(options.sut)]
    for identity in ids:
        if identity not in names:
            raise UsageError(f"--plant {identity}: {_why_not(options.sut, identity)}")
    chosen = [name for name in names if not ids or name in ids]
    rows = {}
    for row in _rows(options, chosen, jobs):
        rows[row.id] = row
        fate = f"found in {row.seconds:.1f} s, {row.operations} operations" if row.found else "not found"
        say(f"{len(rows)} of {len(chosen)}: {row.id} {fate}")
    return [rows[name] for name in chosen]


def _rows(options: FuzzOptions, chosen: Sequence[str], jobs: int) -> Iterator[Row]:
    if jobs == 1:
        yield from (attempt(options, name) for name in chosen)
        return
    with ProcessPoolExecutor(jobs, worker_context()) as pool:
        futures = [pool.submit(attempt, options, name) for name in chosen]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:  # interrupted: do not wait for what runs
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def attempt(options: FuzzOptions, identity: str) -> Row:
    """Plant one fault and fuzz it; the same seed for every fault, no example database."""
    own = replace(options, plant=identity)
    bench, space = prepare(own)
    campaign = Campaign(bench, space, own.limits, seed=DEFAULT_SEED if own.seed is None else own.seed)
    return _row(own, campaign.run())


def _row(options: FuzzOptions, outcome: Outcome) -> Row:
    from harness.casefile import load_models
    from harness.fuzz.reduce import size_of
    from harness.fuzz.store import dump_sequence

    fault = plant(options.plant, options.sut, options.engine, load_models(options.cases_dir)).fault
    found = outcome.found
    last = () if found is None else tuple(dict.fromkeys(finding.check for finding in found.findings))
    spoke = set() if found is None else {*found.spoke, *last}
    operations, requests = (0, 0) if found is None else size_of(found.trial.sequence)[:2]
    return Row(
        id=fault.id,
        text=fault.text,
        setting=fault.case.id,
        found=found is not None,
        seconds=round(outcome.seconds if found is None else found.seconds, 2),
        sequences=outcome.tally.sequences if found is None else found.sequences,
        drawn=0 if found is None else len(found.first.operations),
        operations=operations,
        requests=requests,
        shrinking=0 if found is None else found.shrinking,
        steady=found is None or found.steady,
        checks=last,
        as_expected=bool(spoke & set(fault.checks)),
        sequence="" if found is None else dump_sequence(found.trial.sequence),
    )


def _why_not(sut: str, identity: str) -> str:
    entry = next((one for one in entries(sut) if one.id == identity), None)
    return "no such fault" if entry is None else unreachable(entry)


def found_share(rows: Sequence[Row]) -> float:
    """Return the share of faults that were found."""
    return sum(row.found for row in rows) / max(len(rows), 1)


def small_share(rows: Sequence[Row]) -> float:
    """Return the share of the found faults that shrank to few operations."""
    found = [row for row in rows if row.found]
    return sum(row.operations <= MOST_OPERATIONS for row in found) / max(len(found), 1)


def enough(rows: Sequence[Row]) -> bool:
    """Whether enough faults were found, and enough of those shrunk to few operations."""
    return min(found_share(rows), small_share(rows)) >= LEAST_SHARE


def show(rows: Sequence[Row], console: Console) -> None:
    """Print a line a fault and the shares."""
    table = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("fault", "found", "seconds", "sequences", "drawn", "shrunk", "requests", "spoke"):
        right = name in ("seconds", "sequences", "drawn", "shrunk", "requests")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        figures = (row.sequences, row.drawn, row.operations, row.requests)
        cells = (row.id, "yes" if row.found else "NO", f"{row.seconds:.1f}", *map(str, figures))
        named = ", ".join(row.checks) + ("" if row.as_expected or not row.found else " (not as expected)")
        table.add_row(*map(Text, (*cells, named)))
    console.print(table)
    console.print(
        f"{sum(row.found for row in rows)} of {len(rows)} found ({found_share(rows):.1%}, "
        f"wanted {LEAST_SHARE:.0%}); {small_share(rows):.1%} of them shrunk to {MOST_OPERATIONS} operations "
        f"or fewer (wanted {LEAST_SHARE:.0%})"
    )


def document(rows: Sequence[Row], options: FuzzOptions) -> dict[str, Any]:
    """Return the table as data, with what traffic cannot reach and why."""
    left_out = {entry.id: unreachable(entry) for entry in entries(options.sut) if unreachable(entry)}
    return {
        "schema": SCHEMA,
        "sut": options.sut,
        "engine": options.engine.value,
        "seed": DEFAULT_SEED if options.seed is None else options.seed,
        "seconds_each": options.limits.seconds,
        "found": sum(row.found for row in rows),
        "of": len(rows),
        "share": round(found_share(rows), 4),
        "share_of_few_operations": round(small_share(rows), 4),
        "left_out": left_out,
        "faults": [asdict(row) for row in rows],
    }
