"""The command line: parses flags, calls `session`, prints reports, returns the exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness import __version__, locate
from harness.bench.command import gpu as bench_gpu
from harness.bench.command import plot as bench_plot
from harness.bench.command import record as bench_record
from harness.errors import HarnessError, UsageError
from harness.faults.command import faults
from harness.fuzz.command import fuzz
from harness.golden import command as golden_command
from harness.planted import plant
from harness.report import jsonreport, terminal
from harness.report.html import command as html
from harness.report.progress import Interrupted
from harness.soak.command import soak
from harness.trace import command as traffic
from harness.types import Drill, EngineKind, Kernel, Mode, Path

if TYPE_CHECKING:
    from harness.options import RunOptions
    from harness.session import Outcome

SGLANG = "sglang"
"""The system that `--sglang-version` speaks about."""
PASSED, FOUND, USAGE, STOPPED = 0, 1, 2, 130

_Kind = TypeVar("_Kind", bound=StrEnum)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program with `arguments` (default: the process's) and return its exit status."""
    try:
        status = cli.main(args=None if arguments is None else list(arguments), standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return USAGE
    except (Interrupted, click.Abort) as stop:
        click.echo(str(stop) or "interrupted", err=True)
        return STOPPED
    except HarnessError as error:
        click.echo(f"replay-harness: {error}", err=True)
        return USAGE
    return status if isinstance(status, int) else PASSED


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="replay-harness")
def cli() -> None:
    """Verify attention metadata under CUDA-graph capture and replay.

    Exit status: 0 nothing unexpected, 1 findings, 2 usage or environment error, 130 interrupted.
    """


def _choice(kind: type[_Kind], flag: str, text: str) -> Callable[[_Command], _Command]:
    """Return a repeatable option whose values are a closed vocabulary; the command gets enum members."""

    def members(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[_Kind, ...]:
        return tuple(kind(value) for value in values)

    choice = click.Choice([member.value for member in kind])
    return click.option(flag, flag.strip("-") + "s", type=choice, multiple=True, callback=members, help=text)


def _on_off(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[bool, ...]:
    return tuple(value == "on" for value in values)


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        pairs[key] = text
    return pairs


_FOLDER = click.Path(path_type=FilePath)

_SELECTION = (
    click.option("--model", "models", multiple=True, help="Model name, as in the case files."),
    _choice(Path, "--path", "Refresh path."),
    click.option(
        "--fusion", type=click.Choice(["on", "off"]), multiple=True, callback=_on_off, help="KPool fusion."
    ),
    click.option("--steps", type=click.IntRange(min=2), multiple=True, help="Speculative steps, S."),
    _choice(Mode, "--mode", "Forward mode."),
    _choice(Drill, "--drill", "Disturbance between capture and replay."),
    click.option(
        "--bucket", "buckets", type=click.IntRange(min=1), multiple=True, help="Captured batch size."
    ),
    _choice(Kernel, "--kernel", "Decode attention kernel, as far as metadata depends on it."),
    click.option("--case", "cases", multiple=True, help="Case id, as in reports."),
)
_PLACES = (
    click.option("--cases-dir", "--cases", type=_FOLDER, help="Case files; default: cases/ of the checkout."),
    click.option(
        "--golden-dir", "--golden", type=_FOLDER, help="Goldens; default: golden/ beside the cases."
    ),
)
_NO_GOLDEN = (click.option("--no-golden", is_flag=True, help="Do not compare with goldens."),)
_REPORT = (
    click.option("--json", "json_file", type=_FOLDER, metavar="FILE", help="Write the report as JSON, too."),
    click.option("--report", "page", type=_FOLDER, metavar="FILE", help="Write it as one HTML page, too."),
    click.option(
        "--faults", "faults_file", type=_FOLDER, metavar="FILE", help="Kill matrix to show in the page."
    ),
)
_ENGINE = click.Choice([kind.value for kind in EngineKind])
_RUN = (
    click.option("--full", is_flag=True, help="Run the cross product, not the covering array."),
    click.option("--jobs", type=click.IntRange(min=0), default=0, help="Worker processes; 0: as fits."),
    click.option(
        "--time-limit",
        "limit_s",
        type=click.FloatRange(min=1),
        default=300.0,
        metavar="SECONDS",
        help="A case that takes longer in a worker process is a finding.",
    ),
)


def _with(*groups: Sequence[Callable[[_Command], _Command]]) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return decorate


@cli.command()
@_with(_SELECTION, _RUN, _PLACES, _NO_GOLDEN, _REPORT)
@click.option(
    "--sut", "suts", multiple=True, default=("embedded",), show_default=True, help="System under test."
)
@click.option(
    "--engine",
    "engines",
    type=_ENGINE,
    multiple=True,
    default=(EngineKind.TAPE.value,),
    show_default=True,
    help="What captures and replays.",
)
@click.option(
    "--sut-option",
    multiple=True,
    callback=_pairs,
    metavar="KEY=VALUE",
    help="Handed to the system under test.",
)
@click.option(
    "--sglang-version",
    "versions",
    multiple=True,
    metavar="VERSION",
    help="Release of SGLang, with --sut sglang; several are verified side by side.",
)
@click.option("--save", type=_FOLDER, metavar="DIR", help="Keep the observations for `judge`.")
@click.option("--list", "list_only", is_flag=True, help="Print the planned cases and run nothing.")
@click.option("--trace", "trace_file", type=_FOLDER, metavar="FILE", help="Drive a recorded trace instead.")
@click.option("--fit", is_flag=True, help="With --trace: fold lengths that are too long for the model.")
@click.option("--plant", default="", metavar="ID", help="With --trace: plant a fault of the catalogue.")
@click.option("--ranks", type=click.IntRange(min=1), default=1, help="With --trace: processes in step.")
def verify(
    suts: tuple[str, ...],
    engines: tuple[str, ...],
    versions: tuple[str, ...],
    list_only: bool,
    trace_file: FilePath | None,
    json_file: FilePath | None,
    page: FilePath | None,
    faults_file: FilePath | None,
    **flags: Any,
) -> int:
    """Run cases and judge them. All selecting flags can be repeated; values of one flag are alternatives."""
    from harness import session

    if json_file is not None:
        jsonreport.check_writable(json_file)
    html.check_asked(page, faults_file)
    _check_versions(versions, suts, flags)
    fit, plant, ranks = flags.pop("fit"), flags.pop("plant"), flags.pop("ranks")
    if trace_file is not None:
        chosen = {**traffic.selected(flags), "fit": fit, "plant": plant, "ranks": ranks}
        paths = flags["paths"] or (Path.SHARED,)
        return traffic.verify_trace(trace_file, suts, engines, paths, versions, chosen, json_file)
    flags |= {"pictures": page is not None, "isolated": bool(versions)}
    runs = [
        _options(sut=sut, engine=EngineKind(engine), version=version, **flags)
        for sut in dict.fromkeys(suts)
        for engine in dict.fromkeys(engines)
        for version in (dict.fromkeys(versions) if versions and sut == SGLANG else [""])
    ]
    if list_only:
        for plan in session.plans(runs):
            for case in plan.cases:
                click.echo(case.id)
        return PASSED
    return _report(session.verify(runs, terminal.make_console(stderr=True)), json_file, page, faults_file)


@cli.command()
@click.argument("directory", type=click.Path(path_type=FilePath, exists=True, file_okay=False))
@_with(_PLACES, _NO_GOLDEN, _REPORT)
def judge(
    directory: FilePath,
    json_file: FilePath | None,
    page: FilePath | None,
    faults_file: FilePath | None,
    **flags: Any,
) -> int:
    """Judge the observations that `verify --save DIRECTORY` kept, on this or another machine."""
    from harness import session

    if json_file is not None:
        jsonreport.check_writable(json_file)
    html.check_asked(page, faults_file)
    options = _options(pictures=page is not None, **flags)
    outcome = session.judge(directory, options, terminal.make_console(stderr=True))
    return _report(outcome, json_file, page, faults_file)


@cli.command()
@click.argument("check", required=False)
def explain(check: str | None) -> int:
    """Say what a check claims, how it can tell and what usually mends a finding; without CHECK, of all."""
    from harness.checks.registry import CHECKS

    chosen = [known for known in CHECKS if check in (None, known.name)]
    if not chosen:
        names = ", ".join(sorted(known.name for known in CHECKS))
        raise UsageError(f"no check is called {check!r}; there are {names}")
    for known in chosen:
        click.echo(known.name)
        for title, text in (("claims", known.claim), ("sees", known.sees), ("mend", known.mend)):
            click.echo(click.wrap_text(f"{title:<8}{text}", 100, "  ", " " * 10))
    return PASSED


@cli.group()
def golden() -> None:
    """Look after accepted values and structure."""


@golden.command("update")
@click.argument("what", type=click.Choice(["new", "changed", "all"]))
@click.option("--reason", required=True, metavar="TEXT", help="Why values may change; kept in the manifests.")
@_with(_SELECTION, _PLACES)
@click.option("--engine", type=_ENGINE, default=EngineKind.TAPE.value, show_default=True)
@click.option("--sut", default="embedded", show_default=True, help="System under test.")
def golden_update(what: str, reason: str, engine: str, **flags: Any) -> int:
    """Run the selected cases and accept what is WHAT: `new`, `changed`, or `all`.

    Nothing is written in CI, where a case has an unexpected finding, or where the oracle contradicts a value.
    """
    from harness import session

    options = _options(engine=EngineKind(engine), **flags)
    session.update_goldens(options, what, reason, terminal.make_console(stderr=True), click.echo)
    return PASSED


@golden.command("propose")
@_with(_SELECTION, _PLACES)
@click.option("--engine", type=_ENGINE, default=EngineKind.TAPE.value, show_default=True)
@click.option("--sut", default="embedded", show_default=True, help="System under test.")
def golden_propose(engine: str, **flags: Any) -> int:
    """Run the selected cases and keep what differs as pending goldens, for `diff` and `accept`.

    Nothing accepted is touched, so this may run in CI.
    """
    from harness import session

    options = _options(engine=EngineKind(engine), **flags)
    session.propose_goldens(options, terminal.make_console(stderr=True), click.echo)
    return PASSED


@golden.command("check")
@_with(_PLACES)
def golden_check(**flags: Any) -> int:
    """List what is wrong with the folder as a whole: orphans, damaged or oversized files."""
    from harness import session

    problems = session.golden_problems(_options(**flags))
    for problem in problems:
        click.echo(problem)
    return FOUND if problems else PASSED


@cli.group()
def bench() -> None:
    """Measure the harness itself, or refreshes on a GPU."""


@bench.command("cpu")
@_with(_PLACES, _NO_GOLDEN, _RUN)
def bench_cpu(**flags: Any) -> int:
    """Time the CPU matrix and the comparison of ten million elements. Nothing is asserted."""
    from harness.bench import cpu

    for line in cpu.cpu(_options(**flags), terminal.make_console(stderr=True)):
        click.echo(line)
    return PASSED


for _reviewing in golden_command.COMMANDS:
    golden.add_command(_reviewing)
bench.add_command(bench_gpu)
bench.add_command(bench_plot)
bench.add_command(bench_record)
cli.add_command(faults)
cli.add_command(fuzz)
cli.add_command(html.report)
cli.add_command(plant)
cli.add_command(traffic.trace)
cli.add_command(soak)


def _check_versions(versions: Sequence[str], suts: Sequence[str], flags: Mapping[str, Any]) -> None:
    """Raise UsageError where releases are asked for and cannot be, or could not be told apart."""
    if versions and SGLANG not in suts:
        raise UsageError("--sglang-version speaks about --sut sglang, which is not asked for")
    if versions and "version" in flags["sut_option"]:
        raise UsageError("--sglang-version and --sut-option version=... say the same: give one of them")
    if len(versions) > 1 and flags["save"] is not None:
        raise UsageError("--save keeps one release: give one --sglang-version, and each a folder of its own")


def _options(
    *,
    cases_dir: FilePath | None,
    golden_dir: FilePath | None,
    no_golden: bool = False,
    sut: str = "embedded",
    engine: EngineKind = EngineKind.TAPE,
    full: bool = False,
    jobs: int = 0,
    limit_s: float = 300.0,
    save: FilePath | None = None,
    sut_option: dict[str, str] | None = None,
    version: str = "",
    isolated: bool = False,
    pictures: bool = False,
    **selection: Any,
) -> RunOptions:
    from harness.matrix import Selection
    from harness.options import RunOptions

    cases = locate.cases_dir(cases_dir)
    return RunOptions(
        cases_dir=cases,
        golden_dir=locate.golden_dir(golden_dir, cases),
        sut=sut,
        engine=engine,
        full=full,
        jobs=jobs,
        limit_s=limit_s,
        save=save,
        selection=Selection(**selection),
        golden="off" if no_golden else "check",
        sut_options={**(sut_option or {}), **({"version": version} if version else {})},
        isolated=isolated,
        pictures=pictures,
    )


def _report(
    outcome: Outcome, json_file: FilePath | None, page: FilePath | None, faults_file: FilePath | None
) -> int:
    if json_file is not None:
        jsonreport.write(json_file, jsonreport.document(outcome.results, outcome.seconds))
    if page is not None:
        html.write_page(page, outcome, faults_file)
    terminal.render(
        terminal.make_console(), outcome.results, outcome.coverage, outcome.seconds, outcome.again
    )
    return FOUND if outcome.unexpected else PASSED


if __name__ == "__main__":
    sys.exit(main())
