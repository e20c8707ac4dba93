"""Faults planted into functions of SGLang: where those are, and the mechanism that stands around one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from harness.faults.mechanisms.keys import Key
from harness.faults.mechanisms.when import ALWAYS, When
from harness.faults.scene import Injection, Scene
from harness.faults.sglang.target import SglangTarget
from harness.rounds import Inputs

_DSA = "sglang.srt.layers.attention.dsa"


@dataclass(frozen=True)
class Seam:
    """A function of SGLang: an attribute of these owners."""

    owners: Callable[[SglangTarget], Iterable[Any]]
    name: str


def _step(target: SglangTarget) -> tuple[Any, ...]:
    return (target.seams.step_backend,)


def _steps(target: SglangTarget) -> tuple[Any, ...]:
    return (target.seams.multi_backend,)


def _objects(target: SglangTarget) -> tuple[Any, ...]:
    return target.backends


def _copies(target: SglangTarget) -> tuple[Any, ...]:
    return (target.seams.copies,)


def _topk(target: SglangTarget) -> tuple[Any, ...]:
    return (target.seams.topk,)


def _modules(*names: str) -> Callable[[SglangTarget], tuple[Any, ...]]:
    """Modules that each hold the function under its own name, below the DSA package."""
    return lambda _: tuple(importlib.import_module(name) for name in names)


# Of one step's backend.
APPLY = Seam(_step, "_apply_cuda_graph_metadata")
"""The direct refresh of a step; at the first call for a bucket, its making."""
STAGED = Seam(_step, "init_forward_metadata_replay_cuda_graph_from_precomputed")
PRECOMPUTE = Seam(_step, "_precompute_replay_metadata")
BASE_COPY = Seam(_step, "_copy_base_replay_buffers")
SCHEDULE = Seam(_step, "_refresh_paged_mqa_schedule_metadata")
PLAN = Seam(_step, "_refresh_topk_v2_plan")
TABLE = Seam(_step, "_transform_table_1_to_real")
SIBLING = Seam(_step, "_copy_replay_metadata_from_sibling")
KPOOL_SIBLING = Seam(_step, "_copy_kpool_metadata_from_sibling")
KPOOL_STAGED = Seam(_step, "_update_kpool_metadata_from_precomputed")
KPOOL_DIRECT = Seam(_step, "_update_kpool_metadata_replay")
COUNTER_FOR = Seam(_step, "_multi_ctas_kv_counter_for")
# Of the drop-in that shares.
INIT_SHARED = Seam(_step, "_init_cuda_graph_state_shared")
SHARE = Seam(_step, "_share_cuda_graph_metadata")
# Of all steps together.
INIT = Seam(_steps, "init_cuda_graph_state")
OUT_GRAPH = Seam(_steps, "init_forward_metadata_out_graph")
IN_GRAPH = Seam(_steps, "init_forward_metadata_in_graph")
# Kernels and what leads to them.
FUSED_DECODE = Seam(_objects, "_fused_decode_metadata")
COPY = Seam(_copies, "fused_metadata_copy_cuda")
MULTI_COPY = Seam(_copies, "fused_metadata_copy_multi_cuda")
PLANNER = Seam(_topk, "plan_topk_v2")
POOLED = Seam(_modules(f"{_DSA}.dsa_backend_kpool"), "update_pooled_paged_mqa_metadata")
WRITE_PLAN = Seam(_modules(f"{_DSA}.dsa_backend_kpool"), "update_kpool_write_plan")
POOL_SCHEDULE = Seam(_modules(f"{_DSA}.kpool_plan"), "_compute_pool_schedule_metadata")
POOL_PLAN = Seam(_modules(f"{_DSA}.kpool_plan"), "refresh_kpool_topk_v2_plan")
POOLED_TABLE = Seam(_modules(f"{_DSA}.kpool_plan"), "build_pooled_page_table_64")
SPARSE_LENGTHS = Seam(
    _modules(
        "sglang.srt.layers.attention.dsa_backend",
        f"{_DSA}.dsa_backend_mtp_precompute",
    ),
    "compute_dsa_seqlens",
)

REFRESH, CAPTURE, INITIAL, EAGER, STAGE = "refresh", "capture", "init", "eager", "stage"


@dataclass(frozen=True)
class AtSeam(Injection):
    """A function of SGLang does something else, in the calls that are named."""

    seam: Seam
    around: Callable[..., Any]
    """(scene, the plain function, its arguments ...) -> what is returned instead; says `scene.hit`."""
    kind: str
    steps: tuple[int, ...] | None = None
    """Methods of a step's backend only: of these steps; None: of all."""
    when: When = ALWAYS
    """Asked for each refresh."""
    during: tuple[str, ...] = (REFRESH,)

    def start(self, scene: Scene) -> None:
        """See `Injection`."""
        target = opened(scene)
        target.wrap(self.seam.owners, self.seam.name, partial(self._called, scene))

    def init(self, scene: Scene, call: Callable[[], None]) -> None:
        """See `Injection`."""
        self._within(scene, INITIAL, call)

    def capture(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        self._within(scene, CAPTURE, call)

    def stage(self, scene: Scene, inputs: Inputs, call: Callable[[Inputs], None]) -> None:
        """See `Injection`; here an in-graph refresh has its steps pointed at the bucket's object."""
        self._within(scene, STAGE, partial(call, inputs))

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        if self.when(scene, bucket):
            self._within(scene, REFRESH, call)
        else:
            call()

    def eager(self, scene: Scene, rows: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        self._within(scene, EAGER, call)

    def _within(self, scene: Scene, phase: str, call: Callable[[], None]) -> None:
        before = scene.memory.get(self)
        scene.memory[self] = phase
        try:
            call()
        finally:
            scene.memory[self] = before

    def _called(self, scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        due = scene.memory.get(self) in self.during
        if due and self.steps is not None:
            due = args[0].speculative_step_id in self.steps
        return self.around(scene, plain, *args, **kwargs) if due else plain(*args, **kwargs)


@dataclass(frozen=True)
class StagedRefresh(Injection):
    """The drop-in refreshes step 0 through the precomputed input: the other form of the change."""

    counts: bool = False
    """Whether this is the whole injection, not merely where another one is planted."""
    kind: str = "staged refresh"

    def start(self, scene: Scene) -> None:
        """See `Injection`."""
        opened(scene).refresh_staged()
        if self.counts:
            scene.hit()


def opened(scene: Scene) -> SglangTarget:
    """Return the system as what it is."""
    assert isinstance(scene.target, SglangTarget)
    return scene.target


def left_out(scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Around: the function is not called."""
    scene.hit()


def remembered(key: Key) -> Callable[..., torch.Tensor]:
    """Return an around for functions of a tensor: its result is kept while the bucket's key is the same."""

    def around(scene: Scene, plain: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        fresh = plain(*args, **kwargs)
        place: Hashable = "remembered", scene.round.bucket, fresh.shape
        now = key(scene.round)
        known, kept = scene.memory.get(place, (None, fresh))
        if known != now:
            scene.memory[place] = now, fresh.clone()
            return fresh
        scene.hit(not torch.equal(kept, fresh))
        copy: torch.Tensor = kept.clone()
        return copy

    return around
