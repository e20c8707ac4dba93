"""`replay-harness report` and the option `--report`: a page from a run or from a kept JSON report."""

from __future__ import annotations

import os
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import click

from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.session import Outcome

_FILE = click.Path(path_type=FilePath)


@click.command("report")
@click.argument("kept", type=click.Path(path_type=FilePath, exists=True, dir_okay=False), metavar="JSON")
@click.option("--out", type=_FILE, required=True, metavar="FILE", help="The page to write.")
@click.option("--faults", "faults_file", type=_FILE, metavar="FILE", help="Show this kill matrix, too.")
def report(kept: FilePath, out: FilePath, faults_file: FilePath | None) -> int:
    """Make a page of the JSON report that `verify --json` kept. It has no storage maps and timelines."""
    from harness.report.html.kept import load_run
    from harness.report.html.kills import load_kills
    from harness.report.html.page import render

    check_writable(out)
    kills = load_kills(faults_file) if faults_file is not None else None
    write(out, render(load_run(kept), kills))
    return 0


def check_asked(page: FilePath | None, faults_file: FilePath | None) -> None:
    """Raise UsageError now, not after the run, where a page cannot be made as asked."""
    if page is not None:
        check_writable(page)
    if faults_file is not None:
        if page is None:
            raise UsageError("--faults is shown in a page: give --report FILE, too")
        from harness.report.html.kills import load_kills

        load_kills(faults_file)


def write_page(page: FilePath, outcome: Outcome, faults_file: FilePath | None) -> None:
    """Write the page of a finished run."""
    from harness.report.environment import environment
    from harness.report.html.kills import load_kills
    from harness.report.html.page import Run, render

    kills = load_kills(faults_file) if faults_file is not None else None
    run = Run(outcome.results, outcome.coverage, outcome.seconds, environment(outcome.results), outcome.again)
    write(page, render(run, kills))


def check_writable(path: FilePath) -> None:
    """Make the page's folder; raise UsageError where the page cannot be written there."""
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name a file for the report")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot make folder {path.parent}: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: folder {path.parent} is not writable")


def write(path: FilePath, page: str) -> None:
    """Write the page whole or not at all: to a temporary file beside `path`, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
