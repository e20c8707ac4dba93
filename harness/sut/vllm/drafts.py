"""vLLM's own draft decode loop, made without a model runner: its buffers, its methods, a consumer for a
model.

A speculator is made without its `__init__`, which wants a model, by setting the attributes that draft decode
reads. What runs afterwards is vLLM's code: block tables and slot mappings, the builders, the loops over the
draft steps, the kernel that moves lengths and positions on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from harness.case import Case
from harness.fields import Dims
from harness.probe.leaves import leaf_tensors
from harness.rounds import Inputs
from harness.sut.protocol import SpanRecorder, StepOutputs
from harness.sut.vllm import oracle
from harness.sut.vllm.config import HIDDEN, max_requests
from harness.sut.vllm.consumer import Consumer
from harness.sut.vllm.groups import Groups
from harness.sut.vllm.seams import Seams
from harness.sut.vllm.specification import STATE_PATHS
from harness.types import Path

VOCABULARY = 1000
"""Draft tokens are checksums modulo this."""


@dataclass
class Events:
    """What was called since the round was staged, or within the capture."""

    builds: int = 0
    """Builds of a whole batch's metadata."""
    updates: int = 0
    """Calls of all builders' update."""
    reuses: int = 0
    """Metadata made of another group's."""
    outputs: list[StepOutputs] = field(default_factory=list)
    """What the draft steps read and computed, in order."""


class Drafts:
    """The runner's side of draft decode."""

    def __init__(
        self, case: Case, seams: Seams, groups: Groups, largest: int, device: torch.device, span: SpanRecorder
    ) -> None:
        self.case, self.seams, self.groups, self.device = case, seams, groups, device
        self.span = span
        self.events = Events()
        self.metadata: dict[int, Any] = {}
        """By bucket: what was built last, by layer."""
        self.live = 0
        self.lengths: list[int] = []
        most = max_requests(case, largest)
        self.most = most
        self.consumer = Consumer(case, device)
        self.tables = _watched_tables(seams, self)(
            block_sizes=groups.block_sizes,
            max_num_reqs=most,
            max_num_batched_tokens=most,
            max_num_blocks_per_group=groups.widths,
            device=device,
            slot_mapping_enabled=groups.mapped,
        )
        self.buffers = seams.inputs.InputBuffers(most, most, device)
        self.speculator = self._make(most)
        if case.path in STATE_PATHS:
            kind = _watched_states(type(groups.builders[0]), self)
            for builder in groups.builders:
                builder.__class__ = kind  # one class for all: vLLM reuses among builders of one type

    def _make(self, most: int) -> Any:
        kind, device, steps = _watched_speculator(self.seams, self), self.device, self.case.variant.steps
        speculator = object.__new__(kind)
        vars(speculator).update(
            {
                "vllm_config": self.groups.config,
                "device": device,
                "num_speculative_steps": steps,
                "draft_max_seq_len": self.case.geometry.width,
                "max_num_reqs": most,
                "max_num_tokens": most,
                "dcp_size": 1,
                "eplb_state": None,
                "pcp_manager": None,
                "input_buffers": self.buffers,
                "block_tables": self.tables,
                "attn_groups": self.groups.attention,
                "kv_cache_config": self.groups.cache,
                "idx_mapping": torch.zeros(most, dtype=torch.int64, device=device),
                "temperature": torch.zeros(most, device=device),
                "seeds": torch.zeros(most, dtype=torch.int64, device=device),
                "draft_tokens": torch.zeros(most, steps, dtype=torch.int64, device=device),
                "draft_logits": None,
                "hidden_states": torch.zeros(most, HIDDEN, device=device),
                "current_draft_step": torch.zeros((), dtype=torch.int64, device=device),
                "sample_src_positions": torch.zeros(most, dtype=torch.int64, device=device),
                "arange_np": np.arange(most + 1, dtype=np.int32),
                "draft_is_prefilling": torch.zeros(most, dtype=torch.bool),
                "decode_cudagraph_manager": None,
            }
        )
        return speculator

    def runner_buffers(self) -> dict[str, Any]:
        """Return the runner's persistent buffers, by the names that views of them declare."""
        return {
            "seq_lens": self.buffers.seq_lens,
            "positions": self.buffers.positions,
            "query_start_loc": self.buffers.query_start_loc,
            "slot_mappings": list(self.tables.slot_mappings),
            "block_tables": list(self.tables.input_block_tables),
        }

    def inputs(self) -> dict[str, torch.Tensor]:
        """Return what the draft steps may only read."""
        tables = {f"block_table_{i}": t.gpu for i, t in enumerate(self.tables.block_tables)}
        gathered = {f"input_block_table_{i}": t for i, t in enumerate(self.tables.input_block_tables)}
        mapping = {
            "idx_mapping": self.speculator.idx_mapping,
            "query_start_loc": self.buffers.query_start_loc,
        }
        return {**tables, **gathered, **mapping}

    def reach(self) -> dict[str, Callable[[], Sequence[torch.Tensor]]]:
        """Return what kernels reach through vLLM's tables of addresses."""
        return {"_compute_slot_mappings_kernel": lambda: [t.gpu for t in self.tables.block_tables]}

    def stage(self, inputs: Inputs) -> None:
        """Put a batch in place, as the runner has it before draft decode: after the first draft token.

        Block tables are filled by plain copies; vLLM's staged writer is no subject here.
        """
        live, bucket = inputs.live, inputs.bucket
        self.events = Events()
        self.live, self.lengths = live, [int(length) for length in inputs.lengths[:live]]
        dims = Dims.of(self.case, bucket)
        requests = torch.from_numpy(inputs.requests[:live].copy()).to(self.device)
        self._fill(requests, bucket, self._tables(dims, inputs), inputs.lengths[:live])

    def _tables(self, dims: Dims, inputs: Inputs) -> list[np.ndarray[Any, Any]]:
        blocks = oracle.blocks(dims, inputs)[: inputs.live]
        if self.case.path in STATE_PATHS:
            return [blocks, oracle.second_group(blocks)]
        rings = oracle.ring_blocks(dims, inputs)[: inputs.live, None]
        return [blocks, rings][: len(self.groups.widths)]

    def _fill(
        self, requests: torch.Tensor, bucket: int, tables: list[np.ndarray[Any, Any]], lengths: Any
    ) -> None:
        live, buffers, speculator = len(requests), self.buffers, self.speculator
        for group, blocks in enumerate(tables):
            rows = torch.from_numpy(blocks).to(self.device, torch.int32)
            self.tables.block_tables[group].gpu[requests] = rows
            gathered = self.tables.input_block_tables[group]
            gathered[:live] = rows
            gathered[live:bucket] = 0
        tokens = torch.as_tensor(lengths, dtype=torch.int32).to(self.device)
        buffers.seq_lens[:live] = tokens
        buffers.seq_lens[live:] = 0
        buffers.positions[:live] = tokens - 1
        start = torch.arange(buffers.query_start_loc.shape[0], dtype=torch.int32).clamp(max=live)
        buffers.query_start_loc.copy_(start.to(self.device))
        speculator.idx_mapping[:live] = requests
        speculator.idx_mapping[live:] = -1
        longest = int(tokens.max()) if live else 0
        speculator.draft_max_seq_len = min(longest + self.case.variant.steps, self.case.geometry.width)

    def prepare_capture(self, bucket: int) -> None:
        """Put the runner's dummy inputs in place, null blocks among them, and build for a capture."""
        self.events = Events()
        self.speculator.idx_mapping.zero_()
        state = object.__new__(_concrete(self.seams.model_state))
        state.model_config, state.supports_mm_inputs = self.groups.config.model_config, False
        found = self.seams.capture.prepare_inputs_to_capture(
            bucket, bucket, state, self.buffers, self.tables, self.groups.attention, self.groups.cache,
            full_cudagraph=True, max_query_len=1,
        )  # fmt: skip
        self.metadata[bucket], self._slots = found

    def forward(self, bucket: int) -> tuple[StepOutputs, ...]:
        """Run what the runner captures: all draft steps where they are fused, else one."""
        self.events = Events()
        if self.case.path in STATE_PATHS:
            self.read(bucket, self.metadata[bucket])
            return tuple(self.events.outputs)
        fused = self.case.path.in_graph
        run = self.speculator._generate_fused_drafts if fused else self.speculator._generate_draft
        full, steps = self.seams.modes.FULL, self.case.variant.steps
        run(bucket, bucket, self.metadata[bucket], self._slots, None, full, steps)
        return tuple(self.events.outputs)

    def decode(self, bucket: int, replay: Callable[[int], None]) -> None:
        """Run the ordinary loop over the draft steps; `replay(step)` stands where it launches the graph."""
        taken = iter(range(self.case.backends))
        launcher = SimpleNamespace(run_fullgraph=lambda description: replay(next(taken)))
        self.speculator.decode_cudagraph_manager = launcher
        self._loop(self.live, bucket, self.seams.modes.FULL, self.lengths)

    def rebuild(self, bucket: int) -> None:
        """Build the staged batch in its bucket, as before an ordinary step."""
        description = self.seams.capture.BatchExecutionDescriptor(self.seams.modes.FULL, bucket, bucket)
        bounds = torch.tensor(self.lengths, dtype=torch.int32)
        self.speculator._build_uniform_attn_metadata(description, self.live, 1, bounds, 1)

    def refresh_states(self, bucket: int) -> None:
        """Build the metadata of the state-space groups: all at once, as the runner does, or each by
        itself."""
        description = self.seams.capture.BatchExecutionDescriptor(self.seams.modes.FULL, bucket, bucket)
        bounds, whole = torch.tensor(self.lengths, dtype=torch.int32), self.groups.attention
        alone = [[groups if groups is one else [] for groups in whole] for one in whole]
        found: dict[str, Any] = {}
        for chosen in alone if self.case.path is Path.INDEPENDENT else [whole]:
            self.speculator.attn_groups = chosen
            found |= self.speculator._build_uniform_attn_metadata(description, self.live, 1, bounds, 0)
        self.speculator.attn_groups = whole
        self.metadata[bucket] = found

    def eager(self, rows: int) -> None:
        """Decode a batch of `rows` requests without a graph, on blocks and requests of its own."""
        requests = torch.arange(1, rows + 1, device=self.device)
        lengths = 3 + 5 * np.arange(rows) % 40
        last = Dims.of(self.case, rows).width
        tables = [
            np.tile(np.arange(1, width + 1), (rows, 1)) + 3 * np.arange(rows)[:, None] + group
            for group, width in enumerate(self.groups.widths)
        ]
        self._fill(requests, rows, tables, np.minimum(lengths, last))
        if self.case.path in STATE_PATHS:
            description = self.seams.capture.BatchExecutionDescriptor(self.seams.modes.NONE, rows, rows)
            bounds = torch.as_tensor(lengths, dtype=torch.int32)
            self.speculator._build_uniform_attn_metadata(description, rows, 1, bounds, 0)
            return
        self._loop(rows, rows, self.seams.modes.NONE, [int(length) for length in lengths])

    def _loop(self, live: int, bucket: int, mode: Any, lengths: list[int]) -> None:
        description = self.seams.capture.BatchExecutionDescriptor(mode, bucket, bucket)
        fused = self.case.path.in_graph
        run = self.speculator._fused_multi_step_decode if fused else self.speculator._multi_step_decode
        bounds = torch.tensor(lengths, dtype=torch.int32)
        run(live, False, description, None, bounds, self.case.variant.steps)

    # What the watched classes call

    def built(self, bucket: int, metadata: Any) -> None:
        """Take note of a build of the batch in the bucket that is padded to."""
        self.events.builds += 1
        if bucket in self.metadata:
            self.metadata[bucket] = metadata

    def reused(self) -> AbstractContextManager[None]:
        """Take note of metadata that is made of another group's."""
        self.events.reuses += 1
        return self.span("reuse")

    def read(self, bucket: int, metadata: Any) -> torch.Tensor:
        """Read a step's metadata in the place of the model; return hidden states, `[bucket, HIDDEN]`."""
        with self.span("forward", len(self.events.outputs)):
            outputs = self.consumer.read(leaf_tensors(metadata), bucket)
        self.events.outputs.append(outputs)
        return (outputs.computed["checksum"] % VOCABULARY).to(torch.float32)[:, None].expand(-1, HIDDEN)


def _concrete(abstract: type[Any]) -> type[Any]:
    """Return a subclass that can be made: its methods that want a model are not called."""
    made: Any = type(f"Slim{abstract.__name__}", (abstract,), {})
    made.__abstractmethods__ = frozenset()
    found: type[Any] = made
    return found


def _watched_states(released: type[Any], drafts: Drafts) -> type[Any]:
    """Return a builder of state-space metadata with a span around its reuse."""

    class WatchedStates(released):  # type: ignore[misc]
        def update_block_table(self, *args: Any, **kwargs: Any) -> Any:
            with drafts.reused():
                return super().update_block_table(*args, **kwargs)

    return WatchedStates


def _watched_tables(seams: Seams, drafts: Drafts) -> type[Any]:
    """Return vLLM's block tables, with a span around what maps tokens to slots."""

    class WatchedTables(seams.tables.BlockTables):  # type: ignore[misc,name-defined]
        def compute_slot_mappings(self, *args: Any, **kwargs: Any) -> Any:
            with drafts.span("refresh"), drafts.span("slots", len(drafts.events.outputs)):
                return super().compute_slot_mappings(*args, **kwargs)

    return WatchedTables


def _watched_speculator(seams: Seams, drafts: Drafts) -> type[Any]:
    """Return vLLM's speculator with the consumer for a model, and spans around builds and updates."""
    concrete = _concrete(seams.speculator)

    class WatchedSpeculator(concrete):  # type: ignore[misc,valid-type]
        def _build_attn_metadata(self, num_reqs: int, batch_desc: Any, *args: Any, **kwargs: Any) -> Any:
            with drafts.span("refresh"), drafts.span("build", len(drafts.events.outputs)):
                found = super()._build_attn_metadata(num_reqs, batch_desc, *args, **kwargs)
            drafts.built(batch_desc.num_reqs or num_reqs, found)
            return found

        def _update_draft_decode_metadata(self, attn_metadata: Any, num_reqs: int) -> None:
            with drafts.span("refresh"), drafts.span("update", len(drafts.events.outputs)):
                super()._update_draft_decode_metadata(attn_metadata, num_reqs)
            drafts.events.updates += 1

        def _run_model(self, num_tokens: int, attn_metadata: Any, *_: Any, **__: Any) -> Any:
            hidden = drafts.read(num_tokens, attn_metadata)
            return hidden, hidden

        def sample_draft(self, hidden_states: torch.Tensor, *_: Any) -> torch.Tensor:
            return hidden_states[:, 0].to(torch.int64)

    # Its own names have to be found where vLLM's code looks them up.
    WatchedSpeculator.__abstractmethods__ = frozenset()
    return WatchedSpeculator
