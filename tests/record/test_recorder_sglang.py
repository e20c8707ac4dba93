"""The recorder on the released SGLang classes, in simulated CUDA: recorded, read back, driven again."""

from __future__ import annotations

from pathlib import Path as FilePath

import pytest

from harness.engine.tape import TapeEngine
from harness.fuzz.sequence import Capture, Replay, Sequence, Setting, case_of
from harness.fuzz.trial import Bench
from harness.record import install
from harness.trace.reader import Trace
from harness.trace.setup import Wanted, contents, stage_of
from harness.trace.verify import verify
from harness.types import Path
from tests.trace.samples import CASES, MODELS

pytestmark = pytest.mark.sglang

SETTING = Setting(sut="sglang", model="glm-5.3-flash", path=Path.RELEASED, steps=3, buckets=(1, 2))


def test_the_released_classes(tmp_path: FilePath) -> None:
    from harness.sut.sglang.loader import load
    from harness.sut.sglang.sut import make_sut

    first = MODELS["glm-5.3-flash"].geometries["sglang_tape"].first_page
    given = (
        Replay(
            bucket=2, lengths=(70, 600), requests=(5, 3), pages=((first + 4,), (first, first + 7, first + 2))
        ),
        Replay(bucket=2, lengths=(71,), requests=(5,), pages=((first + 4,),)),
        Replay(bucket=1, lengths=(601,), requests=(3,), pages=((first, first + 7, first + 2),)),
    )
    captures = (
        Capture(bucket=2, lengths=(1, 1), requests=(1, 2)),
        Capture(bucket=1, lengths=(1,), requests=(1,)),
    )
    bench = Bench(MODELS, make_sut, TapeEngine())
    installed = install(load(None, TapeEngine().device).seams.backend_module, tmp_path / "run")
    try:
        trial = bench.run(Sequence(setting=SETTING, operations=(*captures, *given)))
    finally:
        installed.uninstall()
    assert not trial.unexpected
    assert installed.problem == ""
    assert installed.recorder is not None

    trace = Trace(installed.recorder.path)
    assert (trace.header.system, trace.header.pool, trace.header.steps) == ("sglang", 4, 3)
    assert trace.header.flags["dsa_decode_impl"] == "fa3"
    moments = list(trace.moments())
    assert [moment.bucket for moment in moments if moment.capture] == [2, 1]
    assert {moment.steps for moment in moments} == {2}
    # One round of a case is refreshed twice, under two sentinels.
    replayed = [moment for moment in moments if not moment.capture]
    seen = dict.fromkeys(
        (moment.bucket, moment.lengths, moment.requests, moment.pages) for moment in replayed
    )
    assert list(seen) == [(one.bucket, one.lengths, one.requests, one.pages) for one in given]

    found = contents(trace)
    stage = stage_of(trace, found, Wanted(cases_dir=CASES, sut="embedded", path=Path.SHARED))
    assert stage.case.model.index_kpool == 4
    assert case_of(stage.setting, stage.case.model).variant.steps == 3
    assert verify(trace, found, stage).findings == ()
