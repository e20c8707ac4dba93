"""Faults planted into functions of vLLM: where those are, and the mechanism that stands around one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from harness.faults.scene import Injection, Scene
from harness.faults.vllm.target import VllmTarget
from harness.probe.leaves import leaf_tensors
from harness.rounds import Inputs
from harness.sut.protocol import StepOutputs
from harness.sut.vllm.repaired import repaired_tail_builder
from harness.sut.vllm.seams import Seams

_SPECULATOR = "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator"


@dataclass(frozen=True)
class Seam:
    """A function of vLLM: an attribute of these owners."""

    owners: Callable[[Seams], Iterable[Any]]
    name: str


def _module(name: str) -> Callable[[Seams], tuple[Any, ...]]:
    return lambda _: (importlib.import_module(name),)


def _indexer_builder(seams: Seams) -> tuple[Any, ...]:
    return (seams.indexer.DeepseekV32IndexerMetadataBuilder,)


def _main_builder(seams: Seams) -> tuple[Any, ...]:
    return (seams.main.get_builder_cls(),)


UPDATE = "update_draft_decode_metadata"
INDEXER_UPDATE = Seam(_indexer_builder, UPDATE)
MAIN_UPDATE = Seam(_main_builder, UPDATE)
TAIL_UPDATE = Seam(lambda seams: (repaired_tail_builder(seams),), UPDATE)
ALL_UPDATES = Seam(lambda seams: (seams.speculator,), "_update_draft_decode_metadata")
INDEXER_BUILD = Seam(_indexer_builder, "build")
MAIN_BUILD = Seam(_main_builder, "build")
TAIL_BUILD = Seam(lambda seams: (seams.indexer.KpoolTailMetadataBuilder,), "build")
ALL_BUILDS = Seam(lambda seams: (seams.speculator,), "_build_attn_metadata")
SLOTS = Seam(lambda seams: (seams.tables.BlockTables,), "compute_slot_mappings")
ADVANCE = Seam(_module(_SPECULATOR), "update_draft_inputs")
SCHEDULE = Seam(lambda seams: (seams.indexer,), "get_paged_mqa_logits_metadata")
POOLED_SLOTS = Seam(lambda seams: (seams.indexer,), "get_compressed_slot_mapping")
TAIL_MAP = Seam(lambda seams: (seams.indexer,), "compute_kpool_tail_slot_mapping")
REUSE = Seam(lambda seams: (seams.state.get_builder_cls(),), "update_block_table")
STATE_BUILD = Seam(lambda seams: (seams.state.get_builder_cls(),), "build")

FORWARD, DECODE, REFRESH, CAPTURE, EAGER = "forward", "decode", "refresh", "capture", "eager"


@dataclass(frozen=True)
class AtSeam(Injection):
    """A function of vLLM does something else, in the calls that are named."""

    seam: Seam
    around: Callable[..., Any]
    """(scene, the plain function, its arguments ...) -> what is returned instead; says `scene.hit`."""
    kind: str
    during: tuple[str, ...] = (FORWARD,)

    def start(self, scene: Scene) -> None:
        """See `Injection`."""
        opened(scene).wrap(self.seam.owners, self.seam.name, partial(self._called, scene))

    def capture(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        self._within(scene, CAPTURE, call)

    def refresh(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        self._within(scene, REFRESH, call)

    def decode(self, scene: Scene, bucket: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        self._within(scene, DECODE, call)

    def eager(self, scene: Scene, rows: int, call: Callable[[], None]) -> None:
        """See `Injection`."""
        self._within(scene, EAGER, call)

    def forward(
        self, scene: Scene, bucket: int, call: Callable[[], tuple[StepOutputs, ...]]
    ) -> tuple[StepOutputs, ...]:
        """See `Injection`."""
        found: list[tuple[StepOutputs, ...]] = []
        self._within(scene, FORWARD, lambda: found.append(call()))
        return found[0]

    def _within(self, scene: Scene, phase: str, call: Callable[[], Any]) -> None:
        before = scene.memory.get(self)
        scene.memory[self] = phase
        try:
            call()
        finally:
            scene.memory[self] = before

    def _called(self, scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if scene.memory.get(self) in self.during:
            return self.around(scene, plain, *args, **kwargs)
        return plain(*args, **kwargs)


@dataclass(frozen=True)
class AfterStage(Injection):
    """Something happens once a round is staged."""

    act: Callable[[Scene], None]
    kind: str

    def stage(self, scene: Scene, inputs: Inputs, call: Callable[[Inputs], None]) -> None:
        """See `Injection`."""
        call(inputs)
        scene.hit()
        self.act(scene)


def opened(scene: Scene) -> VllmTarget:
    """Return the system as what it is."""
    assert isinstance(scene.target, VllmTarget)
    return scene.target


def step_of(scene: Scene) -> int:
    """Return the draft step that is running."""
    return len(opened(scene).drafts.events.outputs)


def left_out(scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Around: the function is not called."""
    scene.hit()


def twice(scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around: the function is called twice."""
    scene.hit()
    plain(*args, **kwargs)
    return plain(*args, **kwargs)


def first_step_only(scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around: the function is called at the first draft step alone."""
    if step_of(scene) == 0:
        return plain(*args, **kwargs)
    scene.hit()
    return None


def unwritten(*names: str) -> Callable[..., Any]:
    """Return an around for updates: these leaves of the metadata keep what they held before."""

    def around(scene: Scene, plain: Callable[..., Any], builder: Any, metadata: Any) -> None:
        leaves = leaf_tensors(metadata)
        kept = {name: leaves[name].clone() for name in names}
        plain(builder, metadata)
        for name in names:
            leaves[name].copy_(kept[name])
        scene.hit()

    return around


def changed(name: str, formula: Callable[[Scene, Any, torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return an around for updates: a leaf is written by a formula of (scene, builder, its right value)."""

    def around(scene: Scene, plain: Callable[..., Any], builder: Any, metadata: Any) -> None:
        plain(builder, metadata)
        leaf = leaf_tensors(metadata)[name]
        leaf.copy_(formula(scene, builder, leaf.clone()))
        scene.hit()

    return around
