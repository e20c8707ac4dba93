"""`replay-harness soak`, and `--ranks` for it and for traces: flags in, lines out, exit status."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path as FilePath
from typing import Any

import click
import msgspec

from harness import locate
from harness.errors import UsageError
from harness.report import jsonreport, terminal
from harness.report.progress import SECONDS_BETWEEN_LINES, Interrupted
from harness.trace.command import wanted_of, with_system

PASSED, FOUND = 0, 1
_FILE = click.Path(path_type=FilePath)


@click.command("soak")
@click.option(
    "--replays", type=click.IntRange(min=1), default=10_000, show_default=True, help="In all, parts included."
)
@click.option("--seconds", type=click.FloatRange(min=1), help="Stop after that time; go on another time.")
@click.option("--load", default="mixed", show_default=True, help="Load model; `mixed` is all in turns.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--bucket", "buckets", type=click.IntRange(min=1), multiple=True, help="Default: up to 8.")
@click.option("--state", type=_FILE, metavar="FILE", help="Keeps what is done; default: below out/soak.")
@click.option("--fresh", is_flag=True, help="Begin anew whatever the state file says.")
@click.option("--ranks", type=click.IntRange(min=1), default=1, show_default=True, help="Processes in step.")
@click.option(
    "--parallel", type=click.Choice(["tp", "dp"]), default="tp", show_default=True,
    help="Ranks with the same batch, or with their own.",
)  # fmt: skip
@click.option(
    "--round-limit", type=click.FloatRange(min=1), default=60.0, show_default=True,
    help="Seconds that a round of ranks may take.",
)  # fmt: skip
@click.option(
    "--trial", "trials", multiple=True, metavar="WHAT:RANK@ROUND",
    help="Do skew, kill, hang or idle to a rank, to see that it is noticed.",
)  # fmt: skip
@click.option("--json", "json_file", type=_FILE, metavar="FILE", help="Write the report as JSON, too.")
@with_system
def soak(**flags: Any) -> int:
    """Replay load that looks like a server's very many times, in constant memory, and judge every replay.

    Exit status: 0 nothing found, 1 found, 2 usage error, 130 interrupted; the same command goes on then.
    """
    if flags["json_file"] is not None:
        jsonreport.check_writable(flags["json_file"])
    if flags["ranks"] > 1:
        return _ranks(flags)
    if flags["trials"]:
        raise UsageError("--trial does something to one of several ranks: give --ranks N")
    return _alone(flags)


def _alone(flags: dict[str, Any]) -> int:
    from harness.soak import report
    from harness.soak.run import Soak
    from harness.soak.state import Plan, load_state
    from harness.trace.setup import stage_for

    wanted, setting, models = _setting(flags)
    plan = Plan(setting=setting, load=flags["load"], seed=flags["seed"], plant=wanted.plant)
    file = flags["state"] or FilePath("out/soak") / f"{_name(plan)}.json"
    if flags["fresh"]:
        file.unlink(missing_ok=True)
    state = load_state(file, plan)
    say = terminal.make_console(stderr=True).print
    if state.replays:
        say(f"going on after {state.replays:,} replays ({file})")
    stage = stage_for(setting, wanted, models)
    run = Soak(stage, state, file, _progress(say, flags["replays"]))
    try:
        with redirect_stdout(sys.stderr):
            run.run(flags["replays"], flags["seconds"] or float("inf"))
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted after {state.replays:,} replays; the same command goes on") from None
    for line in report.lines(run, flags["replays"], str(file)):
        click.echo(line)
    if flags["json_file"] is not None:
        jsonreport.write(flags["json_file"], report.document(run, flags["replays"]))
    return FOUND if report.failed(run) else PASSED


def _ranks(flags: dict[str, Any]) -> int:
    from harness.ranks.agree import Parallel
    from harness.ranks.order import Order, trial_of

    wanted, setting, _ = _setting(flags)
    if wanted.plant:
        raise UsageError("--plant and --ranks: use --trial to do something to one rank")
    world = flags["ranks"]
    order = Order(
        cases_dir=str(wanted.cases_dir), setting=setting, world=world, parallel=Parallel(flags["parallel"]),
        replays=flags["replays"], load=flags["load"], seed=flags["seed"], limit_s=flags["round_limit"],
        sut_options=dict(wanted.sut_options), trials=tuple(trial_of(text, world) for text in flags["trials"]),
    )  # fmt: skip
    return run_ranks(order, flags["json_file"])


def run_ranks(order: Any, json_file: FilePath | None) -> int:
    """Run ranks, print their report and return the exit status."""
    from harness.ranks import report
    from harness.ranks.launch import run_together

    together = run_together(order)
    for line in report.lines(together):
        click.echo(line)
    if json_file is not None:
        jsonreport.write(json_file, report.document(together))
    return FOUND if together.findings else PASSED


def _setting(flags: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return what is wanted, the setting and the models. Raises UsageError for what does not exist."""
    from harness.casefile import load_models
    from harness.load.profile import profile_of
    from harness.trace.made import buckets_of, setting_made

    wanted = wanted_of({**flags, "model": flags["model"] or "tiny-p1"})
    models = load_models(locate.cases_dir(flags["cases_dir"]))
    profile_of(flags["load"])
    setting = setting_made(wanted, models)
    buckets = tuple(sorted(set(flags["buckets"]))) or buckets_of(models[setting.model])
    return wanted, msgspec.structs.replace(setting, buckets=buckets), models


def _name(plan: Any) -> str:
    setting = plan.setting
    digest = hashlib.sha256(msgspec.json.encode(plan)).hexdigest()[:8]
    return f"{setting.sut}-{setting.model}-{setting.path.value}-{plan.load}-{digest}"


def _progress(say: Callable[[str], object], wanted: int) -> Callable[[Any], None]:
    last = time.monotonic()

    def follow(state: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            rate = state.replays / max(state.seconds, 1e-9)
            left = (wanted - state.replays) / max(rate, 1e-9)
            say(f"{state.replays:,} of {wanted:,} replays, {rate:.0f} a second, {left / 60:.0f} min left")

    return follow
