"""Soaks: what lean judging notices, memory that grows, interruption and resumption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from harness import cli
from harness.errors import UsageError
from harness.faults.catalogue import opener
from harness.faults.mechanisms import rules
from harness.faults.mechanisms.life import AfterStaging, OtherRoute
from harness.faults.mechanisms.values import Rewritten
from harness.faults.mechanisms.when import Nth
from harness.faults.scene import Injection, Scene, Trace
from harness.faults.wrapped import faulty
from harness.fuzz.sequence import Setting
from harness.soak import memory, report
from harness.soak.memory import Sample
from harness.soak.run import Soak
from harness.soak.state import SCHEMA, Plan, State, load_state
from harness.trace.setup import Stage, stage_for
from harness.types import Path
from tests.trace.samples import MODELS, wanted

SETTING = Setting(model="tiny-p1", path=Path.SHARED, steps=3, buckets=(1, 4))


def stage(injection: Injection | None = None) -> Stage:
    plain = stage_for(SETTING, wanted(), MODELS)
    if injection is None:
        return plain
    return replace(plain, factory=faulty(opener("embedded"), injection, Trace()))


def soaked(
    injection: Injection | None = None,
    replays: int = 90,
    file: FilePath | None = None,
    state: State | None = None,
) -> Soak:
    state = state or State(schema=SCHEMA, plan=Plan(setting=SETTING, load="server", seed=1))
    soak = Soak(stage(injection), state, file, lambda state: None)
    soak.run(replays)
    return soak


def test_a_healthy_system_passes() -> None:
    soak = soaked()
    assert not report.failed(soak)
    assert (soak.state.replays, soak.state.full_windows) == (90, 1)
    assert soak.distribution.batches == 90
    text = "\n".join(report.lines(soak, 90, "nowhere"))
    assert "OK: nothing moved, grew or went wrong; 90 of 90 replays" in text
    assert "batches   90" in text


def late(scene: Scene, bucket: int) -> bool:
    return scene.refreshes >= 80


def moves(scene: Scene, bucket: int) -> bool:
    if scene.refreshes == 80:
        leaf = scene.leaf(0, bucket, "cu_seqlens_k")
        scene.bind(0, bucket, "cu_seqlens_k", leaf.clone())
    return scene.refreshes == 80


def spoils_inputs(scene: Scene, bucket: int) -> bool:
    if scene.refreshes == 80:
        scene.target.inputs()["seq_lens"][0] += 1
    return scene.refreshes == 80


PLANTED = {
    "address": AfterStaging(moves, "moved"),
    "equivalence": Rewritten(("cache_seqlens_int32",), rules.unwritten, "stale field", when=Nth(80)),
    "routing": OtherRoute("independent", when=late),
    "readonly": AfterStaging(spoils_inputs, "inputs changed"),
}


@pytest.mark.parametrize("check", list(PLANTED))
def test_lean_judging_notices(check: str) -> None:
    """After the first, full window: the 80th refresh is judged leanly."""
    soak = soaked(PLANTED[check])
    assert report.failed(soak)
    assert check in {finding.check for finding in soak.findings}
    assert soak.state.replays < 90


def test_an_interrupted_soak_goes_on_where_it_was(tmp_path: FilePath) -> None:
    file = tmp_path / "state.json"
    soaked(replays=70, file=file)
    plan = Plan(setting=SETTING, load="server", seed=1)
    state = load_state(file, plan)
    assert state.replays == 70
    again = soaked(replays=100, file=file, state=state)
    whole = soaked(replays=100)
    assert again.state.replays == 100
    assert [part.replays for part in again.state.parts] == [70, 30]
    assert again.distribution == whole.distribution
    assert again.state.operations == whole.state.operations


def test_a_state_of_another_soak_is_refused(tmp_path: FilePath) -> None:
    file = tmp_path / "state.json"
    soaked(replays=5, file=file)
    with pytest.raises(UsageError, match="holds another soak"):
        load_state(file, Plan(setting=SETTING, load="server", seed=2))
    file.write_text("{")
    with pytest.raises(UsageError, match="holds no soak"):
        load_state(file, Plan(setting=SETTING, load="server", seed=1))


def samples(host: list[int], objects: int = 1000) -> list[Sample]:
    return [Sample(100 * index, value, 0, 0, objects) for index, value in enumerate(host)]


def test_growth_is_told_from_warming_up() -> None:
    mib = 1 << 20
    warm = [100 * mib, *[300 * mib] * 39]
    assert list(memory.growth(samples(warm))) == []
    leak = [(300 + index) * mib for index in range(40)]
    (line,) = memory.growth(samples(leak))
    assert line == "host memory grew by 20.0 MiB in 2,000 replays"
    assert list(memory.growth(samples(leak)[:10])) == []  # too few to tell


def test_growth_of_objects() -> None:
    grown = [Sample(index, 1, 0, 0, 1000 + 500 * index) for index in range(40)]
    assert [line for line in memory.growth(grown) if "objects" in line]


def test_samples_stay_few() -> None:
    kept = memory.Samples(10)
    for replays in range(0, 100_000, 10):
        if kept.due(replays):
            kept.add(Sample(replays, 0, 0, 0, 0))
    assert len(kept.kept) <= memory.MOST_SAMPLES
    assert kept.kept[0].replays == 0
    assert kept.kept[-1].replays > 90_000


def test_the_command(tmp_path: FilePath, capsys: pytest.CaptureFixture[str]) -> None:
    state = str(tmp_path / "state.json")
    flags = ["soak", "--replays", "20", "--bucket", "1", "--bucket", "2", "--state", state]
    assert cli.main([*flags, "--json", str(tmp_path / "report.json")]) == 0
    assert "20 of 20 replays" in capsys.readouterr().out
    assert cli.main([*flags[:2], "25", *flags[3:]]) == 0
    captured = capsys.readouterr()
    assert "going on after 20 replays" in captured.err
    assert "resumed   1 times" in captured.out
    assert cli.main(["soak", "--trial", "kill:0@1"]) == 2
    assert "give --ranks N" in capsys.readouterr().err
