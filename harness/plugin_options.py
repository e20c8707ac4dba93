"""What the pytest plugin can be asked for: options, their ini twins, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from harness.plugin_runner import Shard
from harness.types import EngineKind, Path

GROUP = "replay harness"
UPDATES = ("new", "changed", "all")


@dataclass(frozen=True)
class HarnessOptions:
    """What the options and their ini twins ask for."""

    sut: str
    engine: EngineKind
    models: tuple[str, ...]
    """Names to select; empty for all."""
    paths: tuple[Path, ...]
    """Refresh paths to select; empty for all."""
    golden_update: str
    """One of `UPDATES`, or empty."""
    golden_reason: str
    """Why goldens are updated; kept in their manifests."""
    golden_accept: tuple[str, ...]
    """Names of goldens to accept as this run makes them."""
    golden_review: bool
    """Whether what differs becomes a pending golden."""
    golden_prune: bool
    """Whether goldens without a model are removed."""
    shard: str
    """`I/N`, or empty for all tests."""

    @property
    def golden_asked(self) -> tuple[str, ...]:
        """The options that write goldens and are given."""
        given = {
            "--golden-update": self.golden_update,
            "--golden-accept": self.golden_accept,
            "--golden-review": self.golden_review,
            "--golden-prune": self.golden_prune,
        }
        return tuple(name for name, value in given.items() if value)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options and their ini twins."""
    add_options(parser, "--harness-")
    group = parser.getgroup(GROUP)
    group.addoption(
        "--golden-update",
        dest="harness_golden_update",
        choices=UPDATES,
        help="write goldens that are missing (new), differ (changed), or both (all); "
        "never in CI or under several workers; ini: harness_golden_update",
    )
    group.addoption(
        "--golden-reason",
        dest="harness_golden_reason",
        metavar="TEXT",
        help="why goldens are updated, kept in their manifests; ini: harness_golden_reason",
    )
    group.addoption(
        "--golden-accept",
        dest="harness_golden_accept",
        action="append",
        metavar="NAME",
        help="accept this golden (such as tiny.tape) as this run makes it, others stay; may be repeated; "
        "refused as --golden-update is; ini: harness_golden_accept",
    )
    group.addoption(
        "--golden-review",
        dest="harness_golden_review",
        action="store_true",
        default=None,
        help="keep what differs as pending goldens and say how it differs; accepts nothing; "
        "ini: harness_golden_review",
    )
    group.addoption(
        "--golden-prune",
        dest="harness_golden_prune",
        action="store_true",
        default=None,
        help="remove goldens whose model or engine no case file has; ini: harness_golden_prune",
    )
    parser.addini("harness_golden_accept", "goldens to accept as made", type="args", default=[])
    parser.addini("harness_golden_review", "keep what differs as pending goldens", type="bool", default=False)
    parser.addini("harness_golden_prune", "remove goldens without a model", type="bool", default=False)
    parser.addini("harness_sut", "system under test (default: embedded)", default="embedded")
    parser.addini(
        "harness_engine", "what captures and replays (default: tape)", default=EngineKind.TAPE.value
    )
    parser.addini("harness_model", "models to select (default: all)", type="args", default=[])
    parser.addini("harness_path", "refresh paths to select (default: all)", type="args", default=[])
    parser.addini("harness_golden_update", "goldens to write: new, changed or all", default="")
    parser.addini("harness_golden_reason", "why goldens are updated", default="")
    parser.addini("harness_shard", "share of the tests to run, I/N (default: all)", default="")


def add_options(parser: pytest.Parser, prefix: str) -> None:
    """Register the selecting options as `prefix` + sut, engine, model, path.

    prefix: `--harness-` here; a project that has no such options itself may add `--` in a conftest.
    """
    group = parser.getgroup(GROUP)
    add = group.addoption
    add(f"{prefix}sut", dest="harness_sut", metavar="NAME", help="system under test; ini: harness_sut")
    add(
        f"{prefix}engine",
        dest="harness_engine",
        choices=[kind.value for kind in EngineKind],
        help="what captures and replays; ini: harness_engine",
    )
    add(
        f"{prefix}model",
        dest="harness_model",
        action="append",
        metavar="NAME",
        help="select a model, may be repeated; ini: harness_model",
    )
    add(
        f"{prefix}path",
        dest="harness_path",
        action="append",
        choices=[path.value for path in Path],
        help="select a refresh path, may be repeated; ini: harness_path",
    )
    add(
        f"{prefix}shard",
        dest="harness_shard",
        metavar="I/N",
        help="run the I-th of N shares of all tests, by a hash of their names; ini: harness_shard",
    )


def read_options(config: pytest.Config) -> HarnessOptions:
    """Return what is asked for: the command line first, then the ini file, then defaults.

    Raises pytest.UsageError for an ini value outside its vocabulary.
    """
    try:
        return HarnessOptions(
            sut=_setting(config, "harness_sut"),
            engine=EngineKind(_setting(config, "harness_engine")),
            models=tuple(_settings(config, "harness_model")),
            paths=tuple(Path(path) for path in _settings(config, "harness_path")),
            golden_update=_golden_update(config),
            golden_reason=_setting(config, "harness_golden_reason"),
            golden_accept=tuple(_settings(config, "harness_golden_accept")),
            golden_review=_flag(config, "harness_golden_review"),
            golden_prune=_flag(config, "harness_golden_prune"),
            shard=_shard(config),
        )
    except ValueError as error:
        raise pytest.UsageError(f"ini file: {error}; see `pytest --help`, group '{GROUP}'") from error


def _setting(config: pytest.Config, name: str) -> str:
    given: str | None = config.getoption(name)
    return str(config.getini(name)) if given is None else given


def _settings(config: pytest.Config, name: str) -> list[str]:
    given: list[str] | None = config.getoption(name)
    return list(config.getini(name)) if given is None else given


def _flag(config: pytest.Config, name: str) -> bool:
    given: bool | None = config.getoption(name)
    return bool(config.getini(name)) if given is None else given


def _shard(config: pytest.Config) -> str:
    text = _setting(config, "harness_shard")
    if text:
        Shard(text)
    return text


def _golden_update(config: pytest.Config) -> str:
    update = _setting(config, "harness_golden_update")
    if update and update not in UPDATES:
        raise ValueError(f"harness_golden_update = {update!r} is none of {', '.join(UPDATES)}")
    return update
