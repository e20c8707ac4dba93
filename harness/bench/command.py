"""`replay-harness bench gpu` and `bench plot`: flags to requests, reports to files."""

from __future__ import annotations

import json
from pathlib import Path as FilePath

import click

from harness import locate
from harness.errors import UsageError
from harness.report import jsonreport, terminal
from harness.types import Path

_FOLDER = click.Path(path_type=FilePath)


@click.command("gpu")
@click.option(
    "--sut", "suts", multiple=True, default=("embedded", "embedded-fused"), show_default=True,
    help="System; `sglang` needs its site or an installed package.",
)  # fmt: skip
@click.option(
    "--path", "paths", type=click.Choice([path.value for path in Path]), multiple=True,
    help="Refresh path; default: all that a system has.",
)  # fmt: skip
@click.option("--model", "models", multiple=True, help="Model name; default: one for each P of the matrix.")
@click.option(
    "--fusion", type=click.Choice(["on", "off"]), multiple=True, default=("on",), show_default=True,
    help="KPool fusion.",
)  # fmt: skip
@click.option(
    "--steps", type=click.IntRange(min=2), multiple=True, default=(5,), show_default=True, help="S."
)
@click.option(
    "--bucket", "buckets", type=click.IntRange(min=1), multiple=True, default=(4, 32), show_default=True,
    help="Captured batch size, all rows live.",
)  # fmt: skip
@click.option(
    "--width", "widths", type=click.IntRange(min=64), multiple=True, default=(131072,), show_default=True,
    help="Columns of the request table, W.",
)  # fmt: skip
@click.option(
    "--growth",
    is_flag=True,
    help="Sweep S, bs and W through the first point, too, without the copying paths.",
)
@click.option(
    "--turns",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Turns that every system takes.",
)
@click.option("--sglang-version", "version", default="", metavar="VERSION", help="Release of SGLang.")
@click.option("--cases-dir", type=_FOLDER, help="Case files; default: cases/ of the checkout.")
@click.option("--json", "json_file", type=_FOLDER, metavar="FILE", help="Write all figures as JSON.")
@click.option("--plots", type=_FOLDER, metavar="DIR", help="Draw the sweeps; needs matplotlib.")
def gpu(
    suts: tuple[str, ...],
    paths: tuple[str, ...],
    models: tuple[str, ...],
    fusion: tuple[str, ...],
    steps: tuple[int, ...],
    buckets: tuple[int, ...],
    widths: tuple[int, ...],
    growth: bool,
    turns: int,
    version: str,
    cases_dir: FilePath | None,
    json_file: FilePath | None,
    plots: FilePath | None,
) -> int:
    """Measure refreshes on a GPU: systems x paths x (model, fusion, S, bs, W), side by side in turns.

    Host time, device span, the gap between two graphs, launches and bytes, with ratios to the ordinary path
    and to bare launches of the same run. All selecting flags can be repeated. Nothing is asserted, but
    fields that are not right after a refresh are named.
    """
    from harness.bench import gpu as measuring
    from harness.bench import plots as plotting
    from harness.bench import settings, table

    if json_file is not None:
        jsonreport.check_writable(json_file)
    known = settings.models_of(locate.cases_dir(cases_dir), models)
    points = settings.points(list(known.values()), [one == "on" for one in fusion], steps, buckets, widths)
    request = measuring.Request(
        models=known,
        points=points,
        swept=settings.sweeps(points[0]) if growth else (),
        systems=tuple(dict.fromkeys(suts)),
        paths=tuple(Path(path) for path in paths),
        effort=settings.Effort(rounds=turns),
        version=version,
    )
    progress = terminal.make_console(stderr=True)
    report = None
    for report in measuring.run(request, lambda line: progress.print(line, soft_wrap=True)):
        if json_file is not None:  # after every point, so that a run that is stopped leaves its figures
            jsonreport.write(json_file, report.document())
    assert report is not None
    console = terminal.make_console()
    console.width = max(console.width, table.WIDTH)
    table.render(console, report)
    if plots is not None:
        for file in plotting.draw(report.document(), plots):
            click.echo(f"drew {file}")
    return 0


@click.command("plot")
@click.argument("file", type=click.Path(path_type=FilePath, exists=True, dir_okay=False))
@click.argument("folder", type=_FOLDER)
def plot(file: FilePath, folder: FilePath) -> int:
    """Draw the sweeps in FILE, which `bench gpu --json` wrote, into FOLDER. Needs matplotlib."""
    from harness.bench import plots

    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        drawn = plots.draw(document, folder)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{file}: is no report of bench gpu ({type(error).__name__}: {error})") from error
    for one in drawn:
        click.echo(f"drew {one}")
    if not drawn:
        raise UsageError(
            f"{file}: no {plots.LEAST} points in it differ in one size only; measure with --growth"
        )
    return 0


@click.command("record")
@click.option("--engine", type=click.Choice(["tape", "cuda_graph"]), help="Default: a GPU if there is one.")
@click.option(
    "--path", "paths", type=click.Choice(["released", "shared"]), multiple=True,
    default=("released", "shared"), show_default=True,
)  # fmt: skip
@click.option("--model", "models", multiple=True, help="Model name; default: one for each P of the matrix.")
@click.option(
    "--fusion", type=click.Choice(["on", "off"]), multiple=True, default=("off",), show_default=True
)
@click.option(
    "--steps", type=click.IntRange(min=2), multiple=True, default=(5,), show_default=True, help="S."
)
@click.option(
    "--bucket", "buckets", type=click.IntRange(min=1), multiple=True, default=(4,), show_default=True
)
@click.option("--width", type=click.IntRange(min=256), help="W; default: 131072 on a GPU, 1024 on a CPU.")
@click.option(
    "--pages", type=click.Choice(["ids", "digest", "none"]), multiple=True, default=("ids",),
    show_default=True, help="How page tables are kept.",
)  # fmt: skip
@click.option("--turns", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--calls", type=click.IntRange(min=1), help="Of a turn; default: 200 on a GPU, 5 on a CPU.")
@click.option("--sglang-version", "version", default="", metavar="VERSION", help="Release of SGLang.")
@click.option("--cases-dir", type=_FOLDER, help="Case files; default: cases/ of the checkout.")
@click.option("--json", "json_file", type=_FOLDER, metavar="FILE", help="Write all figures as JSON.")
def record(
    engine: str | None,
    paths: tuple[str, ...],
    models: tuple[str, ...],
    fusion: tuple[str, ...],
    steps: tuple[int, ...],
    buckets: tuple[int, ...],
    width: int | None,
    pages: tuple[str, ...],
    turns: int,
    calls: int | None,
    version: str,
    cases_dir: FilePath | None,
    json_file: FilePath | None,
) -> int:
    """Measure what a recorder costs a refresh of the released SGLang, with and without it in turns.

    On a CPU SGLang is simulated: the recorder's own microseconds count there, not the refresh's.
    """
    import torch

    from harness.bench import recording, settings
    from harness.sut.sglang.loader import load
    from harness.types import EngineKind
    from harness.worker import make_engine

    if json_file is not None:
        jsonreport.check_writable(json_file)
    gpu_there = torch.cuda.is_available()
    made = make_engine(
        EngineKind(engine) if engine else EngineKind.CUDA_GRAPH if gpu_there else EngineKind.TAPE
    )
    on_gpu = made.device.type == "cuda"
    loaded = load(version or None, made.device)
    known = settings.models_of(locate.cases_dir(cases_dir), models)
    widths = (width or (131072 if on_gpu else 1024),)
    points = settings.points(list(known.values()), [one == "on" for one in fusion], steps, buckets, widths)
    overheads = [
        recording.measure(
            known[point.model], point, Path(path), made, loaded, kept, turns, calls or (200 if on_gpu else 5)
        )
        for point in points
        for path in paths
        for kept in pages
    ]
    for line in recording.lines(overheads):
        click.echo(line)
    if json_file is not None:
        device = torch.cuda.get_device_name(made.device) if on_gpu else "CPU, simulated CUDA"
        software = {"torch": torch.__version__, "sglang": loaded.site.version}
        jsonreport.write(json_file, recording.document(overheads, device, software))
    return 0
