"""Faults of what the graph of all draft steps records: updates, slot mappings, the step from one draft to the
next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.scene import Scene
from harness.faults.vllm import seam
from harness.faults.vllm.geometry import P1, at
from harness.faults.vllm.seam import AfterStage, AtSeam, changed, first_step_only, left_out, opened, step_of
from harness.types import Drill

STALE, STEP, FORMULA = "stale field", "stale step", "wrong formula"


def _holder(metadata: Any, name: str) -> tuple[Any, str]:
    *path, last = name.split(".")
    for part in path:
        metadata = getattr(metadata, part)
    return metadata, last


def elsewhere(name: str) -> Callable[..., Any]:
    """Return an around for updates: a leaf is written into a buffer that no graph reads."""

    def around(scene: Scene, plain: Callable[..., Any], builder: Any, metadata: Any) -> None:
        owner, last = _holder(metadata, name)
        kept = getattr(owner, last)
        setattr(owner, last, kept.clone())
        plain(builder, metadata)
        setattr(owner, last, kept)
        scene.hit()

    return around


def reading(name: str, other: Callable[[Scene, torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return an around for updates that read another tensor in the place of a leaf."""

    def around(scene: Scene, plain: Callable[..., Any], builder: Any, metadata: Any) -> None:
        kept = getattr(metadata, name)
        setattr(metadata, name, other(scene, kept))
        plain(builder, metadata)
        setattr(metadata, name, kept)
        scene.hit()

    return around


def rebound(scene: Scene, plain: Callable[..., Any], builder: Any, metadata: Any) -> None:
    """The schedule is assigned, not copied."""
    plain(builder, metadata)
    metadata.decode.schedule_metadata = metadata.decode.schedule_metadata.clone()
    scene.hit()


def released(scene: Scene, plain: Callable[..., Any], builder: Any, metadata: Any) -> None:
    """The block is taken from the slot mapping that was written last."""
    opened(scene).seams.indexer.KpoolTailMetadataBuilder.update_draft_decode_metadata(builder, metadata)
    scene.hit()


def schedule_once(scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.Tensor:
    """The first draft step's schedule serves all."""
    if step_of(scene) == 0:
        scene.memory["schedule"] = plain(*args, **kwargs)
    else:
        scene.hit()
    first: torch.Tensor = scene.memory["schedule"]
    return first.clone()


def advancing(act: Callable[[Any, torch.Tensor, torch.Tensor, int], None]) -> Callable[..., Any]:
    """Return an around for the kernel that moves on: `act(buffers, lengths before, positions before,
    rows)`."""

    def around(scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        buffers, rows = args[5], args[7]
        lengths, positions = buffers.seq_lens.clone(), buffers.positions.clone()
        plain(*args, **kwargs)
        if step_of(scene) < scene.case.backends:
            act(buffers, lengths, positions, rows)
            scene.hit()

    return around


def _positions_stay(buffers: Any, lengths: torch.Tensor, positions: torch.Tensor, rows: int) -> None:
    buffers.positions.copy_(positions)


def _lengths_stay(buffers: Any, lengths: torch.Tensor, positions: torch.Tensor, rows: int) -> None:
    buffers.seq_lens.copy_(lengths)


def _two_tokens(buffers: Any, lengths: torch.Tensor, positions: torch.Tensor, rows: int) -> None:
    buffers.seq_lens[:rows] += 1
    buffers.positions[:rows] += 1


def _no_limit(buffers: Any, lengths: torch.Tensor, positions: torch.Tensor, rows: int) -> None:
    buffers.seq_lens[:rows].copy_(lengths[:rows] + 1)


def narrow(scene: Scene, plain: Callable[..., Any], tables: Any, *args: Any, **kwargs: Any) -> Any:
    """Slots go through a float32, which does not hold them all."""
    found = plain(tables, *args, **kwargs)
    tables.slot_mappings.copy_(tables.slot_mappings.to(torch.float32).to(torch.int64))
    scene.hit()
    return found


def written_by_the_forward(scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """The forward writes what it has read, with the same value."""
    plain(*args, **kwargs)
    opened(scene).drafts.metadata[scene.round.bucket]["indexer"].decode.decode_lens.add_(0)
    scene.hit()


def frozen_copy(scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The metadata of the capture has a copy of the block table, not the runner's."""
    found = plain(*args, **kwargs)
    found.block_table = found.block_table.clone()
    scene.hit()
    return found


def built_besides(scene: Scene) -> None:
    """A batch is built before its replay, though the graph refreshes."""
    target = opened(scene)
    if target.drafts.metadata:
        target.rebuild()


def _tail(formula: Callable[[Any, torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    return changed("slot_mapping", lambda scene, builder, slots: formula(builder, slots))


def _of_the_first_group(scene: Scene, builder: Any, slots: torch.Tensor) -> torch.Tensor:
    block = opened(scene).drafts.tables.input_block_tables[0][: len(slots), 0].to(torch.int64)
    ring = builder.kv_cache_spec.block_size
    return torch.where(slots < 0, slots, block * ring + slots % ring)


def _stored(scene: Scene, builder: Any, slots: torch.Tensor) -> torch.Tensor:
    positions = opened(scene).drafts.buffers.positions[: len(slots)]
    return torch.where(slots < 0, positions % builder.kv_cache_spec.block_size, slots)


def _rounded_up(scene: Scene, builder: Any, pools: torch.Tensor) -> torch.Tensor:
    lengths = opened(scene).drafts.buffers.seq_lens[: len(pools)]
    pool = scene.case.model.index_kpool
    rounded: torch.Tensor = (lengths + pool - 1) // pool
    return rounded.view(pools.shape)


FAULTS = (
    Fault(
        id="V1",
        letter="A",
        text="The update leaves out the schedule.",
        case=at(),
        injection=AtSeam(seam.INDEXER_UPDATE, elsewhere("decode.schedule_metadata"), STALE),
        expected="freshness",
    ),
    Fault(
        id="V2",
        letter="A",
        text="The update leaves out the context lengths.",
        case=at(model=P1),
        injection=AtSeam(seam.INDEXER_UPDATE, elsewhere("decode.seq_lens"), STALE),
        expected="freshness",
    ),
    Fault(
        id="V3",
        letter="A",
        text="The update leaves out the slots of pooled keys.",
        case=at(steps=5),
        injection=AtSeam(seam.INDEXER_UPDATE, elsewhere("slot_mapping"), STALE),
        expected="freshness",
    ),
    Fault(
        id="V4",
        letter="A",
        text="The update leaves the expanded block table as captured.",
        case=at(model=P1, steps=5),
        injection=AtSeam(seam.INDEXER_UPDATE, elsewhere("decode.block_table"), STALE),
        expected="freshness",
    ),
    Fault(
        id="V5",
        letter="A",
        text="The main attention's update leaves out the request of each token.",
        case=at(),
        injection=AtSeam(seam.MAIN_UPDATE, elsewhere("req_id_per_token"), STALE),
        expected="freshness",
    ),
    Fault(
        id="V6",
        letter="A",
        text="The tail's slots are not updated.",
        case=at(),
        injection=AtSeam(seam.TAIL_UPDATE, left_out, STALE),
        expected="freshness",
    ),
    Fault(
        id="V7",
        letter="H",
        text="Updates run before the first draft step alone.",
        case=at(steps=5),
        injection=AtSeam(seam.ALL_UPDATES, first_step_only, STEP),
        expected="freshness",
    ),
    Fault(
        id="V8",
        letter="H",
        text="Tokens are mapped to slots before the first draft step alone.",
        case=at(model=P1, steps=5),
        injection=AtSeam(seam.SLOTS, first_step_only, STEP),
        expected="freshness",
    ),
    Fault(
        id="V9",
        letter="H",
        text="All draft steps have the first one's schedule.",
        case=at(model=P1, steps=5),
        injection=AtSeam(seam.SCHEDULE, schedule_once, STEP),
        expected="freshness",
    ),
    Fault(
        id="V10",
        letter="C",
        text="The update reads lengths that were made at capture.",
        case=at(model=P1),
        injection=AtSeam(
            seam.INDEXER_UPDATE,
            reading("seq_lens", lambda scene, lengths: torch.ones_like(lengths)),
            "frozen input",
        ),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="V11",
        letter="H",
        text="Positions stay while lengths advance.",
        case=at(steps=5),
        injection=AtSeam(seam.ADVANCE, advancing(_positions_stay), STEP),
        expected="freshness",
    ),
    Fault(
        id="V12",
        letter="H",
        text="Lengths stay while positions advance.",
        case=at(model=P1),
        injection=AtSeam(seam.ADVANCE, advancing(_lengths_stay), STEP),
        expected="freshness",
    ),
    Fault(
        id="V13",
        letter="H",
        text="Every draft step advances by two tokens.",
        case=at(steps=5),
        injection=AtSeam(seam.ADVANCE, advancing(_two_tokens), STEP),
        expected="equivalence",
    ),
    Fault(
        id="V14",
        letter="D",
        text="Lengths advance past the longest that the model takes.",
        case=at(steps=5),
        injection=AtSeam(seam.ADVANCE, advancing(_no_limit), FORMULA),
        expected="equivalence",
    ),
    Fault(
        id="V15",
        letter="G",
        text="The tail's ring is taken to be as long as a pool.",
        case=at(steps=5),
        injection=AtSeam(
            seam.TAIL_UPDATE,
            changed(
                "slot_mapping", lambda scene, builder, slots: torch.where(slots < 0, slots, slots // 4 * 4)
            ),
            FORMULA,
        ),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="V16",
        letter="F",
        text="Padded rows store tail keys in the null block.",
        case=at(bucket=4, drill=Drill.PADDED),
        injection=AtSeam(seam.TAIL_UPDATE, changed("slot_mapping", _stored), "padded rows"),
        expected="equivalence",
    ),
    Fault(
        id="V17",
        letter="H",
        text="The tail's blocks come from the other KV-cache group's table.",
        case=at(),
        injection=AtSeam(seam.TAIL_UPDATE, changed("slot_mapping", _of_the_first_group), "wrong group"),
        expected="equivalence",
    ),
    Fault(
        id="V18",
        letter="A",
        text="The tail's block is recovered from the slots that were written last.",
        case=at(),
        injection=AtSeam(seam.TAIL_UPDATE, released, "derived from its own result"),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="V19",
        letter="E",
        text="The tail's slots go through 16 bits.",
        case=at(),
        injection=AtSeam(
            seam.TAIL_UPDATE,
            _tail(lambda builder, slots: slots.to(torch.int16).to(torch.int64)),
            "narrow integer",
        ),
        expected="equivalence",
    ),
    Fault(
        id="V20",
        letter="E",
        text="Slots go through a float32.",
        case=at(),
        injection=AtSeam(seam.SLOTS, narrow, "narrow float"),
        expected="equivalence",
    ),
    Fault(
        id="V21",
        letter="H",
        text="Rows of the expanded block table are those of other requests.",
        case=at(model=P1, steps=5),
        injection=AtSeam(
            seam.INDEXER_UPDATE, reading("block_table", lambda scene, table: table.roll(1, 0)), "wrong row"
        ),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="V22",
        letter="G",
        text="The context does not hold the token that is drafted.",
        case=at(model=P1),
        injection=AtSeam(
            seam.INDEXER_UPDATE, changed("decode.seq_lens", lambda scene, builder, lens: lens - 1), FORMULA
        ),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="V23",
        letter="G",
        text="Pooled lengths count a pool that is not full.",
        case=at(steps=5),
        injection=AtSeam(seam.INDEXER_UPDATE, changed("decode.seq_lens", _rounded_up), FORMULA),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="V24",
        letter="B",
        text="The update assigns a schedule instead of copying it.",
        case=at(),
        injection=AtSeam(seam.INDEXER_UPDATE, rebound, "rebound leaf"),
        expected="readonly",
        also=("address",),
    ),
    Fault(
        id="V25",
        letter="B",
        text="The captured metadata has a copy of the block table.",
        case=at(model=P1),
        injection=AtSeam(seam.INDEXER_BUILD, frozen_copy, "copy for a view", during=(seam.CAPTURE,)),
        expected="aliasing",
    ),
    Fault(
        id="V26",
        letter="I",
        text="Updates run twice before each draft step.",
        case=at(),
        injection=AtSeam(seam.ALL_UPDATES, seam.twice, "duplicated refresh"),
        expected="refresh",
    ),
    Fault(
        id="V27",
        letter="H",
        text="The forward of a draft step writes into the metadata.",
        case=at(),
        injection=AtSeam(seam.ADVANCE, written_by_the_forward, "written by the forward"),
        expected="readonly",
    ),
    Fault(
        id="V28",
        letter="J",
        text="A batch is built before its replay although the graph refreshes.",
        case=at(),
        injection=AfterStage(built_besides, "refreshed twice"),
        expected="routing",
        also=("refresh",),
    ),
)
"""Faults in the graph of all draft steps, on the repaired update."""
