"""`replay-harness golden status | diff | accept | drop | prune`: reviewing pending goldens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness import locate

if TYPE_CHECKING:
    from harness.golden.pending import Review
    from harness.golden.store import GoldenStore

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FOLDER = click.Path(path_type=FilePath)
LONGEST = 40
"""Lines of a diff that are printed unless all are asked for."""


def _places(command: _Command) -> _Command:
    command = click.option("--cases-dir", type=_FOLDER, help="Case files; default: cases/ of the checkout.")(
        command
    )
    return click.option("--golden-dir", type=_FOLDER, help="Goldens; default: golden/ beside the cases.")(
        command
    )


@click.command("status")
@_places
def status(cases_dir: FilePath | None, golden_dir: FilePath | None) -> int:
    """Say which goldens are pending, and what accepting each would change. Exit status 1 if any is."""
    pending = _review(cases_dir, golden_dir).pending()
    for one in pending:
        click.echo(one.status)
    if not pending:
        click.echo("nothing is pending")
    return 1 if pending else 0


@click.command("diff")
@click.argument("names", nargs=-1)
@click.option("--all", "whole", is_flag=True, help=f"All lines, not the first {LONGEST} of each.")
@_places
def diff(names: tuple[str, ...], whole: bool, cases_dir: FilePath | None, golden_dir: FilePath | None) -> int:
    """Say how pending goldens differ from accepted ones: per field how many, first, largest, ulp."""
    review = _review(cases_dir, golden_dir)
    for one in [review.of(name) for name in names] or review.pending():
        lines = one.diff()
        shown = lines if whole else lines[:LONGEST]
        for line in shown:
            click.echo(line)
        if len(shown) < len(lines):
            click.echo(f"{one.name}: {len(lines) - len(shown)} more lines: --all prints them")
    return 0


@click.command("accept")
@click.argument("names", nargs=-1, required=True)
@click.option("--reason", required=True, metavar="TEXT", help="Why values may change; kept in the manifests.")
@_places
def accept(
    names: tuple[str, ...], reason: str, cases_dir: FilePath | None, golden_dir: FilePath | None
) -> int:
    """Accept pending goldens by name, such as `tiny.tape`. Refused in CI."""
    review = _review(cases_dir, golden_dir)
    for name in names:
        review.of(name)  # all names are known before the first is accepted
    for name in names:
        for line in review.accept(name, reason):
            click.echo(line)
    return 0


@click.command("drop")
@click.argument("names", nargs=-1, required=True)
@_places
def drop(names: tuple[str, ...], cases_dir: FilePath | None, golden_dir: FilePath | None) -> int:
    """Forget pending goldens by name; what is accepted stays."""
    review = _review(cases_dir, golden_dir)
    for name in names:
        review.drop(name)
        click.echo(f"dropped: {name}")
    return 0


@click.command("prune")
@_places
def prune(cases_dir: FilePath | None, golden_dir: FilePath | None) -> int:
    """Remove goldens, pending ones too, whose model or engine no case file has. Refused in CI."""
    for line in prune_orphans(_cases(cases_dir), _store(cases_dir, golden_dir)):
        click.echo(line)
    return 0


def prune_orphans(cases_dir: FilePath, store: GoldenStore) -> tuple[str, ...]:
    """Remove goldens of no known model and engine; return a line each. Raises GoldenError where refused."""
    from harness.casefile import load_models
    from harness.golden.pending import Review
    from harness.golden.update import prune_files

    known = [(model.name, key) for model in load_models(cases_dir).values() for key in model.geometries]
    removed = prune_files(store, known)
    pending = prune_files(Review(store).store, known) if Review(store).store.root.is_dir() else ()
    lines = (*(f"removed: {name}" for name in removed), *(f"removed: {name} (pending)" for name in pending))
    return lines or ("nothing to remove: every golden has its model and engine",)


COMMANDS = (status, diff, accept, drop, prune)


def _cases(cases_dir: FilePath | None) -> FilePath:
    return locate.cases_dir(cases_dir)


def _store(cases_dir: FilePath | None, golden_dir: FilePath | None) -> GoldenStore:
    from harness.golden.store import GoldenStore

    return GoldenStore(locate.golden_dir(golden_dir, _cases(cases_dir)))


def _review(cases_dir: FilePath | None, golden_dir: FilePath | None) -> Review:
    from harness.golden.pending import Review

    return Review(_store(cases_dir, golden_dir))
