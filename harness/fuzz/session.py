"""What the command line asks for, made ready: a bench, a space, and a run over them."""

from __future__ import annotations

import gc
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath

import torch

from harness.axes import OURS
from harness.case import Model
from harness.casefile import load_models
from harness.errors import HarnessError, NotDrivable, UsageError
from harness.fuzz.campaign import Campaign, Limits, Outcome, Tally
from harness.fuzz.planted import plant
from harness.fuzz.sequence import Sequence
from harness.fuzz.space import Space, space_of
from harness.fuzz.store import check_sequence, dump_sequence, read_sequence, sequence_name
from harness.fuzz.trial import Bench, Trial
from harness.known import load_known
from harness.load.profile import profile_of
from harness.matrix import Selection
from harness.options import RunOptions, factory_of
from harness.report.progress import SECONDS_BETWEEN_LINES, Interrupted
from harness.types import EngineKind
from harness.worker import KNOWN_FILE, make_engine

SMALL_MODELS = ("tiny", "tiny-p1")
"""Models with narrow tables, one for each P."""
FOUND_FOLDER = "found"
"""Below the example database: failing sequences as files."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class FuzzOptions:
    """What to fuzz, and how long."""

    cases_dir: FilePath
    database: FilePath
    sut: str = "embedded"
    engine: EngineKind = EngineKind.TAPE
    sut_options: Mapping[str, str] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    limits: Limits = field(default_factory=lambda: Limits(60.0))
    seed: int | None = None
    """None: a random one, and examples that failed before are tried first."""
    plant: str = ""
    """Id of a fault of the catalogue to plant; it decides the setting."""
    load: str = ""
    """Load model of which stretches are drawn as well; empty: none."""


def make_bench(options: FuzzOptions) -> Bench:
    """Make the engine and the system's factory.

    Raises UsageError for a system, device or fault that does not exist.
    """
    torch.set_num_threads(1)  # small tensors: threads get in each other's way
    models = load_models(options.cases_dir)
    known = load_known(options.cases_dir / KNOWN_FILE)
    engine = make_engine(options.engine)
    if options.plant:
        planted = plant(options.plant, options.sut, options.engine, models)
        return Bench(planted.space.models, planted.factory, engine, known, planted.ordinary)
    run = RunOptions(options.cases_dir, options.cases_dir, options.sut, options.engine)
    return Bench(models, factory_of(replace(run, sut_options=options.sut_options)), engine, known)


def prepare(options: FuzzOptions) -> tuple[Bench, Space]:
    """Make a bench and what is drawn from; errors as of `make_bench`, and for a model that does not exist."""
    bench = make_bench(options)
    if options.load:
        profile_of(options.load)
    if options.plant:
        space = plant(options.plant, options.sut, options.engine, bench.models).space
        return bench, with_pauses(replace(space, load=options.load), bench)
    selection = options.selection
    if not selection.models:
        selection = replace(selection, models=_drawn_models(bench.models, options.sut))
    space = space_of(bench.models, options.sut, options.engine, selection)
    return bench, with_pauses(replace(space, load=options.load), bench)


def _drawn_models(models: Mapping[str, Model], sut: str) -> tuple[str, ...]:
    """Return the models that are drawn where none is named.

    The small ones for our own systems; a package refuses some of their sizes and gets those of the matrix.
    """
    own = tuple(name for name, model in models.items() if sut in model.systems)
    if own:
        return own
    small = tuple(name for name in SMALL_MODELS if name in models)
    matrix = tuple(name for name, model in models.items() if model.matrix)
    return (small or matrix) if sut in OURS else matrix


def with_pauses(space: Space, bench: Bench) -> Space:
    """Return the space with pauses where the system offers them."""
    setting = next(iter(space.settings.values()))[0]
    try:
        return replace(space, pauses=bench.pauses(setting))
    except NotDrivable:  # each sequence will say so, with the reason
        return space


@dataclass(frozen=True)
class Session:
    """A finished run and what belongs to its report."""

    outcome: Outcome
    settings: int
    """Settings that could be drawn."""
    file: FilePath | None
    """Keeps the found sequence."""
    again: str
    """Command that runs it again; empty if nothing was found."""


def fuzz(options: FuzzOptions, say: Say) -> Session:
    """Fuzz until the time is up or something is found; `say` gets a line every ten seconds.

    A sequence that was found is kept in the database's folder. Raises Interrupted on Ctrl-C, UsageError
    where no sequence could be run.
    """
    bench, space = prepare(options)
    chosen = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    progress = Progress(say)
    gc.freeze()  # modules and models stay: collections need not look at them again
    campaign = Campaign(
        bench,
        space,
        options.limits,
        seed=chosen,
        database=options.database,
        reuse=options.seed is None,
        progress=progress,
    )
    try:
        with redirect_stdout(sys.stderr):  # whatever a system prints is no part of the report
            outcome = campaign.run()
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: {progress.last}, seed {chosen}") from None
    if not outcome.tally.sequences:
        reason = next(iter(outcome.tally.skipped), "nothing was drawn")
        raise UsageError(f"no sequence could be run: {reason}")
    file = None if outcome.found is None else _keep(options.database, outcome.found.trial.sequence)
    return Session(outcome, space.count, file, "" if file is None else _again(file, options))


def _keep(database: FilePath, sequence: Sequence) -> FilePath:
    """Write a sequence beside the example database and return its file."""
    file = database / FOUND_FOLDER / f"{sequence_name(sequence)}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dump_sequence(sequence), encoding="utf-8")
    return file


def _again(file: FilePath, options: FuzzOptions) -> str:
    words = ["replay-harness fuzz"]
    words += [f"--plant {options.plant}"] if options.plant else []
    words += [f"--sut-option {key}={value}" for key, value in options.sut_options.items()]
    return " ".join([*words, f"--replay {file}"])


def replay(files: tuple[FilePath, ...], options: FuzzOptions) -> tuple[tuple[FilePath, Trial], ...]:
    """Run sequences from files; folders stand for their TOML files, in name order.

    What a sequence says of system and engine wins. Raises CaseError for a file that is no sequence,
    HarnessError where one cannot be driven, UsageError where a folder holds none.
    """
    return tuple((file, _replay_one(file, options)) for name in files for file in _expanded(name))


def _expanded(file: FilePath) -> list[FilePath]:
    if not file.is_dir():
        return [file]
    found = sorted(file.glob("*.toml"))
    if not found:
        raise UsageError(f"--replay {file}: holds no sequences (*.toml)")
    return found


def _replay_one(file: FilePath, options: FuzzOptions) -> Trial:
    sequence = read_sequence(file)
    own = replace(options, sut=sequence.setting.sut, engine=sequence.setting.engine)
    bench = make_bench(own)
    check_sequence(file, sequence, bench.models)
    try:
        with redirect_stdout(sys.stderr):
            return bench.run(sequence)
    except HarnessError as error:
        raise type(error)(f"{file}: {error}") from error


class Progress:
    """Says how far a run is, at most every ten seconds."""

    def __init__(self, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._said = clock()
        self.last = "0 sequences"

    def __call__(self, tally: Tally, seconds: float) -> None:
        """Take note of the figures so far."""
        self.last = f"{tally.sequences} sequences, {tally.operations} operations, {tally.replays} replays"
        now = self._clock()
        if now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            self._say(f"{self.last}, {seconds:.0f} s")
