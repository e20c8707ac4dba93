import pytest

SELECTED = ("--harness-model", "tiny", "--harness-path", "independent", "-k", "decode and bs1 and plain")


def test_goldens_are_written_after_the_last_test_and_hold_from_then_on(tiny_project: pytest.Pytester) -> None:
    reason = ("--golden-reason", "the first one")
    written = tiny_project.runpytest_subprocess(*SELECTED, "--golden-update=new", *reason)
    assert written.ret == pytest.ExitCode.OK
    written.stdout.fnmatch_lines(["*= goldens =*", "tiny.tape: *", "written: tiny.tape; why: the first one"])
    golden = tiny_project.path / "golden"
    assert sorted(path.name for path in golden.iterdir()) == [
        "tiny.tape.manifest.json",
        "tiny.tape.safetensors",
    ]

    compared = tiny_project.runpytest_subprocess(*SELECTED, "-n", "2")
    assert compared.ret == pytest.ExitCode.OK
    compared.stdout.fnmatch_lines(["* passed*"])

    for file in golden.iterdir():
        file.unlink()
    missing = tiny_project.runpytest_subprocess(*SELECTED)
    missing.stdout.fnmatch_lines(["*test_case[[]tiny/independent/*/decode/bs1/plain/*] *check=*golden*"])
    failed = [line for line in missing.outlines if line.startswith("SUBFAILED")]
    assert failed
    assert all("golden" in line for line in failed)
