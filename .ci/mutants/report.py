"""What became of the mutants: `docs/equivalent_mutants.md`, from mutmut's results and the reasons given."""

from __future__ import annotations

import platform
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from loop import NO_TESTS, SURVIVED, TIMEOUT
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

MOST = 0.03
"""Share of mutants that may survive."""

HEAD = """# Equivalent mutants

`make mutants` changes the code that judges, one small change at a time (mutmut {mutmut}), and runs the tests
that run the changed line. A change that no test notices is listed here with the reason why none can, or
`make mutants` fails; it fails as well where more than 3 % survive. Made on {day}, Python {python}; the
reasons are in `.ci/mutants/reasons.toml`.

mutmut changes bodies of functions. It leaves out module-level tables, decorated functions (properties, cached
functions, context managers) and annotations.

| module | mutants | killed | of these by time-out | survived | share | not tried |
|---|---|---|---|---|---|---|
"""


class Row(NamedTuple):
    """Counts of one module."""

    name: str
    mutants: int
    open: int
    """Not tried yet."""
    late: int
    """Killed by taking too long."""
    survived: int

    @property
    def share(self) -> str:
        """Survivors of those that were tried."""
        tried = self.mutants - self.open
        return f"{self.survived / tried:.1%}" if tried else ""


Reasons = dict[tuple[str, str], str]
"""(function, change) -> why no test can notice it."""


@dataclass(frozen=True)
class Survivor:
    """One mutant that no test noticed."""

    module: str
    function: str
    change: str
    """`before => after`, lines joined by spaces."""
    reached: bool
    """Whether any test runs its line."""

    @property
    def place(self) -> str:
        """The function's full name."""
        return f"{self.module}.{self.function}"


def read_reasons(reasons: Path) -> Reasons:
    """Return the reasons that are given."""
    given: dict[str, dict[str, list[str]]] = tomllib.loads(reasons.read_text(encoding="utf-8"))
    return {
        (place, change): reason
        for place, by_reason in given.items()
        for reason, changes in by_reason.items()
        for change in changes
    }


def write_report(reasons: Path, page: Path) -> int:
    """Write the page; return 1 if something has no reason or was not tried, or too much survived, else 0."""
    known = read_reasons(reasons)
    rows, survivors = [], []
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        codes = list(data.exit_code_by_key.values())
        if codes:
            here = [
                survivor(name, data)
                for name, code in data.exit_code_by_key.items()
                if code in (SURVIVED, NO_TESTS)
            ]
            survivors += here
            rows.append(Row(str(path), len(codes), codes.count(None), codes.count(TIMEOUT), len(here)))
    total = Row(
        "all",
        sum(row.mutants for row in rows),
        sum(row.open for row in rows),
        sum(row.late for row in rows),
        sum(row.survived for row in rows),
    )
    page.write_text(_page([*rows, total], survivors, known), encoding="utf-8")
    unexplained = [one for one in survivors if (one.place, one.change) not in known]
    for one in unexplained:
        print(f"{'survived' if one.reached else 'never run'}: {one.place}\n    {one.change!r}")
    gone = set(known) - {(one.place, one.change) for one in survivors}
    for place, change in sorted(gone if not total.open else ()):
        print(f"no longer survives: {place}\n    {change!r}")
    print(
        f"{total.mutants} mutants, {total.survived} survived ({total.share}), {len(unexplained)} without a"
        f" reason, {total.open} not tried yet"
    )
    return int(bool(unexplained) or total.open > 0 or total.survived > MOST * total.mutants)


def survivor(name: str, data: SourceFileMutationData) -> Survivor:
    """Describe one mutant."""
    module = name.rpartition(".")[0]
    function, owner = orig_function_and_class_names_from_key(name)
    reached = data.exit_code_by_key[name] == SURVIVED
    return Survivor(module, f"{owner}.{function}" if owner else function, _change(name, data), reached)


def _change(name: str, data: SourceFileMutationData) -> str:
    lines = get_diff_for_mutant(name, path=data.path).splitlines()[3:]
    before = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
    after = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
    return f"{before} => {after}"


def _page(rows: list[Row], survivors: list[Survivor], known: Reasons) -> str:
    day = date.today().isoformat()
    parts = [HEAD.format(mutmut=version("mutmut"), day=day, python=platform.python_version())]
    for row in rows:
        killed = row.mutants - row.open - row.survived
        cells = (row.name, row.mutants, killed, row.late, row.survived, row.share, row.open)
        parts.append(f"| {' | '.join(map(str, cells))} |\n")
    grouped: dict[str, dict[str, list[Survivor]]] = defaultdict(lambda: defaultdict(list))
    for one in survivors:
        grouped[one.place][known.get((one.place, one.change), "No reason is known yet.")].append(one)
    for place, by_reason in grouped.items():
        parts.append(f"\n## {place}\n")
        for reason, ones in by_reason.items():
            parts.append(f"\n{reason}\n\n")
            parts.extend(f"- `{one.change}`\n" for one in ones)
    return "".join(parts)
