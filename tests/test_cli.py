import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness import locate, runner
from harness.case import Case
from harness.casefile import load_models
from harness.cli import main
from harness.errors import UsageError
from harness.findings import CaseResult
from harness.matrix import Plan
from harness.options import RunOptions
from harness.types import Drill, EngineKind, Kernel, Mode
from harness.types import Path as RefreshPath
from tests.report.sample import finding, result


def case(name: str) -> Case:
    return cast(Case, SimpleNamespace(id=name))


class Fake:
    """A runner whose plan and results a test decides; remembers what it was asked for."""

    def __init__(self) -> None:
        self.plan_of = Plan(cases=(case("a"), case("b")))
        self.results: list[CaseResult] = [result("a"), result("b")]
        self.asked: list[RunOptions] = []
        self.stop_after: int | None = None

    def plan(self, options: RunOptions) -> Plan:
        self.asked.append(options)
        return self.plan_of

    def run(self, options: RunOptions, plan: Plan) -> Iterator[CaseResult]:
        for number, one in enumerate(self.results):
            if number == self.stop_after:
                raise KeyboardInterrupt
            yield one

    def judge_saved(self, directory: Path, options: RunOptions) -> Iterator[CaseResult]:
        self.asked.append(options)
        yield from self.results


@pytest.fixture
def at_tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working folder whose only case file is the tiny model's."""
    (tmp_path / "cases").mkdir()
    shutil.copy(locate.CHECKOUT / "cases" / "tiny.toml", tmp_path / "cases")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, at_tiny: Path) -> Fake:
    monkeypatch.delenv("COLUMNS", raising=False)  # the report wraps at the width of whoever runs the tests
    one = Fake()
    for name in ("plan", "run", "judge_saved"):
        monkeypatch.setattr(runner, name, getattr(one, name))
    return one


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr, with nothing on stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def test_nothing_unexpected_is_status_0_and_the_report_is_on_stdout(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("OK: nothing unexpected; 2 cases")
    assert err == ""


def test_a_finding_is_status_1(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.results[0] = result("a", finding("a"))
    assert main(["verify"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("FAILED: 1 unexpected finding;")


def test_a_known_finding_is_status_0(fake: Fake) -> None:
    fake.results[0] = result("a", finding("a", known="K1"))
    assert main(["verify"]) == 0


def test_every_flag_reaches_the_runner(fake: Fake, tmp_path: Path) -> None:
    flags = (
        "--model tiny --model glm-5 --path shared --path released --fusion on --fusion off --steps 3"
        " --steps 5 --mode decode --drill churn --bucket 4 --kernel trtllm --case a --sut sglang"
        " --engine cuda_graph --full --jobs 3 --save kept --no-golden --golden-dir accepted"
        " --sut-option version=0.5.20"
    )
    assert main(["verify", *flags.split()]) == 0
    (options,) = fake.asked
    chosen = options.selection
    assert chosen.models == ("tiny", "glm-5")
    assert chosen.paths == (RefreshPath.SHARED, RefreshPath.RELEASED)
    assert (chosen.fusion, chosen.steps) == ((True, False), (3, 5))
    assert (chosen.modes, chosen.drills) == ((Mode.DECODE,), (Drill.CHURN,))
    assert (chosen.buckets, chosen.kernels, chosen.cases) == ((4,), (Kernel.TRTLLM,), ("a",))
    assert (options.sut, options.engine) == ("sglang", EngineKind.CUDA_GRAPH)
    assert (options.full, options.jobs, options.save, options.golden) == (True, 3, Path("kept"), "off")
    assert (options.cases_dir, options.golden_dir) == (tmp_path / "cases", Path("accepted"))
    assert options.sut_options == {"version": "0.5.20"}


def test_releases_are_runs_of_their_own_each_in_its_own_processes(fake: Fake) -> None:
    flags = "--sut sglang --sut embedded --sglang-version 0.5.23 --sglang-version 0.5.20"
    assert main(["verify", *flags.split(), "--sut-option", "refresh=staged"]) == 0
    assert [(o.sut, o.version, o.isolated) for o in fake.asked] == [
        ("sglang", "0.5.23", True), ("sglang", "0.5.20", True), ("embedded", "", True),
    ]  # fmt: skip
    assert fake.asked[1].sut_options == {"version": "0.5.20", "refresh": "staged"}


def test_results_say_which_release_they_are_of(fake: Fake, tmp_path: Path) -> None:
    fake.results[0] = result("a", finding("a", known="K1"))
    flags = "--sut sglang --sglang-version 0.5.23 --sglang-version 0.5.20 --json r.json"
    assert main(["verify", *flags.split()]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    versions = [(one["case"], one["axes"]["version"]) for one in report["cases"]]
    assert versions == [("a", "0.5.20"), ("b", "0.5.20"), ("a", "0.5.23"), ("b", "0.5.23")]
    assert [one["version"] for one in report["findings"]] == ["0.5.20", "0.5.23"]


def refuse(monkeypatch: pytest.MonkeyPatch, fake: Fake, *versions: str) -> None:
    """Let the runner find no SGLang of these versions, after one result."""

    def run(options: RunOptions, plan: Plan) -> Iterator[CaseResult]:
        if options.version in versions:
            raise UsageError(f"no SGLang {options.version} to verify: run `make sglang-site`")
        yield from fake.run(options, plan)

    monkeypatch.setattr(runner, "run", run)


def test_a_release_that_cannot_be_driven_fails_its_cases_and_the_others_run(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(monkeypatch, fake, "9.9.9")
    fake.plan_of = Plan(cases=tuple(planned(Kernel.FA3, bucket) for bucket in (2, 4)))
    fake.results = [result(one.id) for one in fake.plan_of.cases]
    flags = "--sut sglang --sglang-version 9.9.9 --sglang-version 0.5.23"
    assert main(["verify", *flags.split()]) == 1
    out = capsys.readouterr().out
    assert "no SGLang 9.9.9 to verify: run `make sglang-site`" in out
    assert "routing: not_driven, path shared, release 9.9.9 (2 cases)" in out
    assert "FAILED: 2 unexpected findings; 4 cases" in out


def planned(kernel: Kernel, bucket: int) -> Case:
    model = load_models(Path("cases"))["tiny"]
    return Case(
        sut="sglang", engine=EngineKind.TAPE, model=model, path=RefreshPath.SHARED, fusion=False,
        variant=model.default_variant, mode=Mode.DECODE, bucket=bucket, drill=Drill.PLAIN, kernel=kernel,
    )  # fmt: skip


@pytest.mark.parametrize("versions", [("9.9.9",), ("9.9.9", "9.9.8")])
def test_where_no_release_can_be_driven_the_first_reason_is_the_only_line(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], versions: tuple[str, ...]
) -> None:
    refuse(monkeypatch, fake, *versions)
    fake.plan_of = Plan(cases=(planned(Kernel.FA3, 2),))
    flags = [flag for version in versions for flag in ("--sglang-version", version)]
    assert main(["verify", "--sut", "sglang", *flags]) == 2
    assert one_line(capsys) == "replay-harness: no SGLang 9.9.9 to verify: run `make sglang-site`"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--sglang-version 0.5.20", "--sglang-version speaks about --sut sglang"),
        ("--sut sglang --sglang-version 1 --sut-option version=1", "say the same: give one of them"),
        ("--sut sglang --sglang-version 1 --sglang-version 2 --save kept", "--save keeps one release"),
    ],
)
def test_releases_that_cannot_be_told_apart_are_refused(
    fake: Fake, capsys: pytest.CaptureFixture[str], flags: str, text: str
) -> None:
    assert main(["verify", *flags.split()]) == 2
    assert text in one_line(capsys)


def test_without_flags_everything_is_selected_on_the_tape(fake: Fake, tmp_path: Path) -> None:
    main(["verify"])
    (options,) = fake.asked
    assert options == RunOptions(cases_dir=tmp_path / "cases", golden_dir=tmp_path / "golden")


def test_several_systems_and_engines_are_runs_of_their_own(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "verify",
                *["--sut", "embedded", "--sut", "sglang", "--engine", "tape", "--engine", "cuda_graph"],
            ]
        )
        == 0
    )
    assert [(o.sut, o.engine.value) for o in fake.asked] == [
        ("embedded", "tape"),
        ("embedded", "cuda_graph"),
        ("sglang", "tape"),
        ("sglang", "cuda_graph"),
    ]
    assert "OK: nothing unexpected; 8 cases" in capsys.readouterr().out


def test_the_json_report_is_written_where_there_are_findings(fake: Fake, tmp_path: Path) -> None:
    fake.results[0] = result("a", finding("a"))
    assert main(["verify", "--json", "out/report.json"]) == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["schema"], report["summary"]["unexpected"]) == (1, 1)


def test_an_unwritable_report_is_refused_before_anything_runs(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--json", str(tmp_path)]) == 2
    assert one_line(capsys) == f"replay-harness: --json {tmp_path}: is a folder; name a file"
    assert fake.asked == []


def test_listing_prints_the_plan_and_runs_nothing(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.stop_after = 0
    assert main(["verify", "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == ["a", "b"]


def test_what_is_not_run_is_counted_with_reasons(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.plan_of = replace(
        fake.plan_of,
        not_applicable=(("12 combinations", "sharing needs S >= 3"),),
        skipped=(("c", "left out by --path"), ("d", "left out by --path")),
    )
    fake.results[1] = result("b", skipped="no GPU")
    assert main(["verify"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "planned 4 cases",
        "run 1 case",
        "12 sharing needs S >= 3",
        "1 no GPU",
        "2 left out by --path",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--path shared --model glm-9", "none has --model glm-9; `verify --list` prints all"),
        ("--model tiny --bucket 3", "none has --bucket 3; `verify --list` prints all"),
        (
            "--model tiny --mode draft_extend --path sibling_copy",
            "none has all of --model, --path, --mode together; without --path there are 14 cases, or try"
            " `verify --full`",
        ),
    ],
)
def test_a_selection_that_is_empty_names_the_filter_to_blame(
    at_tiny: Path, capsys: pytest.CaptureFixture[str], flags: str, said: str
) -> None:
    assert main(["verify", *flags.split()]) == 2
    assert one_line(capsys) == f"replay-harness: no case is selected: {said}"


@pytest.mark.parametrize(
    ("reasons", "line"),
    [
        (("no GPU", "no GPU"), "none of the 2 selected cases ran: no GPU"),
        (
            ("other heads", "no such mode", "no such mode"),
            "none of the 3 selected cases ran: no such mode (2 cases; 1 for other reasons)",
        ),
        (("no GPU",), "a did not run: no GPU"),
    ],
)
def test_a_run_in_which_everything_was_skipped_is_no_pass_and_says_why(
    fake: Fake, capsys: pytest.CaptureFixture[str], reasons: tuple[str, ...], line: str
) -> None:
    """What the filters left out is no reason: `x` is not what was selected."""
    names = "abc"[: len(reasons)]
    fake.plan_of = Plan(cases=tuple(map(case, names)), skipped=(("x", "left out by --model"),) * 5)
    fake.results = [
        replace(result(name), checks=(), skipped=reason) for name, reason in zip(names, reasons, strict=True)
    ]
    assert main(["verify"]) == 2
    assert one_line(capsys) == f"replay-harness: {line}"


def test_a_case_without_a_result_is_no_pass(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.results.pop()
    assert main(["verify"]) == 2
    assert "2 cases were planned but 1 gave a result" in one_line(capsys)


def test_ctrl_c_is_status_130_and_says_how_far_it_came(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.stop_after = 1
    assert main(["verify"]) == 130
    assert one_line(capsys) == "interrupted: 1 of 2 cases, 0 unexpected findings"


def test_errors_that_a_user_can_mend_are_one_line(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(options: RunOptions) -> Plan:
        raise UsageError("cases/tiny.toml: no key `lenght`")

    monkeypatch.setattr(runner, "plan", plan)
    assert main(["verify"]) == 2
    assert one_line(capsys) == "replay-harness: cases/tiny.toml: no key `lenght`"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("verify --path stolen", "'stolen' is not one of 'independent', 'sibling_copy'"),
        ("verify --fusion maybe", "'maybe' is not one of 'on', 'off'"),
        ("verify --steps 1", "1 is not in the range x>=2"),
        ("verify --sut-option fast", "'fast' is not KEY=VALUE"),
        ("verify --colour", "No such option"),
        ("judge nowhere", "Directory 'nowhere' does not exist"),
        ("explode", "No such command 'explode'"),
        ("verify --cases-dir nowhere", "--cases-dir nowhere: no such folder"),
        ("verify --cases-dir .", "--cases-dir .: holds no case files"),
        ("verify --golden-dir cases/tiny.toml", "--golden-dir cases/tiny.toml: is not a folder"),
        ("explain nothing", "no check is called 'nothing'; there are address,"),
    ],
)
def test_wrong_usage_is_status_2_with_a_reason(
    fake: Fake, capsys: pytest.CaptureFixture[str], arguments: str, said: str
) -> None:
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err


def test_saved_observations_are_judged_and_reported(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").mkdir()
    fake.results = [result("b", finding("b")), result("a")]
    assert main(["judge", "kept", "--json", "judged.json"]) == 1
    report = json.loads((tmp_path / "judged.json").read_text())
    assert [one["case"] for one in report["cases"]] == ["a", "b"]
    assert "run                  2 cases" in capsys.readouterr().out


def test_a_folder_without_observations_is_no_pass(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").mkdir()
    fake.results = []
    assert main(["judge", "kept"]) == 2
    assert "kept: holds no saved observations" in one_line(capsys)


def test_explain_names_every_check_and_tells_about_one(capsys: pytest.CaptureFixture[str]) -> None:
    from harness.checks.registry import CHECKS

    assert main(["explain"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:1].strip()]
    assert listed == [check.name for check in CHECKS]
    assert main(["explain", CHECKS[0].name]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (CHECKS[0].claim, CHECKS[0].sees, CHECKS[0].mend):
        assert " ".join(part.split()) in text


def test_bench_prints_rates_of_the_matrix_and_of_the_comparison(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.bench import cpu

    monkeypatch.setattr(cpu.compare_seconds, "__defaults__", (1000, 1))
    assert main(["bench", "cpu"]) == 0
    text = capsys.readouterr().out
    for name in ("comparison", "matrix", "elements", "checks", "refreshes"):
        assert f"\n{name} " in f"\n{text}"
    assert "2,080 in all" in text


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )


def test_the_module_is_the_same_program(tmp_path: Path) -> None:
    done = run("-m", "harness", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout.split()[0]) == (0, "replay-harness,")
    assert run("-m", "harness", "verify", "--steps", "x", cwd=tmp_path).returncode == 2


def test_help_needs_neither_torch_nor_numpy(tmp_path: Path) -> None:
    code = (
        "import sys; from harness.cli import main; main(['verify', '--help']);"
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = run("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--drill" in done.stdout
