import shutil

import pytest

from harness import locate

MATRIX_TEST = """
    import pytest

    def test_case(harness_case, run_harness_case, subtests):
        result = run_harness_case(harness_case)
        for check in result.checks:
            with subtests.test(check=check.check):
                assert not [finding for finding in check.findings if not finding.known]
"""


@pytest.fixture(autouse=True)
def outside_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests start pytest in projects of their own, which know nothing of what runs them."""
    for variable in ("CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(variable, raising=False)
    # Hypothesis has nothing to do in them and takes a second to load, each time.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")


@pytest.fixture
def tiny_project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with the tiny model's case file and the matrix test."""
    pytester.mkdir("cases")
    for name in ("tiny.toml", "known_findings.toml"):
        shutil.copy(locate.CHECKOUT / "cases" / name, pytester.path / "cases")
    pytester.makepyfile(test_matrix=MATRIX_TEST)
    return pytester
