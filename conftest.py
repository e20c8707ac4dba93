"""This checkout's pytest settings: short option names, and what its own tests need."""

import pytest

from harness.plugin import add_options

pytest_plugins = ("pytester", "tests.devices")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `--sut --engine --model --path` do without the plugin's prefix here."""
    add_options(parser, "--")
