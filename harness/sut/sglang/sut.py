"""SGLang behind the `Sut` protocol: built for a case, captured and refreshed as its own runners do it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from harness.case import Case
from harness.engine.protocol import Engine
from harness.errors import CaseError, NotDrivable, UsageError
from harness.fields import COUNTER, Dims, fields_for
from harness.observation import Expectation
from harness.oracle import sparse_lengths, visible_lengths
from harness.probe.leaves import leaf_tensors
from harness.rounds import Inputs
from harness.sut.patches import Patches
from harness.sut.protocol import SpanRecorder, StepOutputs, StepRoots
from harness.sut.sglang import shared
from harness.sut.sglang.backend import Batches, device_major, make_multi, make_step
from harness.sut.sglang.consumer import Consumer
from harness.sut.sglang.eager import run_attention, run_batch
from harness.sut.sglang.expected import COUNTER_ROWS, expectation
from harness.sut.sglang.loader import Loaded, load
from harness.sut.sglang.watch import Watch
from harness.traffic import build_program
from harness.types import Kernel, Mode, Path, Role

POOLED_HEADS = (32, 64)
"""Heads for which SGLang makes pooled schedules on Hopper, real or simulated."""
_NOT_STATE = frozenset(
    {
        "decode_cuda_graph_metadata",
        "forward_metadata",
        "req_to_token",
        "_arange_buf",
        "_multi_ctas_kv_counter_buffer",
    }
)
"""Attributes of a backend that are shown otherwise, or hold inputs and constants."""
PATHS = (Path.RELEASED, Path.SHARED, Path.SHARED_IN_GRAPH)


class SglangSut:
    """One case of SGLang. Everything patched is in force only within its own calls."""

    name = "sglang"
    tolerates_poison = True

    def __init__(
        self,
        case: Case,
        engine: Engine,
        span: SpanRecorder,
        buckets: Sequence[int],
        loaded: Loaded,
        *,
        staged: bool = False,
    ) -> None:
        if case.model.index_kpool > 1 and not loaded.seams.packs_pools:
            raise NotDrivable(
                f"SGLang {loaded.site.version} lays pooled index keys out by physical page, not packed as "
                f"the specification has them: {case.model.name} (P > 1) cannot be judged on it"
            )
        hopper = device_major(engine.device) == 9
        if hopper and case.model.index_kpool > 1 and case.model.heads not in POOLED_HEADS:
            raise NotDrivable(
                f"SGLang plans pooled logits on Hopper for {' or '.join(map(str, POOLED_HEADS))} heads only: "
                f"{case.model.name} has {case.model.heads}"
            )
        self.steps = case.backends
        self._case = case
        self._span = span
        self._loaded = loaded
        self._largest = max(buckets)
        self._buckets = tuple(buckets)
        self._watch = Watch(loaded.seams, span)
        with loaded.calls(case.geometry):
            self._native = case.mode is Mode.DECODE and shared.shares_by_itself()
        self._dropin: shared.Options | None = None
        if case.path is not Path.RELEASED and not self._native:
            self._dropin = shared.Options(staged=staged, in_graph=case.path is Path.SHARED_IN_GRAPH)
        if self._native and case.path is Path.SHARED_IN_GRAPH:
            raise NotDrivable(
                f"SGLang {loaded.site.version} shares by itself and does not refresh inside the graph"
            )
        self._batches = Batches(case, loaded.seams, self._buckets, engine.device)
        self._consumer = Consumer(case, engine.device)
        self._multi: Any = None
        with self._calls():
            if case.mode is Mode.DECODE:
                self._multi = make_multi(case, loaded.seams, self._batches, self._largest)
                self._backends: list[Any] = self._multi.attn_backends
            else:
                self._backends = [make_step(case, loaded.seams, self._batches, 0, self._largest)]

    @contextmanager
    def _calls(self) -> Iterator[Patches]:
        with self._loaded.calls(self._case.geometry) as patches:
            if self._dropin is not None:
                shared.install(self._dropin)
                patches.callback(shared.uninstall)
            self._wrap(patches)
            yield patches

    def _wrap(self, patches: Patches) -> None:
        """Wrap what is called, as released or with the drop-in, until the patches are undone."""
        self._watch.patch(patches)

    def facts(self) -> Mapping[str, str]:
        """Return versions, and which parts are real and which stand-ins."""
        sharing = "SGLang's own" if self._native else "none"
        if self._dropin is not None:
            sharing = f"the drop-in, {'staged' if self._dropin.staged else 'direct'}"
        return {**self._loaded.facts, "sglang.sharing": sharing}

    def expectation(self, bucket: int) -> Expectation:
        """Return what the path in force declares of a refresh of one bucket."""
        return expectation(
            self._case,
            bucket,
            shared=self._native or self._dropin is not None,
            staged=self._dropin is not None and self._dropin.staged,
            lacks=self._loaded.seams.lacks,
            counter_bytes=self._counter_bytes() if self._case.kernel is Kernel.TRTLLM else 0,
        )

    def _counter_bytes(self) -> int:
        """Return what a KV counter needs, by the kernel's own rule: SGLang may ask it for too few rows."""
        rows = self._largest * (1 if self._multi is not None else self._case.variant.draft_tokens)
        with self._calls():
            utilities = self._loaded.seams.counters.flashinfer.utils
            workers = utilities.get_device_sm_count(self._batches.table.device)
            needed: int = utilities.get_trtllm_gen_multi_ctas_kv_counter_bytes(
                max(COUNTER_ROWS, rows), self._case.model.heads, workers
            )
        return needed

    def init_graph_state(self) -> None:
        """Make the persistent buffers of every step, for the largest bucket."""
        rows = self._largest * (1 if self._multi is not None else self._case.variant.draft_tokens)
        with self._calls():
            (self._multi or self._backends[0]).init_cuda_graph_state(self._largest, rows)

    def stage(self, inputs: Inputs) -> None:
        """Write a round's inputs in place into the persistent input tensors.

        Where the graph refreshes, nothing else comes between an eager call and the replay, so the steps
        are pointed at the bucket's metadata here.
        """
        # A server may hand over a mirror that lags, or none, where the system says it needs none.
        lagging = self._multi is not None and not getattr(self._multi, "needs_cpu_seq_lens", True)
        self._batches.stage(inputs, lagging=lagging)
        captured = getattr(self._backends[0], "decode_cuda_graph_metadata", {})
        if self._in_graph() and inputs.bucket in captured:
            with self._calls():
                self._owner().init_forward_metadata_out_graph(self._batches[inputs.bucket])

    def inputs(self) -> Mapping[str, torch.Tensor]:
        """Return the persistent input tensors, which a refresh or replay may only read."""
        return self._batches.inputs()

    def prepare_capture(self, bucket: int) -> None:
        """Make (or make again) the metadata of a bucket, from the staged inputs, outside the graph."""
        with self._calls():
            self._owner().init_forward_metadata_out_graph(self._batches[bucket], in_capture=True)

    def forward(self, bucket: int) -> tuple[StepOutputs, ...]:
        """Read every leaf of every step, after the refresh where that is captured too."""
        if self._in_graph():
            self._refresh_in_graph(bucket)
        outputs = []
        for step in range(self.steps):
            with self._span("forward", step):
                outputs.append(self._consumer.read(leaf_tensors(self._read_by(step, bucket)), bucket))
        return tuple(outputs)

    def _refresh_in_graph(self, bucket: int) -> None:
        self._watch.begin()
        with self._span("refresh"):
            self._refresh_captured(bucket)
        self._watch.evidence.in_graph = True

    def _refresh_captured(self, bucket: int) -> None:
        with self._calls():
            self._owner().init_forward_metadata_in_graph(self._batches[bucket])

    def _read_by(self, step: int, bucket: int) -> Any:
        """Return the metadata object that a step's forward reads: its active one, whatever the bucket."""
        return self._backends[step].forward_metadata

    def refresh(self, bucket: int) -> None:
        """Refresh the bucket's metadata from the staged inputs before a replay."""
        if not self._in_graph():
            self._watch.begin()
        with self._calls():
            self._owner().init_forward_metadata_out_graph(self._batches[bucket])

    def eager(self, rows: int) -> None:
        """Run an eager batch larger than any bucket, and a prefill's attention of `rows` query rows."""
        with self._calls() as patches, self._watch.aside():
            run_batch(self._owner(), self._batches, self._loaded.seams, self._largest + 1)
            for backend in self._backends:
                if backend._multi_ctas_kv_counter_buffer is not None:
                    run_attention(backend, patches, rows)

    def pause_and_resume(self) -> None:
        """See `harness.sut.protocol.Pausable`: init-once leaves and KV counters are never released."""
        for root in self.roots():
            for bucket, metadata in root.metadata.items():
                fields = fields_for(Dims.of(self._case, bucket))
                for name, tensor in leaf_tensors(metadata).items():
                    if name in fields and fields[name].role is Role.REFRESHED:
                        tensor.zero_()

    def roots(self) -> tuple[StepRoots, ...]:
        """Return where every step's tensors hang now."""
        return tuple(_roots(backend) for backend in self._backends)

    def route(self) -> str:
        """Return which path the last refresh took, from the calls that it made, and how it made tables."""
        first = _places(self._backends[0].forward_metadata)
        aliased = all(_places(backend.forward_metadata) == first for backend in self._backends[1:])
        evidence = self._watch.evidence
        route = evidence.route(self.steps, multi_step=self._multi is not None, aliased=aliased)
        fused = self._case.fusion_in_force or self._case.model.index_kpool == 1
        if route and fused == bool(evidence.tables):
            return f"{route} {'without' if fused else 'with'} the fused kernel"
        return route

    def reference(self, leaf: str, inputs: Inputs) -> torch.Tensor | None:
        """Return FlashMLA's plan of the oracle's lengths, for the leaves that hold one.

        Asked of the planner itself: a backend that keeps an old plan would keep it here as well.
        """
        holder, _, name = leaf.partition(".")
        if holder != "flashmla_metadata":
            return None
        dims = Dims.of(self._case, inputs.bucket)
        lengths = sparse_lengths(visible_lengths(dims, inputs), dims.pool, dims.topk)
        on_device = torch.from_numpy(lengths).to(self._batches.table.device, torch.int32)
        heads = self._backends[0].flashmla_kv_num_q_heads
        with self._calls():
            planner = importlib.import_module(self._loaded.seams.flashmla)
            tiles, splits = planner.get_mla_metadata(
                cache_seqlens=on_device,
                num_q_tokens_per_head_k=heads,
                num_heads_k=1,
                num_heads_q=heads,
                is_fp8_kvcache=True,
                topk=dims.topk,
            )
        plan: torch.Tensor = tiles if name == "flashmla_metadata" else splits
        return plan

    def close(self) -> None:
        """Let go of the backends; no patch outlives a call."""
        self._multi = None
        self._backends = []

    def _owner(self) -> Any:
        return self._multi if self._multi is not None else self._backends[0]

    def _in_graph(self) -> bool:
        return self._dropin is not None and self._dropin.in_graph


def _places(metadata: Any) -> dict[str, tuple[int, torch.Size]]:
    """Return where each leaf lies."""
    return {name: (leaf.data_ptr(), leaf.shape) for name, leaf in leaf_tensors(metadata).items()}


def _roots(backend: Any) -> StepRoots:
    entries = getattr(backend, "decode_cuda_graph_metadata", {})
    state = {name: value for name, value in entries.items() if isinstance(name, str) and value is not None}
    for name, value in vars(backend).items():
        if name not in _NOT_STATE and isinstance(value, torch.Tensor | dict | list | tuple):
            state[name] = value
    counter = backend._multi_ctas_kv_counter_buffer
    if counter is not None:
        state[COUNTER] = counter
    return StepRoots(
        metadata={bucket: value for bucket, value in entries.items() if isinstance(bucket, int)},
        active=getattr(backend, "forward_metadata", None),
        state=state,
    )


def make_sut(
    case: Case,
    engine: Engine,
    span: SpanRecorder,
    version: str | None = None,
    refresh: str = "direct",
    buckets: str = "",
    remember: str = "",
) -> SglangSut:
    """Build SGLang for a case: the release `version`, or whichever is found first.

    refresh: how the drop-in refreshes step 0 outside a graph, `direct` or `staged`. buckets: batch sizes to
    build it for, `1,2,4`; those of the case's program where left out. remember: interpreted launches whose
    effect is kept, process-wide (simulated CUDA). Raises CaseError for a path, mode or
    kernel that SGLang does not have, UsageError without an SGLang or for other options.
    """
    if refresh not in ("direct", "staged"):
        raise UsageError(f"--sut-option refresh={refresh}: allowed are direct, staged")
    if case.path not in PATHS:
        allowed = ", ".join(PATHS)
        raise CaseError(f"{case.id}: path {case.path} is not one of SGLang's ({allowed})")
    if case.kernel is Kernel.FLASHMLA_KV and case.model.index_kpool > 1:
        raise CaseError(f"{case.id}: kernel flashmla_kv needs index_kpool 1, not {case.model.index_kpool}")
    if case.mode is not Mode.DECODE and case.path is not Path.RELEASED:
        raise CaseError(f"{case.id}: mode {case.mode} has one backend, so its path is released")
    loaded = load(version, engine.device)
    if remember:
        loaded.interpreter.memory.most = _sizes(remember)[0]
    sizes = _sizes(buckets) or build_program(case).buckets
    return SglangSut(case, engine, span, sizes, loaded, staged=refresh == "staged")


def _sizes(text: str) -> tuple[int, ...]:
    parts = text.split(",") if text else []
    if not all(part.strip().isdigit() for part in parts):
        raise UsageError(f"--sut-option buckets={text}: give batch sizes, e.g. 1,2,4")
    return tuple(sorted((int(part) for part in parts), reverse=True))
