"""What a trace is driven through: a setting that the recorded system and the command line agree on."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath

import torch

from harness.case import Case, Model
from harness.casefile import load_models
from harness.engine.protocol import Engine
from harness.errors import UsageError
from harness.fuzz.sequence import Setting, case_of
from harness.known import KnownFinding, load_known
from harness.options import RunOptions, factory_of
from harness.record.format import Header
from harness.sut.protocol import SutFactory
from harness.trace.reader import Trace
from harness.types import EngineKind, Kernel, Mode, Path
from harness.worker import KNOWN_FILE, make_engine

REMEMBERED = "128"
"""Interpreted launches that a package remembers in a long life: few come again, and memory stays as it is."""


@dataclass(frozen=True)
class Wanted:
    """What the command line says of the system; what it leaves out follows from the trace."""

    cases_dir: FilePath
    sut: str = "embedded"
    engine: EngineKind = EngineKind.TAPE
    path: Path = Path.SHARED
    model: str = ""
    steps: int = 0
    mode: Mode | None = None
    fusion: bool | None = None
    kernel: Kernel | None = None
    fit: bool = False
    plant: str = ""
    """Id of a fault to plant."""
    sut_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contents:
    """What a first reading of a trace tells."""

    refreshes: Counter[str]
    """By mode."""
    buckets: Mapping[str, tuple[int, ...]]
    """By mode: batch sizes, ascending."""
    note: str
    lost: int


@dataclass(frozen=True, eq=False)
class Stage:
    """Everything that a system is driven with."""

    models: Mapping[str, Model]
    setting: Setting
    case: Case
    factory: SutFactory
    engine: Engine
    known: tuple[KnownFinding, ...]


def contents(trace: Trace) -> Contents:
    """Read a trace once. Raises TraceError where it is damaged."""
    refreshes: Counter[str] = Counter()
    buckets: dict[str, set[int]] = {}
    for moment in trace.moments():
        refreshes[moment.mode] += not moment.capture
        buckets.setdefault(moment.mode, set()).add(moment.bucket)
    sorted_buckets = {mode: tuple(sorted(found)) for mode, found in buckets.items()}
    return Contents(refreshes, sorted_buckets, trace.note, trace.lost)


def mode_of(trace: Trace, found: Contents, wanted: Wanted) -> Mode:
    """Return the mode that is driven: as asked for, else decode, else the most frequent one.

    Raises UsageError where the trace has no refresh of it.
    """
    known = [mode for mode in Mode if found.refreshes[mode.value]]
    if wanted.mode is not None:
        known = [mode for mode in known if mode is wanted.mode]
    if not known:
        there = ", ".join(found.refreshes) or "nothing"
        raise UsageError(f"{trace.file}: holds no refresh of {wanted.mode or 'a known mode'}: {there}")
    if Mode.DECODE in known:
        return Mode.DECODE
    return max(known, key=lambda mode: found.refreshes[mode.value])


def setting_for(trace: Trace, found: Contents, wanted: Wanted, models: Mapping[str, Model]) -> Setting:
    """Return the setting in which a trace is driven. Raises UsageError where no model fits."""
    header = trace.header
    mode = mode_of(trace, found, wanted)
    model = _model(header, wanted, models)
    steps = wanted.steps or _steps(header, model)
    recorded_kernel = header.flags.get("dsa_decode_impl", "")
    kernel = wanted.kernel
    if kernel is None:
        kernel = Kernel(recorded_kernel) if recorded_kernel in list(Kernel) else Kernel.FA3
    fusion = wanted.fusion
    if fusion is None:
        fusion = header.flags.get("experimental_kpool_metadata_fusion") == "True"
    return Setting(
        sut=wanted.sut,
        engine=wanted.engine,
        model=model.name,
        path=wanted.path,
        fusion=fusion,
        steps=steps,
        mode=mode,
        kernel=kernel,
        buckets=found.buckets[mode.value],
    )


def stage_of(trace: Trace, found: Contents, wanted: Wanted) -> Stage:
    """Make ready what a trace is driven through. Raises UsageError for what does not exist or fit."""
    models = load_models(wanted.cases_dir)
    return stage_for(setting_for(trace, found, wanted, models), wanted, models)


def stage_for(setting: Setting, wanted: Wanted, models: Mapping[str, Model]) -> Stage:
    """Make ready what a setting is driven with; errors as of `stage_of`."""
    torch.set_num_threads(1)  # small tensors: threads get in each other's way
    case = case_of(setting, models[setting.model], setting.buckets)
    if wanted.plant:
        from harness.load.planted import planted_factory

        factory = planted_factory(setting.sut, wanted.plant)
    else:
        run = RunOptions(wanted.cases_dir, wanted.cases_dir, setting.sut, setting.engine)
        options = {**_long_life(setting, factory_of(run)), **wanted.sut_options}
        factory = factory_of(replace(run, sut_options=options))
    known = load_known(wanted.cases_dir / KNOWN_FILE)
    return Stage(models, setting, case, factory, make_engine(setting.engine), known)


def _long_life(setting: Setting, factory: SutFactory) -> dict[str, str]:
    """Return options for a factory that has them: all batch sizes of the setting, and a short memory."""
    known = inspect.signature(factory).parameters
    options = {"buckets": ",".join(map(str, setting.buckets)), "remember": REMEMBERED}
    return {name: value for name, value in options.items() if name in known and value}


def _model(header: Header, wanted: Wanted, models: Mapping[str, Model]) -> Model:
    if wanted.model:
        if wanted.model not in models:
            raise UsageError(f"--model {wanted.model}: there is {', '.join(models)}")
        model = models[wanted.model]
        if model.index_kpool != header.pool:
            raise UsageError(f"--model {model.name}: has P {model.index_kpool}, the trace P {header.pool}")
        return model
    fitting = [model for model in models.values() if model.index_kpool == header.pool]
    if not fitting:
        raise UsageError(f"no model with P {header.pool} in the case files; add one")

    def distance(model: Model) -> tuple[bool, bool, int]:
        width = model.geometries[wanted.engine.value].width
        steps = [variant.steps for variant in model.variants]
        return width < header.width, header.steps not in steps, abs(width - header.width)

    return min(fitting, key=distance)


def _steps(header: Header, model: Model) -> int:
    known = [variant.steps for variant in model.variants]
    return header.steps if header.steps in known else model.default_variant.steps


def describe_setting(setting: Setting) -> str:
    """Return a setting in a few words."""
    fusion = "on" if setting.fusion else "off"
    words = (setting.sut, setting.engine.value, setting.model, setting.path.value, f"S {setting.steps}")
    return ", ".join((*words, setting.mode.value, f"fusion {fusion}", setting.kernel.value))
