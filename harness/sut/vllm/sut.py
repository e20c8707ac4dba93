"""vLLM behind the `Sut` protocol: built for a case, captured and replayed as its own runner does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from harness.case import Case
from harness.engine.protocol import Engine
from harness.errors import CaseError
from harness.observation import Expectation
from harness.rounds import Inputs
from harness.sut.patches import Patches
from harness.sut.protocol import SpanRecorder, StepOutputs, StepRoots
from harness.sut.vllm.drafts import Drafts
from harness.sut.vllm.expected import expectation
from harness.sut.vllm.groups import make_groups
from harness.sut.vllm.loader import Loaded, load
from harness.sut.vllm.specification import SPECIFICATION, STATE_GROUPS, STATE_PATHS
from harness.traffic import build_program
from harness.types import Kernel, Mode, Path


class VllmSut:
    """One case of vLLM. Everything patched is in force only within its own calls."""

    name = "vllm"
    tolerates_poison = True

    def __init__(self, case: Case, engine: Engine, span: SpanRecorder, loaded: Loaded, largest: int) -> None:
        self.steps = case.backends
        self._case, self._loaded, self._largest = case, loaded, largest
        self._bucket = 0
        self._captured_updates: dict[int, int] = {}
        self._drafts: Drafts | None = None
        self._device = engine.device
        self._span = span

    @property
    def drafts(self) -> Drafts:
        """The runner's side of draft decode, once made."""
        assert self._drafts is not None
        return self._drafts

    @contextmanager
    def _calls(self) -> Iterator[Patches]:
        beyond = None if self._drafts is None else self._drafts.reach()
        with self._loaded.calls(self._case.geometry, beyond=beyond) as patches, torch.no_grad():
            yield patches

    def facts(self) -> Mapping[str, str]:
        """Return versions, and which parts are real and which stand-ins."""
        return self._loaded.facts

    def expectation(self, bucket: int) -> Expectation:
        """Return what the path in force declares of a refresh of one bucket."""
        return expectation(self._case, bucket)

    def init_graph_state(self) -> None:
        """Make the runner's buffers and the builders, for the largest bucket."""
        seams = self._loaded.seams
        with self._calls():
            groups = make_groups(self._case, seams, self._largest, self._device)
            self._drafts = Drafts(self._case, seams, groups, self._largest, self._device, self._span)

    def stage(self, inputs: Inputs) -> None:
        """Write a round's inputs in place into the runner's buffers."""
        self._bucket = inputs.bucket
        with self._calls():
            self.drafts.stage(inputs)

    def inputs(self) -> Mapping[str, torch.Tensor]:
        """Return what the draft steps may only read; lengths and positions advance, and are none of these."""
        return self.drafts.inputs()

    def prepare_capture(self, bucket: int) -> None:
        """Build (or build again) the metadata that a bucket's graph is captured with, on null blocks."""
        with self._calls():
            self.drafts.prepare_capture(bucket)

    def forward(self, bucket: int) -> tuple[StepOutputs, ...]:
        """Run what the runner captures: all draft steps, each refreshed by an update, or one step alone."""
        with self._calls():
            outputs = self.drafts.forward(bucket)
        self._captured_updates[bucket] = self.drafts.events.updates
        return outputs

    def refresh(self, bucket: int) -> None:
        """Build the metadata of state-space groups; drafts are refreshed in the graph, or in `decode`."""
        if self._case.path in STATE_PATHS:
            with self._calls():
                self.drafts.refresh_states(bucket)

    def decode(self, bucket: int, replay: Callable[[int], None]) -> None:
        """Run the staged round's own loop, see `harness.sut.protocol.Interleaved`."""
        with self._calls():
            self.drafts.decode(bucket, replay)

    def rebuild(self) -> None:
        """Build the staged batch's metadata once more, outside of everything."""
        with self._calls():
            self.drafts.rebuild(self._bucket)

    def eager(self, rows: int) -> None:
        """Run a batch larger than any bucket without a graph, through the same builders."""
        with self._calls():
            self.drafts.eager(self._largest + 1)

    def roots(self) -> tuple[StepRoots, ...]:
        """Return where the one metadata object of all steps hangs now."""
        drafts = self.drafts
        active = drafts.metadata.get(self._bucket)
        state = {"runner": drafts.runner_buffers()}
        return tuple(
            StepRoots(drafts.metadata, active, state if step == 0 else {}) for step in range(self.steps)
        )

    def route(self) -> str:
        """Return which path the last round took, from the calls that it made."""
        events, path = self.drafts.events, self._case.path
        if path.in_graph:
            updates = self._captured_updates.get(self._bucket, 0)
            if updates == self.steps and not events.builds:
                return path.value
            return f"none of the paths: {updates} updates captured, {events.builds} builds since the batch"
        if path in STATE_PATHS:
            alone = events.builds == STATE_GROUPS and not events.reuses
            reused = events.builds == 1 and events.reuses == STATE_GROUPS - 1
            if reused or alone:
                return Path.BLOCK_TABLE_REUSE if reused else Path.INDEPENDENT
            return f"none of the paths: {events.builds} builds, {events.reuses} reuses"
        if events.builds == self.steps and not events.updates:
            return path.value
        return f"none of the paths: {events.builds} builds and {events.updates} updates in a round"

    def reference(self, leaf: str, inputs: Inputs) -> torch.Tensor | None:
        """Return nothing: every leaf has a formula."""
        return None

    def close(self) -> None:
        """Let go of the builders; no patch outlives a call."""
        self._drafts = None


def make_sut(case: Case, engine: Engine, span: SpanRecorder, version: str | None = None) -> Any:
    """Build vLLM for a case: the release `version`, or whichever is found first.

    Raises CaseError for a path or mode that it does not have, UsageError without a vLLM.
    """
    if case.path not in SPECIFICATION.ordinary:
        allowed = ", ".join(SPECIFICATION.ordinary)
        raise CaseError(f"{case.id}: path {case.path} is not one of vLLM's ({allowed})")
    if case.mode is not Mode.DECODE or case.kernel is not Kernel.FA3:
        raise CaseError(f"{case.id}: vLLM is driven in mode decode with kernel fa3")
    loaded = load(version, engine.device)
    return VllmSut(case, engine, span, loaded, max(build_program(case).buckets))
