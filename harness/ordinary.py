"""Which case is the ordinary reference of another."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from harness.axes import OURS
from harness.case import Case
from harness.rounds import OWN_INPUTS, rounds_key
from harness.specification import specification_of
from harness.types import Drill, Kernel, Mode, Path


def ordinary_of(case: Case) -> Case:
    """Return the reference of a case: the ordinary path, fusion off, undisturbed.

    Its rounds include the inputs of all of the case's, dead columns and repetitions apart, which may not
    matter.

    For the embedded system, fused or not, that is the independent path, in decode with as many steps as
    the model has: what a step reads and computes depends neither on how many follow nor on the KV
    counter. For a released package it is its own single-backend refresh (S = 2 in decode), which no
    multi-step path's fault can touch.
    """
    own = specification_of(case.sut)
    if own is not None and own.ordinary:
        same_inputs = case.drill if case.drill in OWN_INPUTS else Drill.PLAIN
        return replace(case, path=own.ordinary[case.path], drill=same_inputs)
    decode = case.mode is Mode.DECODE
    drill = case.drill if case.drill in OWN_INPUTS else Drill.PLAIN
    kernel = Kernel.FA3 if case.kernel is Kernel.TRTLLM else case.kernel
    if case.sut in OURS:
        variant = max(case.model.variants, key=lambda one: one.steps) if decode else case.variant
        return replace(case, path=Path.INDEPENDENT, fusion=False, drill=drill, variant=variant, kernel=kernel)
    variant = msgspec.structs.replace(case.variant, steps=2) if decode else case.variant
    return replace(case, path=Path.RELEASED, fusion=False, drill=drill, variant=variant, kernel=kernel)


def is_reference(case: Case) -> bool:
    """Whether a case is its own ordinary reference."""
    return case == ordinary_of(case)


def reference_key(case: Case) -> tuple[object, ...]:
    """Cases with equal keys have the same ordinary reference."""
    ordinary = ordinary_of(case)
    return ordinary.id, case.engine, case.sut, rounds_key(ordinary)
