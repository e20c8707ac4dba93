"""Traces of simulated servers, in the form that a recorder writes."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from harness import __version__
from harness.case import Case, Model
from harness.casefile import load_models
from harness.errors import UsageError
from harness.fuzz.sequence import Capture, Replay, Setting, case_of
from harness.lengths import Scale
from harness.load.profile import profile_of
from harness.load.server import Server
from harness.pages import seeded_pages
from harness.record.format import FORMAT, IDS, VERSION, Header
from harness.trace.reader import Moment
from harness.trace.setup import Wanted
from harness.trace.write import write_trace
from harness.types import Kernel, Mode

LARGEST_BUCKET = 8
"""Largest batch size of a made trace where the model has smaller ones."""
ROUND_US = 20_000
"""Time between two rounds."""


def made_trace(file: Path, wanted: Wanted, load: str, seed: int, rounds: int) -> int:
    """Write a trace of so many refreshes; return its records. Raises UsageError for what does not exist."""
    models = load_models(wanted.cases_dir)
    setting = setting_made(wanted, models)
    model = models[setting.model]
    case = case_of(setting, model)
    server = Server(case, buckets_of(model), profile_of(load), seed)
    return write_trace(
        file, header_of(case, load), islice(_moments(server, case), rounds + len(server.buckets))
    )


def setting_made(wanted: Wanted, models: Mapping[str, Model]) -> Setting:
    """Return the setting that the command line names. Raises UsageError where it names no model."""
    if wanted.model not in models:
        raise UsageError(f"--model {wanted.model or '(none)'}: name one of {', '.join(models)}")
    model = models[wanted.model]
    return Setting(
        sut=wanted.sut,
        engine=wanted.engine,
        model=model.name,
        path=wanted.path,
        fusion=bool(wanted.fusion),
        steps=wanted.steps or model.default_variant.steps,
        mode=wanted.mode or Mode.DECODE,
        kernel=wanted.kernel or Kernel.FA3,
    )


def buckets_of(model: Model) -> tuple[int, ...]:
    """Return the batch sizes of made traffic: small ones, where there are some."""
    return tuple(bucket for bucket in model.buckets if bucket <= LARGEST_BUCKET) or model.buckets[:1]


def header_of(case: Case, load: str) -> Header:
    """Return the header of a trace that was made for a case."""
    return Header(
        format=FORMAT, version=VERSION, rank=0, world=1,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        system=f"simulated server, load {load}", software={"replay-harness": __version__},
        pool=case.model.index_kpool, page_tokens=case.model.page_tokens, width=case.geometry.width,
        requests=case.geometry.requests, steps=case.variant.steps, draft_tokens=case.metadata_tokens,
        pages=IDS,
        flags={
            "dsa_decode_impl": case.kernel.value,
            "experimental_kpool_metadata_fusion": str(case.fusion),
        },
    )  # fmt: skip


def _moments(server: Server, case: Case) -> Iterator[Moment]:
    """Yield the captures and replays of a server; what happens between them no recorder sees."""
    scale, n = Scale.of(case), 0
    for operation in server.operations():
        if not isinstance(operation, Capture | Replay):
            continue
        pages = operation.pages
        if isinstance(pages, int):
            reach = {
                request: scale.columns(length)
                for request, length in zip(operation.requests, operation.lengths, strict=True)
            }
            table = seeded_pages(case.model, case.geometry, reach, pages)
            pages = tuple(tuple(table[request, :count].tolist()) for request, count in reach.items())
        yield Moment(
            n, n * ROUND_US, isinstance(operation, Capture), case.mode.value, operation.bucket,
            case.backends, operation.lengths, operation.requests, pages, operation.accepted,
        )  # fmt: skip
        n += 1
