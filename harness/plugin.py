"""The pytest plugin: options, the header, and cases as test parameters. Loads in any project, without torch.

A test that asks for the fixture `harness_case` is run once per planned case; `run_harness_case`
runs one. Every option has an ini twin; the command line wins over the ini file. The spellings
without `harness-` are for this project's own checkout (`conftest.py`): another project may have a
`--model` of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from harness.errors import UsageError
from harness.plugin_options import GROUP, HarnessOptions, add_options, pytest_addoption, read_options
from harness.plugin_runner import CaseProperties, NoSilentGpu, Shard, record
from harness.types import EngineKind

if TYPE_CHECKING:
    from harness.case import Case
    from harness.findings import CaseResult
    from harness.options import RunOptions

__all__ = ["add_options", "pytest_addoption"]  # a hook of the plugin, and what a conftest asks for

AUTO_WORKERS = "PYTEST_XDIST_AUTO_NUM_WORKERS"
"""Environment variable with which a user decides what `-n auto` means."""

_UPDATED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what cannot be done before anything runs."""
    options = read_options(config)
    _refuse(config, options)
    config.pluginmanager.register(CaseProperties(), "replay_harness_properties")
    if options.shard:
        config.pluginmanager.register(Shard(options.shard), "replay_harness_shard")
    if options.engine is not EngineKind.CUDA_GRAPH:
        config.pluginmanager.register(NoSilentGpu(config), "replay_harness_gpu")
    else:
        from harness.plugin_cuda import CudaSession

        config.pluginmanager.register(CudaSession(config), "replay_harness_cuda")


def _refuse(config: pytest.Config, options: HarnessOptions) -> None:
    """Raise pytest.UsageError where goldens may not be written as asked."""
    asked = options.golden_asked
    if len(asked) > 1:
        raise pytest.UsageError(f"{asked[0]} and {asked[1]} are two ways to go: give one of them")
    if not asked:
        return
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    if in_ci and not options.golden_review:
        raise pytest.UsageError(f"{asked[0]}: refused in CI; goldens are updated and reviewed by hand")
    if config.getoption("dist", "no") != "no" or hasattr(config, "workerinput"):
        raise pytest.UsageError(f"{asked[0]}: refused with xdist workers; run it without -n")


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Let `-n auto` mean one worker a GPU where CUDA graphs are asked for."""
    if read_options(config).engine is not EngineKind.CUDA_GRAPH or AUTO_WORKERS in os.environ:
        return None
    from harness.plugin_cuda import visible_devices

    return max(len(visible_devices()), 1)


def pytest_report_header(config: pytest.Config) -> str:
    """Say what is verified."""
    options = read_options(config)
    models = " ".join(options.models) or "all"
    paths = " ".join(options.paths) or "all"
    update = f", golden update {options.golden_update}" if options.golden_update else ""
    update += f", golden accept {' '.join(options.golden_accept)}" if options.golden_accept else ""
    update += ", golden review" if options.golden_review else ""
    update += ", golden prune" if options.golden_prune else ""
    shard = f", shard {options.shard}" if options.shard else ""
    return (
        f"{GROUP}: sut {options.sut}, engine {options.engine}, models {models}, paths {paths}{update}{shard}"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise tests that ask for `harness_case` over the planned cases."""
    if "harness_case" not in metafunc.fixturenames:
        return
    from harness import runner, session

    try:
        options = run_options(metafunc.config)
        (plan,) = session.plans([options])
    except UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from error
    marks = [pytest.mark.gpu] if options.engine is EngineKind.CUDA_GRAPH else []
    ordered = [case for group in runner.groups(plan.cases) for case in group]  # neighbours share a reference
    cases = [pytest.param(case, id=case.id, marks=marks) for case in ordered]
    metafunc.parametrize("harness_case", cases, scope="session")


def run_options(config: pytest.Config) -> RunOptions:
    """Return the runner's options for this pytest run; raises UsageError where there are no case files."""
    from harness import locate
    from harness.matrix import Selection
    from harness.options import RunOptions

    options = read_options(config)
    cases = locate.cases_dir(None, config.rootpath)
    return RunOptions(
        cases_dir=cases,
        golden_dir=locate.golden_dir(None, cases),
        sut=options.sut,
        engine=options.engine,
        jobs=1,
        selection=Selection(models=options.models, paths=options.paths),
    )


@pytest.fixture(scope="session")
def harness_options(request: pytest.FixtureRequest) -> RunOptions:
    """Options of the runner, as the command line and the ini file ask."""
    return run_options(request.config)


@pytest.fixture(scope="session")
def run_harness_case(
    request: pytest.FixtureRequest, harness_options: RunOptions
) -> Callable[[Case], CaseResult]:
    """Run one case in this process and judge it; skips the test where the case cannot run here.

    With `--golden-update` goldens are not compared but, after the last test, written.
    """
    from harness.worker import Worker

    asked = read_options(request.config)
    if asked.golden_update or asked.golden_accept or asked.golden_review:
        return _updating(request, harness_options)
    worker = Worker(harness_options)

    def run(case: Case) -> CaseResult:
        (result,) = worker.run((case,))
        record(request.config, result)
        if result.skipped:
            pytest.skip(result.skipped)
        return result

    return run


def _updating(request: pytest.FixtureRequest, harness_options: RunOptions) -> Callable[[Case], CaseResult]:
    from harness.updating import PROPOSE, Updating

    options = read_options(request.config)
    reason = options.golden_reason or f"no reason given (pytest {options.golden_asked[0]})"
    lines = request.config.stash.setdefault(_UPDATED, [])
    mode = PROPOSE if options.golden_review else options.golden_update or "all"
    update = Updating(harness_options, mode, reason)

    def apply() -> None:
        try:
            if options.golden_review:
                lines.extend(line for one in update.propose() for line in (one.status, *one.diff()))
            elif options.golden_accept:
                update.accept(options.golden_accept, reason, lines.append)
            else:
                update.apply(lines.append)
        except UsageError as error:
            pytest.fail(str(error), pytrace=False)

    request.addfinalizer(apply)
    return update.run


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Remove goldens without a model before anything is compared, where that is asked for."""
    config = session.config
    if not read_options(config).golden_prune:
        return
    from harness.golden.command import prune_orphans
    from harness.golden.store import GoldenStore

    try:
        options = run_options(config)
        lines = prune_orphans(options.cases_dir, GoldenStore(options.golden_dir))
    except UsageError as error:
        raise pytest.UsageError(f"--golden-prune: {error}") from error
    config.stash.setdefault(_UPDATED, []).extend(lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which goldens were updated, how and why."""
    lines = config.stash.get(_UPDATED, [])
    if lines:
        terminalreporter.section("goldens")
        for line in lines:
            terminalreporter.write_line(line)
