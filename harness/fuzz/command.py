"""`replay-harness fuzz`: draws sequences, prints what it finds, returns the exit status."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any

import click

from harness import locate
from harness.errors import UsageError
from harness.report import jsonreport, terminal
from harness.types import EngineKind, Kernel, Mode, Path

PASSED, FOUND = 0, 1
_FOLDER = click.Path(path_type=FilePath)


def _values(kind: Any) -> click.Choice[str]:
    return click.Choice([member.value for member in kind])


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = dict(value.partition("=")[::2] for value in values)
    if not all("=" in value and value.partition("=")[0] for value in values):
        raise click.BadParameter("give KEY=VALUE")
    return pairs


@click.command("fuzz")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
    help="How long new sequences are drawn.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), help="Draws the same sequences again; default: random.")
@click.option(
    "--shrinking", type=click.IntRange(min=0), default=200, show_default=True,
    help="Runs that shrinking may take.",
)  # fmt: skip
@click.option("--sut", default="embedded", show_default=True, help="System under test.")
@click.option(
    "--engine", type=_values(EngineKind), default=EngineKind.TAPE.value, show_default=True,
    help="What captures and replays.",
)  # fmt: skip
@click.option(
    "--sut-option", multiple=True, callback=_pairs, metavar="KEY=VALUE",
    help="Handed to the system under test.",
)  # fmt: skip
@click.option(
    "--model", "models", multiple=True, help="Model name; default: the small ones, or those of the matrix."
)
@click.option("--path", "paths", type=_values(Path), multiple=True, help="Refresh path.")
@click.option("--fusion", type=click.Choice(["on", "off"]), multiple=True, help="KPool fusion.")
@click.option("--steps", type=click.IntRange(min=2), multiple=True, help="Speculative steps, S.")
@click.option("--mode", "modes", type=_values(Mode), multiple=True, help="Forward mode.")
@click.option("--kernel", "kernels", type=_values(Kernel), multiple=True, help="Decode attention kernel.")
@click.option("--load", default="", metavar="NAME", help="Draw stretches of a load model's traffic, too.")
@click.option(
    "--plant", "plants", multiple=True, metavar="ID",
    help="Plant a fault of the catalogue, in its own setting.",
)  # fmt: skip
@click.option("--catalogue", is_flag=True, help="Plant all that traffic can reach (or those of --plant).")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="For --catalogue.")
@click.option(
    "--replay", "files", type=click.Path(path_type=FilePath, exists=True), multiple=True, metavar="FILE",
    help="Run kept sequences, files or folders, instead of drawing.",
)  # fmt: skip
@click.option(
    "--database", type=_FOLDER, default=FilePath("out/fuzz"), show_default=True,
    help="Keeps failing examples and found sequences.",
)  # fmt: skip
@click.option("--cases-dir", type=_FOLDER, help="Case files; default: cases/ of the checkout.")
@click.option("--json", "json_file", type=_FOLDER, metavar="FILE", help="Write the report as JSON, too.")
def fuzz(**flags: Any) -> int:
    """Draw sequences of captures, replays and disturbances until one has a finding, and shrink that one.

    Exit status: 0 nothing found, 1 found (with --catalogue: too little found), 2 usage error.
    """
    if flags["json_file"] is not None:
        jsonreport.check_writable(flags["json_file"])
    if flags["files"]:
        return _replay(flags)
    return _catalogue(flags) if flags["catalogue"] else _fuzz(flags)


def _fuzz(flags: dict[str, Any]) -> int:
    session = _session()
    from harness.fuzz import report

    if len(flags["plants"]) > 1:
        raise UsageError("several --plant are for --catalogue; give one, or add it")
    done = session.fuzz(_options(flags), terminal.make_console(stderr=True).print)
    outcome = done.outcome
    for line in report.lines(outcome, settings=done.settings, again=done.again):
        click.echo(line)
    if flags["json_file"] is not None:
        jsonreport.write(flags["json_file"], report.document(outcome, done.settings))
    return PASSED if outcome.found is None else FOUND


def _replay(flags: dict[str, Any]) -> int:
    session = _session()
    from harness.fuzz import report

    trials = session.replay(flags["files"], _options(flags))
    for file, trial in trials:
        for line in report.replayed(trial, str(file)):
            click.echo(line)
    return FOUND if any(trial.unexpected for _, trial in trials) else PASSED


def _catalogue(flags: dict[str, Any]) -> int:
    _session()
    from harness.fuzz import table

    options = _options({**flags, "plants": ()})
    rows = table.run(options, flags["plants"], flags["jobs"], terminal.make_console(stderr=True).print)
    table.show(rows, terminal.make_console())
    if flags["json_file"] is not None:
        jsonreport.write(flags["json_file"], table.document(rows, options))
    return PASSED if table.enough(rows) else FOUND


def _session() -> Any:
    """Import what needs Hypothesis, which is no dependency of the other commands."""
    try:
        from harness.fuzz import session
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "hypothesis":
            raise
        raise UsageError("fuzz needs hypothesis: pip install 'replay-harness[fuzz]'") from error
    return session


def _options(flags: dict[str, Any]) -> Any:
    from harness.fuzz.campaign import HYPOTHESIS_RUNS, Limits
    from harness.fuzz.session import FuzzOptions
    from harness.matrix import Selection

    return FuzzOptions(
        cases_dir=locate.cases_dir(flags["cases_dir"]),
        database=flags["database"],
        sut=flags["sut"],
        engine=EngineKind(flags["engine"]),
        sut_options=flags["sut_option"],
        selection=Selection(
            models=flags["models"],
            paths=tuple(Path(value) for value in flags["paths"]),
            fusion=tuple(value == "on" for value in flags["fusion"]),
            steps=flags["steps"],
            modes=tuple(Mode(value) for value in flags["modes"]),
            kernels=tuple(Kernel(value) for value in flags["kernels"]),
        ),
        limits=Limits(
            flags["seconds"],
            hypothesis_runs=min(HYPOTHESIS_RUNS, flags["shrinking"]),
            reducer_runs=flags["shrinking"],
        ),
        seed=flags["seed"],
        plant="".join(flags["plants"]),
        load=flags["load"],
    )
