"""`replay-harness faults`: tries the catalogue, prints the kill matrix, returns the exit status."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any

import click

from harness import locate
from harness.errors import UsageError
from harness.report import jsonreport, terminal
from harness.types import EngineKind


@click.command("faults")
@click.option("--class", "classes", multiple=True, metavar="LETTER", help="Class of faults, or `harmless`.")
@click.option("--id", "ids", multiple=True, metavar="ID", help="One entry, as in docs/faults.md.")
@click.option("--sut", default="embedded", show_default=True, help="System that the faults are planted in.")
@click.option(
    "--engine",
    type=click.Choice([kind.value for kind in EngineKind]),
    default=EngineKind.TAPE.value,
    show_default=True,
    help="What captures and replays.",
)
@click.option("--reverse", is_flag=True, help="Also require that every check is needed by some fault.")
@click.option("--list", "list_only", is_flag=True, help="Print the chosen entries and run nothing.")
@click.option("--jobs", type=click.IntRange(min=0), default=0, help="Worker processes; 0: as fits.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=FilePath), metavar="FILE", help="Write it as data."
)
def faults(
    classes: tuple[str, ...],
    ids: tuple[str, ...],
    sut: str,
    engine: str,
    reverse: bool,
    list_only: bool,
    jobs: int,
    json_file: FilePath | None,
) -> int:
    """Plant every fault of the catalogue and see which check notices it.

    Exit status 1 where a fault survives, is noticed only by checks that need not, a harmless change is
    flagged, or an injection never changed anything.
    """
    from harness.faults.catalogue import select
    from harness.faults.runner import Options

    if json_file is not None:
        jsonreport.check_writable(json_file)
    if reverse and (classes or ids):
        raise UsageError("--reverse asks about the whole catalogue: leave --class and --id out")
    chosen = select(sut, classes, ids)
    if list_only:
        for entry in chosen:
            click.echo(f"{entry.id:5} {entry.injection.kind}: {entry.text}")
        return 0
    cases = locate.cases_dir(None)
    options = Options(cases, sut, EngineKind(engine), jobs)
    return _run(options, chosen, reverse, json_file)


def _run(options: Any, chosen: Any, reverse: bool, json_file: FilePath | None) -> int:
    from harness.faults import report
    from harness.faults.kills import Kills, superfluous
    from harness.faults.redundant import REASONS
    from harness.faults.runner import attempt

    tried = [one for trials in attempt(options, chosen) for one in trials]
    kills = Kills.of(tried, (entry.id for entry in chosen))
    texts = {entry.id: entry.text for entry in chosen}
    console = terminal.make_console()
    report.show(kills, console, texts)
    problems = superfluous(kills, REASONS) if reverse else []
    if reverse:
        report.show_needed(kills, problems, REASONS, console)
    if json_file is not None:
        document = report.document(kills, texts, options.sut, options.engine.value)
        jsonreport.write(json_file, document)
    return 1 if kills.bad or problems else 0
