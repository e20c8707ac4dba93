"""Changes of vLLM that no check may notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness import oracle
from harness.faults.catalogue import Harmless
from harness.faults.mechanisms.combined import Unchanged
from harness.faults.mechanisms.life import AtCapture
from harness.faults.mechanisms.rounds import happening
from harness.faults.scene import Scene
from harness.faults.vllm import seam
from harness.faults.vllm.geometry import P1, P4, at
from harness.faults.vllm.seam import DECODE, AfterStage, AtSeam, opened
from harness.rounds import Eager
from harness.types import Drill, Path


def last_group_first(
    scene: Scene, plain: Callable[..., Any], speculator: Any, metadata: Any, rows: int
) -> None:
    """Groups are updated in the reverse order."""
    for groups in reversed(speculator.attn_groups):
        for group in reversed(groups):
            group.update_draft_decode_metadata(metadata)
    scene.hit()


def between_allocations(scene: Scene, plain: Callable[..., Any], *args: Any) -> None:
    """Temporaries of many sizes are made and dropped around the updates."""
    for size in (1 << power for power in range(4, 14)):
        torch.full((size,), -7, dtype=torch.int32, device=scene.engine.device)
    plain(*args)
    scene.hit()


def by_the_formula(
    scene: Scene, plain: Callable[..., Any], lengths: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """The schedule comes from another algorithm."""
    scene.hit()
    found = oracle.schedule(lengths.reshape(-1).cpu().numpy(), scene.case.geometry.num_sms)
    return torch.from_numpy(found).to(torch.int32).to(lengths.device)


def by_torch(
    scene: Scene,
    plain: Callable[..., Any],
    tables: Any,
    mapping: torch.Tensor,
    starts: torch.Tensor,
    *rest: Any,
) -> Any:
    """Slots are looked up by torch operations, and stored at once."""
    positions, padded = rest
    size, rows = tables.block_sizes[0], len(mapping)
    table = tables.block_tables[0].gpu[mapping.clamp(min=0)]
    block = table.gather(1, (positions // size)[:, None])[:, 0].to(torch.int64)
    slots = torch.full_like(tables.slot_mappings[0], -1)
    slots[:rows] = torch.where(mapping < 0, -1, block * size + positions % size)
    tables.slot_mappings[0].copy_(slots)
    scene.hit()
    return tables.slot_mappings[:, :padded]


def by_the_kernel(scene: Scene, plain: Callable[..., Any], builder: Any, metadata: Any) -> None:
    """The tail is mapped again by the kernel of an ordinary build."""
    drafts, rows = opened(scene).drafts, metadata.num_decode_tokens
    opened(scene).seams.indexer.compute_kpool_tail_slot_mapping(
        metadata.slot_mapping, builder.current_block_table, drafts.buffers.query_start_loc[: rows + 1],
        metadata.positions, rows, rows, builder.kv_cache_spec.block_size, out=metadata.slot_mapping,
    )  # fmt: skip
    scene.hit()


def junk_positions(scene: Scene) -> None:
    """Padded rows have positions of their own."""
    opened(scene).drafts.buffers.positions[scene.round.live : scene.round.bucket] = 77


def junk_columns(scene: Scene) -> None:
    """Columns past a request's tokens name no block."""
    drafts = opened(scene).drafts
    table, tokens = drafts.tables.input_block_tables[0], 64 * scene.case.model.index_kpool
    for row in range(scene.round.live):
        table[row, -(-(int(scene.round.lengths[row]) + 8) // tokens) :] = 1 << 30


def a_note(scene: Scene, bucket: int) -> None:
    """A host attribute beside the leaves, the same from capture to the last replay."""
    scene.metadata(0, bucket)["indexer"].note = f"made for {bucket}"


CHANGES = (
    Harmless(
        id="W1",
        text="Nothing is changed at all, on every path.",
        cases=(
            at(),
            at(model=P1, steps=5),
            at(Path.FUSED_MULTI_STEP, P1),
            at(Path.MULTI_STEP),
            at(Path.INDEPENDENT, steps=2),
            at(Path.BLOCK_TABLE_REUSE, steps=2),
        ),
        injection=Unchanged(),
    ),
    Harmless(
        id="W2",
        text="KV-cache groups are updated in the reverse order.",
        cases=(at(), at(model=P1)),
        injection=AtSeam(seam.ALL_UPDATES, last_group_first, "another order of groups"),
    ),
    Harmless(
        id="W3",
        text="Temporaries of many sizes are made around the updates.",
        cases=(at(steps=5),),
        injection=AtSeam(seam.ALL_UPDATES, between_allocations, "extra allocations"),
    ),
    Harmless(
        id="W4",
        text="The schedule comes from another algorithm with equal results.",
        cases=(at(Path.MULTI_STEP, P1, steps=5),),
        injection=AtSeam(seam.SCHEDULE, by_the_formula, "equal values, made otherwise", during=(DECODE,)),
    ),
    Harmless(
        id="W5",
        text="Tokens are mapped to slots by torch operations.",
        cases=(at(model=P1, steps=5),),
        injection=AtSeam(seam.SLOTS, by_torch, "equal values, made otherwise"),
    ),
    Harmless(
        id="W6",
        text="The tail is mapped again by the kernel of an ordinary build.",
        cases=(at(bucket=4),),
        injection=AtSeam(seam.TAIL_UPDATE, by_the_kernel, "equal values, made otherwise"),
    ),
    Harmless(
        id="W7",
        text="Positions of padded rows hold junk.",
        cases=(at(bucket=4, drill=Drill.PADDED), at(Path.MULTI_STEP, P4, bucket=4, drill=Drill.PADDED)),
        injection=AfterStage(junk_positions, "junk where nothing is defined"),
    ),
    Harmless(
        id="W8",
        text="Columns of block tables past a request's tokens name no block.",
        cases=(at(model=P1), at(Path.MULTI_STEP, P1, steps=5)),
        injection=AfterStage(junk_columns, "junk where nothing is defined"),
    ),
    Harmless(
        id="W9",
        text="The metadata object carries a note beside its leaves.",
        cases=(at(),),
        injection=AtCapture(a_note, "extra attribute"),
    ),
    Harmless(
        id="W10",
        text="Eager batches come between replays.",
        cases=(at(), at(Path.BLOCK_TABLE_REUSE, steps=2)),
        injection=Unchanged("eager calls"),
        rounds=happening(Eager(7), 2, 5, 6),
    ),
)
