"""The tail's slots as a captured draft step reads them, beside what an ordinary build gives: no probes, no
poison.

    python -m harness.sut.vllm.minimal [--engine cuda_graph] [--path fused_repaired] [--steps 5]

Captures the graph of all draft steps as the runner does, on null blocks; replays it for two batches; runs an
eager batch through the same builders; replays again. Exit status 1 where a slot is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness import locate
from harness.case import Case
from harness.casefile import load_models
from harness.rounds import Program, Round
from harness.sut.protocol import StepOutputs
from harness.sut.vllm.sut import make_sut
from harness.traffic import build_program
from harness.truth import Truth
from harness.types import Drill, EngineKind, Mode, Path
from harness.worker import make_engine

FIELD = "tail.slot_mapping"
EAGER = "after an eager batch"


@dataclass(frozen=True)
class Seen:
    """What one draft step of one replay read."""

    what: str
    step: int
    lengths: tuple[int, ...]
    read: tuple[int, ...]
    built: tuple[int, ...]
    """What an ordinary build gives at this step."""

    @property
    def right(self) -> bool:
        """Whether they are equal, live rows only."""
        return self.read == self.built


def observe(case: Case) -> Iterator[Seen]:
    """Yield what every draft step reads, in order."""
    engine, program, truth = make_engine(case.engine), build_program(case), Truth()
    sut = make_sut(case, engine, lambda name, step=-1: nullcontext())
    sut.init_graph_state()
    captured = program.capture[case.bucket]
    sut.stage(truth.of(case, program, captured).inputs)
    sut.prepare_capture(case.bucket)
    graph, outputs = engine.capture(lambda: sut.forward(case.bucket))
    full = [one for one in program.rounds if one.bucket == case.bucket == len(one.lengths)]
    for what, round_ in (("first replay", full[0]), ("next replay", full[4]), (EAGER, full[0])):
        if what == EAGER:
            sut.eager(case.bucket)
        sut.stage(truth.of(case, program, round_).inputs)
        engine.launch(graph)
        engine.synchronize()
        yield from _steps(what, case, program, round_, truth, outputs)
    sut.close()


def _steps(
    what: str, case: Case, program: Program, round_: Round, truth: Truth, outputs: Sequence[StepOutputs]
) -> Iterator[Seen]:
    for step, one in enumerate(outputs):
        right = truth.of(case, program, round_).at(step)
        live = right.inputs.live
        lengths, read = right.inputs.lengths[:live], one.read[FIELD][:live]
        built = np.asarray(right.expected[FIELD].live)[:live]
        yield Seen(what, step, tuple(lengths.tolist()), tuple(read.tolist()), tuple(built.tolist()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for every draft step; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.sut.vllm.minimal", description=__doc__)
    kinds: list[Any] = [kind.value for kind in EngineKind]
    parser.add_argument("--engine", default=EngineKind.TAPE.value, choices=kinds)
    parser.add_argument("--path", default=Path.FUSED_MULTI_STEP.value, help="or fused_repaired")
    parser.add_argument("--steps", type=int, default=3, help="speculative steps, S (default %(default)s)")
    parser.add_argument("--bucket", type=int, default=4, help="captured batch size (default %(default)s)")
    options = parser.parse_args(arguments)
    model = load_models(locate.cases_dir(None))["vllm-p4"]
    variant = next(one for one in model.variants if one.steps == options.steps)
    case = Case(
        "vllm", EngineKind(options.engine), model, Path(options.path), False, variant, Mode.DECODE,
        options.bucket, Drill.PLAIN,
    )  # fmt: skip
    found = list(observe(case))
    for seen in found:
        verdict = "equal" if seen.right else "WRONG"
        print(f"{seen.what}, draft step {seen.step}, lengths {list(seen.lengths)}: {verdict}")
        print(f"  read            {list(seen.read)}")
        print(f"  a build gives   {list(seen.built)}")
    return 0 if all(seen.right for seen in found) else 1


if __name__ == "__main__":
    sys.exit(main())
