"""`replay-harness plant ID`: one fault of the catalogue, reported as a run of its cases would report it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path as FilePath

import click

from harness import locate
from harness.report.html import command as html
from harness.types import EngineKind


@click.command("plant")
@click.argument("identity", metavar="ID")
@click.option("--sut", default="embedded", show_default=True, help="System that the fault is planted in.")
@click.option(
    "--engine",
    type=click.Choice([kind.value for kind in EngineKind]),
    default=EngineKind.TAPE.value,
    show_default=True,
    help="What captures and replays.",
)
@click.option(
    "--report", "page", type=click.Path(path_type=FilePath), metavar="FILE", help="Write one HTML page, too."
)
def plant(identity: str, sut: str, engine: str, page: FilePath | None) -> int:
    """Plant one fault of the catalogue in its cases and print what `verify` would say of them.

    ID is one of `replay-harness faults --list`. Exit status as of `verify`: 1 where the fault is found.
    """
    from harness.faults.bench import make_laboratory
    from harness.faults.catalogue import select
    from harness.faults.runner import Options
    from harness.faults.scene import Trace
    from harness.judge import judge
    from harness.known import load_known
    from harness.options import RunOptions
    from harness.report import terminal
    from harness.report.again import Again
    from harness.report.tally import Coverage
    from harness.session import Outcome
    from harness.worker import KNOWN_FILE, pictured

    if page is not None:
        html.check_asked(page, None)
    start = time.perf_counter()
    cases = locate.cases_dir(None)
    chosen = select(sut, (), (identity,))
    entry = chosen[0]
    kind = EngineKind(engine)
    laboratory, known = make_laboratory(Options(cases, sut, kind)), load_known(cases / KNOWN_FILE)
    drawn = page is not None
    options = RunOptions(cases, locate.golden_dir(None, cases), sut, kind, golden="off", pictures=drawn)
    others = (f" --sut {sut}" if sut != "embedded" else "") + (
        f" --engine {engine}" if engine != "tape" else ""
    )
    again = Again(whole=f"replay-harness plant {identity}{others}")
    results = []
    for case in entry.cases:
        began = time.perf_counter()
        subject = laboratory.subject(entry, replace(case, engine=kind), Trace())
        result = pictured(judge(subject, known), subject, options)
        results.append(replace(result, seconds=time.perf_counter() - began))
    outcome = Outcome(tuple(results), Coverage(len(results), {}, {}), time.perf_counter() - start, again)
    if page is not None:
        html.write_page(page, outcome, None)
    click.echo(f"planted: {entry.text}\n")
    terminal.render(terminal.make_console(), results, outcome.coverage, outcome.seconds, again)
    return 1 if outcome.unexpected else 0
