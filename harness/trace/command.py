"""`replay-harness trace ...` and `verify --trace`: flags in, lines out, exit status."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from itertools import product
from pathlib import Path as FilePath
from typing import Any, TypeVar

import click

from harness import locate
from harness.axes import OURS
from harness.errors import UsageError
from harness.report import jsonreport, terminal
from harness.types import EngineKind, Kernel, Mode, Path

PASSED, FOUND = 0, 1
SECONDS_BETWEEN_LINES = 10.0
_FILE = click.Path(path_type=FilePath)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _values(kind: Any) -> click.Choice[str]:
    return click.Choice([member.value for member in kind])


def pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse KEY=VALUE of a repeatable option."""
    if not all("=" in value and value.partition("=")[0] for value in values):
        raise click.BadParameter("give KEY=VALUE")
    return dict(value.partition("=")[::2] for value in values)


SYSTEM = (
    click.option("--sut", default="embedded", show_default=True, help="System under test."),
    click.option(
        "--engine", type=_values(EngineKind), default=EngineKind.TAPE.value, show_default=True,
        help="What captures and replays.",
    ),
    click.option(
        "--path", type=_values(Path), default=Path.SHARED.value, show_default=True, help="Refresh path."
    ),
    click.option("--model", default="", help="Model name; default: the nearest to what was recorded."),
    click.option("--steps", type=click.IntRange(min=2), help="S; default: as recorded."),
    click.option("--mode", type=_values(Mode), help="Forward mode; default: decode if there is any."),
    click.option("--fusion", type=click.Choice(["on", "off"]), help="KPool fusion; default: as recorded."),
    click.option("--kernel", type=_values(Kernel), help="Decode kernel; default: as recorded."),
    click.option("--fit", is_flag=True, help="Fold lengths that are too long for the model's width."),
    click.option("--plant", default="", metavar="ID", help="Plant a fault of the catalogue, or T1."),
    click.option(
        "--sut-option", multiple=True, callback=pairs, metavar="KEY=VALUE",
        help="Handed to the system under test.",
    ),
    click.option("--cases-dir", type=_FILE, help="Case files; default: cases/ of the checkout."),
)  # fmt: skip


def with_system(command: _Command) -> _Command:
    """Give a command the options that say what is driven."""
    for option in reversed(SYSTEM):
        command = option(command)
    return command


@click.group()
def trace() -> None:
    """Recorded traffic: what it holds, slices of it, the shortest part that fails."""


@trace.command("stat")
@click.argument("file", type=_FILE)
def stat(file: FilePath) -> int:
    """Print what FILE holds: modes, buckets, lengths, what is missing."""
    from harness.trace.reader import Trace
    from harness.trace.stat import describe

    for line in describe(Trace(file)):
        click.echo(line)
    return PASSED


@trace.command("cut")
@click.argument("file", type=_FILE)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="First refresh.")
@click.option("--last", type=click.IntRange(min=0), help="Last refresh; default: all that can be read.")
@click.option("--out", type=_FILE, required=True, metavar="FILE", help="The slice, a trace of its own.")
def cut(file: FilePath, first: int, last: int | None, out: FilePath) -> int:
    """Write a slice of FILE, with the captures that it needs; of a damaged trace, what comes before that."""
    from harness.trace.reader import Trace
    from harness.trace.write import cut as slice_of

    if out.exists():
        raise UsageError(f"--out {out}: there is such a file; a trace is never overwritten")
    source = Trace(file)
    count = slice_of(source, first, sys.maxsize if last is None else last, out)
    click.echo(f"{out}: {count} records")
    if source.note:
        click.echo(f"note: {source.note}", err=True)
    return PASSED


@trace.command("make")
@click.option("--load", default="server", show_default=True, help="Load model; `mixed` is all in turns.")
@click.option("--rounds", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--out", type=_FILE, required=True, metavar="FILE", help="The trace.")
@with_system
def make(load: str, rounds: int, seed: int, out: FilePath, **flags: Any) -> int:
    """Write a trace of a simulated server: as a recorder would, on a model of the case files."""
    from harness.trace.made import made_trace

    wanted = wanted_of(flags)
    click.echo(f"{out}: {made_trace(out, wanted, load, seed, rounds)} records")
    return PASSED


@trace.command("shrink")
@click.argument("file", type=_FILE)
@click.option("--runs", type=click.IntRange(min=1), default=400, show_default=True, help="At most.")
@click.option("--out", type=_FILE, metavar="FILE", help="Write the case there; default: print it only.")
@with_system
def shrink(file: FilePath, runs: int, out: FilePath | None, **flags: Any) -> int:
    """Drive FILE and shrink what fails: fewest records, then smallest lengths, as a case for
    `cases/sequences/`.

    Exit status: 0 nothing found, 1 found, 2 usage error.
    """
    from harness.fuzz.store import dump_sequence
    from harness.trace import report, setup
    from harness.trace.reader import Trace
    from harness.trace.shrink import Shrunk
    from harness.trace.shrink import shrink as shrinking

    wanted = wanted_of(flags)
    source = Trace(file)
    found = setup.contents(source)
    stage = setup.stage_of(source, found, wanted)
    say = terminal.make_console(stderr=True).print
    with redirect_stdout(sys.stderr):
        done = shrinking(source, found, stage, fit=wanted.fit, most_runs=runs, say=say, follow=progress(say))
    if not isinstance(done, Shrunk):
        for line in report.lines(done, stage, found.note):
            click.echo(line)
        return PASSED
    text = dump_sequence(done.sequence)
    for line in report.lines(done.driven, stage, found.note):
        click.echo(line)
    steady = "fails alone" if done.steady else "did NOT fail when it was run once more"
    click.echo(
        f"\nshrunk    {done.driven.failed_at} records to {len(done.sequence.operations)} in {done.runs} runs "
        f"(the last {done.alone} fail alone); the case {steady}\n\n{text}"
    )
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
        plant = f"--plant {wanted.plant} " if wanted.plant else ""
        click.echo(f"again     replay-harness fuzz {plant}--replay {out}")
    return FOUND


def verify_trace(
    file: FilePath,
    suts: Sequence[str],
    engines: Sequence[str],
    paths: Sequence[Path],
    versions: Sequence[str],
    flags: dict[str, Any],
    json_file: FilePath | None,
) -> int:
    """Drive a trace through systems and paths in turn; print a report each, return the exit status."""
    from harness.trace import report, setup
    from harness.trace.reader import Trace
    from harness.trace.verify import verify

    source = Trace(file)
    found = setup.contents(source)
    say = terminal.make_console(stderr=True).print
    documents, status = [], PASSED
    if len(versions) > 1:
        raise UsageError("--trace drives one release in a process: give one --sglang-version")
    options = dict(flags.get("sut_option") or {})
    if versions:
        options["version"] = versions[0]
    for sut, engine, path in product(suts, engines, paths):
        own = options if sut not in OURS else {}
        wanted = wanted_of({**flags, "sut": sut, "engine": engine, "path": path.value, "sut_option": own})
        if flags.get("ranks", 1) > 1:
            status = max(status, _in_step(file, source, found, wanted, flags["ranks"], json_file))
            continue
        stage = setup.stage_of(source, found, wanted)
        with redirect_stdout(sys.stderr):  # whatever a system prints is no part of the report
            driven = verify(source, found, stage, fit=wanted.fit, follow=progress(say))
        for line in report.lines(driven, stage, found.note):
            click.echo(line)
        documents.append(report.document(driven, stage, found.note))
        status = FOUND if driven.findings else status
    if json_file is not None and documents:
        jsonreport.write(json_file, {"trace": str(file), "runs": documents})
    return status


def _in_step(
    file: FilePath, source: Any, found: Any, wanted: Any, ranks: int, json_file: FilePath | None
) -> int:
    """Drive a trace in several processes: each its own rank's file where there is one, else all the same."""
    from harness.casefile import load_models
    from harness.ranks.agree import Parallel
    from harness.ranks.order import Order
    from harness.soak.command import run_ranks
    from harness.trace import setup

    if wanted.plant:
        raise UsageError(
            "--plant and --ranks: a fault in every rank is no disagreement; leave one of them out"
        )
    own = [file.with_name(file.name.replace(".rank0.", f".rank{rank}.")) for rank in range(ranks)]
    several = len(set(own)) == ranks and all(one.exists() for one in own)
    files = own if several else [file] * ranks
    order = Order(
        cases_dir=str(wanted.cases_dir),
        setting=setup.setting_for(source, found, wanted, load_models(wanted.cases_dir)),
        world=ranks,
        parallel=Parallel.DP if several else Parallel.TP,
        replays=found.refreshes.total(),
        traces=tuple(str(one) for one in files),
        fit=wanted.fit,
        sut_options=dict(wanted.sut_options),
    )
    return run_ranks(order, json_file)


def selected(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the selecting flags of `verify` as those of one trace. Raises UsageError for several values."""
    chosen: dict[str, Any] = {}
    for name, flag in (("models", "model"), ("steps", "steps"), ("modes", "mode"), ("kernels", "kernel")):
        values = flags.get(name) or ()
        if len(values) > 1:
            raise UsageError(f"--trace is driven in one setting: give one --{flag}, not {len(values)}")
        chosen[flag] = values[0] if values else None
    for name, flag in (("drills", "drill"), ("buckets", "bucket"), ("cases", "case")):
        if flags.get(name):
            raise UsageError(f"--{flag} and --trace: a trace has its own buckets and order of rounds")
    fusion = flags.get("fusion") or ()
    if len(fusion) > 1:
        raise UsageError("--trace is driven in one setting: give one --fusion, not 2")
    chosen["fusion"] = None if not fusion else "on" if fusion[0] else "off"
    same: dict[str, Any] = {
        name: flags[name] for name in ("cases_dir", "sut_option", "fit", "plant") if name in flags
    }
    return {**chosen, **same}


def wanted_of(flags: dict[str, Any]) -> Any:
    """Return the options of `with_system` as `setup.Wanted`."""
    from harness.trace.setup import Wanted

    return Wanted(
        cases_dir=locate.cases_dir(flags.get("cases_dir")),
        sut=flags["sut"],
        engine=EngineKind(flags["engine"]),
        path=Path(flags["path"]),
        model=flags.get("model") or "",
        steps=flags.get("steps") or 0,
        mode=Mode(flags["mode"]) if flags.get("mode") else None,
        fusion=flags["fusion"] == "on" if flags.get("fusion") else None,
        kernel=Kernel(flags["kernel"]) if flags.get("kernel") else None,
        fit=bool(flags.get("fit")),
        plant=flags.get("plant") or "",
        sut_options=flags.get("sut_option") or {},
    )


def progress(say: Callable[[str], object]) -> Callable[[Any], None]:
    """Return what says how far a life is, at most every ten seconds."""
    last = time.monotonic()

    def follow(driven: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(f"{driven.operations:,} records, {driven.replays:,} replays, {driven.seconds:.0f} s")

    return follow
