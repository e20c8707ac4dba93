import pytest


@pytest.fixture(autouse=True)
def outside_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests start pytest in projects of their own, which know nothing of the CI that runs them."""
    monkeypatch.delenv("CI", raising=False)
    # Hypothesis has nothing to do in them and takes a second to load, each time.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
