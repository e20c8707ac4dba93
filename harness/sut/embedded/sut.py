"""The embedded system as a `Sut`: built for one case, on one engine."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch

from harness.case import Case
from harness.engine.protocol import Engine
from harness.errors import CaseError
from harness.fields import Dims, fields_for, row_lengths, write_starts
from harness.observation import Expectation
from harness.rounds import Inputs
from harness.sut.embedded import fused_runtime
from harness.sut.embedded.eager import run_eager
from harness.sut.embedded.expected import expectation_of
from harness.sut.embedded.forward import Model, StepForward
from harness.sut.embedded.inputs import PersistentInputs
from harness.sut.embedded.metadata import named_leaves
from harness.sut.embedded.multistep import MultiStepBackend
from harness.sut.embedded.planners import Planners
from harness.sut.embedded.single import BucketTools
from harness.sut.embedded.weights import MOST_STEPS, Caches, Weights
from harness.sut.protocol import SpanRecorder, StepOutputs, StepRoots
from harness.types import Kernel, Mode, Path, Role


class EmbeddedSut:
    """See `harness.sut.protocol.Sut`."""

    tolerates_poison = True

    def __init__(
        self,
        case: Case,
        engine: Engine,
        span: SpanRecorder,
        model: Model | None = None,
        *,
        one_launch: bool = False,
    ) -> None:
        """Build for a case; `model` is one that another system of the same model and geometry has.

        one_launch: refresh by a single Triton launch, on the paths that share. Raises CaseError for what
        this system cannot be, UsageError where Triton is asked for and cannot run.
        """
        _check(case)
        self._case = case
        self._one_launch = one_launch
        self.name = "embedded-fused" if one_launch else "embedded"
        self._device = engine.device
        if one_launch:
            fused_runtime.load_kernel(engine.device)  # before anything imports Triton another way
        self._span = span
        self.steps = case.backends
        self._max_bs = max(case.bucket, *case.model.buckets)
        self._tools_by_bucket: dict[int, BucketTools] = {}
        self._forwards: dict[int, StepForward] = {}
        if case.fusion and case.model.index_kpool > 1 and not case.fusion_in_force:
            warnings.warn(
                f"KPool metadata fusion does not apply to {case.model.name} "
                "(needs page_size / P == 64, 64 % P == 0 and topk % P == 0): built the ordinary way",
                stacklevel=3,
            )
        geometry = case.geometry
        self._backend = MultiStepBackend(case.path, self.steps, self._tools, span)
        rows = Dims.of(case, 1).rows
        self._inputs = PersistentInputs(self._max_bs, rows, geometry.requests, geometry.width, self._device)
        self.model = seeded_model(case, self._device) if model is None else model

    def facts(self) -> Mapping[str, str]:
        """See `Sut`."""
        how, order = (
            ("the one launch", "ascending") if self._one_launch else ("torch operations", "descending")
        )
        return {
            "system": self.name,
            "torch": str(torch.__version__),
            "builder": "fused" if self._case.fusion_in_force else "ordinary",
            "refresh": self._refresh_fact(),
            "schedule": f"own formula in {how}",
            "topk_v2_plan": f"own formula in {how}, {order} rows",
            "flashmla": "length-dependent stand-in planner",
            "forward": "own indexer, top-k and sparse attention",
        }

    def expectation(self, bucket: int) -> Expectation:
        """See `Sut`."""
        return expectation_of(self._case, bucket, one_launch=self._one_launch)

    def init_graph_state(self) -> None:
        """See `Sut`."""
        self._backend.init_cuda_graph_state(self._max_bs)

    def stage(self, inputs: Inputs) -> None:
        """See `Sut`."""
        self._inputs.stage(inputs)
        if self._backend.strategy.in_graph:
            self._backend.activate(inputs.bucket)

    def inputs(self) -> Mapping[str, torch.Tensor]:
        """See `Sut`."""
        return self._inputs.tensors()

    def stage_tokens(self, bucket: int, tokens: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
        """Replace the query tokens `[bucket, rows per request]` that `stage` hashed, in place."""
        self._inputs.stage_tokens(bucket, tokens)

    def prepare_capture(self, bucket: int) -> None:
        """See `Sut`."""
        if bucket not in self._forwards:
            dims = Dims.of(self._case, bucket)
            requests = self._case.geometry.requests
            self._forwards[bucket] = StepForward(dims, requests, self.model, self._device)
        self._backend.build(bucket, self._inputs.of(bucket))

    def forward(self, bucket: int) -> tuple[StepOutputs, ...]:
        """See `Sut`."""
        inputs = self._inputs.of(bucket)
        self._backend.refresh_in_graph(bucket, inputs)
        token = self._inputs.tokens(bucket)
        outputs: list[StepOutputs] = []
        for step, backend in enumerate(self._backend.backends):
            with self._span("forward", step):
                metadata = self._backend.metadata(step, bucket)
                rows = metadata.dsa_seqlens_expanded.shape[0]
                counter = backend.counter.for_rows(rows) if backend.counter is not None else None
                result = self._forwards[bucket].run(step, metadata, token, inputs.req_to_token, counter)
            token = result.computed["draft_token"]
            outputs.append(result)
        return tuple(outputs)

    def refresh(self, bucket: int) -> None:
        """See `Sut`."""
        self._backend.refresh(bucket, self._inputs.of(bucket))

    def eager(self, rows: int) -> None:
        """See `Sut`."""
        for backend in self._backend.backends:
            backend.active, _ = run_eager(rows, self.model.weights, self.model.caches, backend.counter)

    def pause_and_resume(self) -> None:
        """See `harness.sut.protocol.Pausable`: init-once leaves and KV counters are never released."""
        for step in self._backend.roots():
            for bucket, metadata in step.metadata.items():
                fields = fields_for(Dims.of(self._case, bucket))
                for name, tensor in named_leaves(metadata):
                    if fields[name].role is Role.REFRESHED:
                        tensor.zero_()

    def roots(self) -> tuple[StepRoots, ...]:
        """See `Sut`."""
        return self._backend.roots()

    def route(self) -> str:
        """See `Sut`."""
        return self._backend.route()

    def reference(self, leaf: str, inputs: Inputs) -> torch.Tensor | None:
        """Return FlashMLA's leaves, by the same planner, for the lengths of `inputs`; else None."""
        name = leaf.removeprefix("flashmla_metadata.")
        if name not in ("flashmla_metadata", "num_splits") or name == leaf:
            return None
        dims = Dims.of(self._case, inputs.bucket)
        visible = row_lengths(dims, inputs)
        if dims.mode is not Mode.DECODE:
            later = np.arange(1, dims.draft_tokens + 1)
            visible = np.maximum(write_starts(dims, inputs)[:, None] + later, 0).reshape(-1)
        sparse = torch.from_numpy(np.minimum(visible, dims.topk)).to(self._device)
        planned = Planners(dims, self._device).flashmla(sparse)
        return planned.flashmla_metadata if name == "flashmla_metadata" else planned.num_splits

    def close(self) -> None:
        """See `Sut`."""
        self._forwards.clear()
        self._tools_by_bucket.clear()

    def _tools(self, bucket: int) -> BucketTools:
        """Return a bucket's constants, made at its first use (which comes before any capture)."""
        if bucket not in self._tools_by_bucket:
            dims = Dims.of(self._case, bucket)
            fused = self._case.fusion_in_force
            self._tools_by_bucket[bucket] = BucketTools.make(
                dims, self._device, fused=fused, one_launch=self._one_launch
            )
        return self._tools_by_bucket[bucket]

    def _refresh_fact(self) -> str:
        if not self._one_launch:
            return "torch operations"
        how = "compiled" if self._device.type == "cuda" else "interpreted"
        return f"one launch, Triton {fused_runtime.version()}, {how}"


def _check(case: Case) -> None:
    model, geometry = case.model, case.geometry
    if geometry.width % model.page_tokens:
        raise CaseError(
            f"{model.name}: width {geometry.width} is not a multiple of its page, {model.page_tokens}"
        )
    if case.kernel is Kernel.FLASHMLA_KV and model.index_kpool > 1:
        raise CaseError(f"{model.name}: kernel {case.kernel.value} is for index_kpool = 1 only")
    if max(case.backends, case.variant.draft_tokens) > MOST_STEPS:
        raise CaseError(
            f"{model.name}: variant {case.variant} has more than {MOST_STEPS} steps or draft tokens"
        )


def seeded_model(case: Case, device: torch.device) -> Model:
    """Return the weights and caches of a case."""
    geometry, seed, pool = case.geometry, case.seed, case.model.index_kpool
    # Every page that a request table of this size can name: full rows, page 0 and the guard page.
    tokens = geometry.requests * geometry.width + 2 * case.model.page_tokens
    caches = Caches.seeded(seed, tokens, pool, case.precision, device)
    return Model(Weights.seeded(seed, device), caches)


def make_sut(case: Case, engine: Engine, span: SpanRecorder) -> EmbeddedSut:
    """Build the embedded system for a case; warns where fusion is asked for with P > 1 and does not apply."""
    return EmbeddedSut(case, engine, span)


def make_fused_sut(case: Case, engine: Engine, span: SpanRecorder) -> EmbeddedSut:
    """Build the embedded system with the fused refresh: one Triton launch, on `shared` and `shared_in_graph`.

    `independent`, the ordinary reference, is the embedded system as it is. Raises CaseError for the other
    paths, UsageError where Triton cannot run.
    """
    if case.path is Path.INDEPENDENT:
        return EmbeddedSut(case, engine, span)
    if case.path not in (Path.SHARED, Path.SHARED_IN_GRAPH):
        raise CaseError(
            f"{case.id}: no path {case.path.value} with the fused refresh: only shared, shared_in_graph"
        )
    return EmbeddedSut(case, engine, span, one_launch=True)
