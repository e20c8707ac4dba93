"""This checkout's pytest settings: short option names, and what its own tests need."""

import pytest
from hypothesis import HealthCheck, settings

from harness.plugin import add_options

# A busy machine is slow to draw examples and to run them; neither says anything about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

pytest_plugins = ("pytester", "tests.devices")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `--sut --engine --model --path` do without the plugin's prefix here."""
    add_options(parser, "--")
