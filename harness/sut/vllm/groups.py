"""A drafter's KV-cache groups, their block tables and their released metadata builders."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from harness.case import PHYSICAL_PAGE, Case
from harness.sut.vllm.config import make_config
from harness.sut.vllm.repaired import repaired_tail_builder
from harness.sut.vllm.seams import Seams
from harness.sut.vllm.specification import STATE_GROUPS, STATE_PATHS, ring_slots
from harness.types import Path

INDEXER_HEAD, TAIL_HEAD = 132, 128
"""Bytes of an index key with its scale; elements of a raw key."""


@dataclass(frozen=True)
class Groups:
    """What the runner has of a model's attention layers."""

    config: Any
    attention: list[list[Any]]
    """By KV-cache group: `AttentionGroup`s, each with one builder and one layer named as in the metadata."""
    cache: Any
    """`KVCacheConfig`."""
    block_sizes: list[int]
    """Tokens of a block, by KV-cache group."""
    widths: list[int]
    """Columns of the block table."""
    mapped: list[bool]
    """Whether the runner maps tokens to slots of the group."""

    @property
    def builders(self) -> list[Any]:
        """Return the builders in the order in which they are called."""
        return [group.metadata_builders[0] for groups in self.attention for group in groups]


def make_groups(case: Case, seams: Seams, largest: int, device: torch.device) -> Groups:
    """Make the groups of a case; call it where vLLM may be called.

    A drafter: main attention and sparse indexer in one KV-cache group, and with P > 1 the tail ring of raw
    keys in another. The reuse path: two groups of state-space layers of equal specification.
    """
    layers = {"main": SimpleNamespace(prefill_backend=None)}
    states = case.path in STATE_PATHS
    drafts = 0 if states else case.variant.steps
    config = make_config(case, seams, largest, drafts=drafts, layers=layers)
    tokens, specs = PHYSICAL_PAGE * case.model.index_kpool, seams.specs
    columns = case.geometry.width // tokens
    if states:
        spec = specs.MambaSpec(
            block_size=tokens, shapes=((2, 2),), dtypes=(torch.float32,), mamba_cache_mode="align"
        )
        names = [f"state{group}" for group in range(STATE_GROUPS)]
        made = [
            [_group(seams, seams.state, name, spec, index, config, device)]
            for index, name in enumerate(names)
        ]
        return _groups(config, made, [tokens] * len(made), [columns] * len(made), [True] * len(made))
    pooled = {"tokens_per_state": case.model.index_kpool} if case.model.index_kpool > 1 else {}
    index_spec = specs.MLAAttentionSpec(
        block_size=tokens, num_kv_heads=1, head_size=INDEXER_HEAD, dtype=torch.uint8, **pooled
    )
    main_spec = specs.MLAAttentionSpec(block_size=tokens, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    first = [
        _group(
            seams, seams.indexer.DeepseekV32IndexerBackend, "indexer", index_spec, 0, config, device,
            block_table_width=columns,
        ),
        _group(seams, seams.main, "main", main_spec, 0, config, device),
    ]  # fmt: skip
    if case.model.index_kpool == 1:
        return _groups(config, [first], [tokens], [columns], [True])
    ring = ring_slots(case.model.index_kpool, case.variant.steps)
    ring_spec = specs.CircularBufferSpec(
        block_size=ring, num_kv_heads=2, head_size=TAIL_HEAD, head_size_v=0, dtype=torch.bfloat16
    )
    backend = seams.indexer.KpoolTailBackend
    tail = _group(seams, backend, "tail", ring_spec, 1, config, device)
    if case.path is Path.FUSED_REPAIRED:
        tail.metadata_builders = [repaired_tail_builder(seams)(ring_spec, ["tail"], config, device)]
    mapped = [index_spec.uses_slot_mapping, ring_spec.uses_slot_mapping]
    return _groups(config, [first, [tail]], [tokens, ring], [columns, 1], mapped)


def _group(
    seams: Seams,
    backend: Any,
    name: str,
    spec: Any,
    index: int,
    config: Any,
    device: torch.device,
    **more: Any,
) -> Any:
    group = seams.groups.AttentionGroup(backend, [name], spec, index)
    group.metadata_builders = [backend.get_builder_cls()(spec, [name], config, device, **more)]
    return group


def _groups(
    config: Any, attention: list[list[Any]], sizes: list[int], widths: list[int], mapped: list[bool]
) -> Groups:
    kinds = [
        SimpleNamespace(
            layer_names=[name for group in groups for name in group.layer_names],
            kv_cache_spec=groups[0].kv_cache_spec,
        )
        for groups in attention
    ]
    return Groups(config, attention, SimpleNamespace(kv_cache_groups=kinds), sizes, widths, mapped)
