import pytest

from harness.plugin_runner import Shard

MANY = """
    import pytest

    @pytest.mark.parametrize("number", range(40))
    def test_one(number): pass
"""


def ran(pytester: pytest.Pytester, *arguments: str) -> set[str]:
    result = pytester.runpytest("-v", *arguments)
    assert result.ret == pytest.ExitCode.OK
    return {line.split(" PASSED")[0] for line in result.outlines if " PASSED" in line}


def test_shares_are_disjoint_and_together_everything(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MANY)
    shares = [ran(pytester, "--harness-shard", f"{index}/3") for index in (1, 2, 3)]
    assert all(shares)
    assert sum(map(len, shares)) == len(set.union(*shares)) == 40


def test_a_test_stays_in_its_share_whatever_else_is_collected(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MANY)
    share = ran(pytester, "--harness-shard=2/3")
    some = ran(pytester, "--harness-shard=2/3", "-k", "1")
    assert some == {name for name in share if "1" in name}


def test_shares_do_not_depend_on_the_process() -> None:
    assert [Shard("1/2").takes(name) for name in ("a", "b", "c", "d")] == [True, True, True, False]


def test_the_header_names_it_and_the_command_line_wins_over_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nharness_shard = 1/2\n")
    pytester.runpytest().stdout.fnmatch_lines(["replay harness: *, shard 1/2"])
    pytester.runpytest("--harness-shard=2/2").stdout.fnmatch_lines(["replay harness: *, shard 2/2"])


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3"])
def test_another_text_is_one_line(pytester: pytest.Pytester, text: str) -> None:
    result = pytester.runpytest(f"--harness-shard={text}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *harness_shard = '{text}' is not I/N*"])


def test_workers_run_the_share_only(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MANY)
    alone = ran(pytester, "--harness-shard=1/3")
    result = pytester.runpytest("--harness-shard=1/3", "-n", "2")
    result.assert_outcomes(passed=len(alone))
