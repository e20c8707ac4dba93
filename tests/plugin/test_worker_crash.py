from xml.etree import ElementTree

import pytest


def test_a_crash_is_the_result_of_the_case_that_crashed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pytest

        @pytest.mark.parametrize("name", ["before", "crashes", "after"])
        def test_case(name):
            if name == "crashes":
                os._exit(134)
        """
    )
    result = pytester.runpytest_subprocess("-n", "1", "--junitxml=out.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*worker 'gw0' crashed while running '*test_case[[]crashes[]]'*"])
    failed = [
        case.get("name", "")
        for case in ElementTree.parse(pytester.path / "out.xml").iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    assert len(failed) == 1
    assert "crashes" in failed[0]
