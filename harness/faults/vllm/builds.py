"""Faults of ordinary builds, one before each draft step, and of metadata reused across KV-cache groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from harness.faults.catalogue import Fault
from harness.faults.scene import Scene
from harness.faults.vllm import seam
from harness.faults.vllm.geometry import P1, at
from harness.faults.vllm.seam import DECODE, EAGER, REFRESH, AtSeam, opened
from harness.types import Drill, Path

BUILT = (DECODE,)
REUSED = (REFRESH,)


def once_a_bucket(scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Metadata is built once for each batch size."""
    bucket = scene.round.bucket
    if ("built", bucket) in scene.memory:
        scene.hit()
        return scene.memory["built", bucket]
    return scene.recall(("built", bucket), lambda: plain(*args, **kwargs))


def once_a_round(scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Metadata is built before the first draft step alone."""
    bucket = scene.round.bucket
    if step_of_decode(scene):
        scene.hit()
        return scene.memory["built", bucket]
    scene.memory["built", bucket] = found = plain(*args, **kwargs)
    return found


def step_of_decode(scene: Scene) -> int:
    """Return the draft step whose metadata is built: one build a step."""
    return opened(scene).drafts.events.builds


def by_all_segments(
    scene: Scene, plain: Callable[..., Any], lengths: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """The schedule is kept while the batch has as many segments."""
    place, now = ("schedule", lengths.shape), int((-(-lengths // 256)).sum())
    fresh = plain(lengths, *args, **kwargs)
    before, kept = scene.memory.get(place, (None, fresh))
    if before != now:
        scene.memory[place] = now, fresh.clone()
        return fresh
    scene.hit(not torch.equal(kept, fresh))
    return kept.clone()


def after(act: Callable[[Scene, Any, Any], None]) -> Callable[..., Any]:
    """Return an around for builds: `act(scene, builder, metadata)` follows each."""

    def around(scene: Scene, plain: Callable[..., Any], builder: Any, *args: Any, **kwargs: Any) -> Any:
        found = plain(builder, *args, **kwargs)
        act(scene, builder, found)
        scene.hit()
        return found

    return around


def _copied_slots(scene: Scene, builder: Any, metadata: Any) -> None:
    metadata.slot_mapping = metadata.slot_mapping.clone()


def _fewer_decodes(scene: Scene, builder: Any, metadata: Any) -> None:
    metadata.num_decodes -= 1


def _never_padded(scene: Scene, builder: Any, metadata: Any) -> None:
    metadata.decode.requires_padding = not metadata.decode.requires_padding


def _old_lengths(scene: Scene, builder: Any, metadata: Any) -> None:
    metadata.decode.seq_lens[scene.round.live :] = 5


def _grown(scene: Scene, builder: Any, metadata: Any) -> None:
    builder.decode_seq_lens_buffer = torch.zeros_like(builder.decode_seq_lens_buffer)


def positions_of_before(
    scene: Scene,
    plain: Callable[..., Any],
    tables: Any,
    mapping: Any,
    starts: Any,
    positions: Any,
    *args: Any,
) -> Any:
    """Slots are those of the tokens before."""
    scene.hit()
    return plain(tables, mapping, starts, (positions - 1).clamp(min=0), *args)


def rows_mixed_up(scene: Scene, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Every row has another request's ring."""
    scene.hit()
    slots, table, *rest = args
    return plain(slots, table.roll(1, 0), *rest, **kwargs)


def as_it_is(scene: Scene, plain: Callable[..., Any], builder: Any, metadata: Any, *args: Any) -> Any:
    """The other group's metadata is taken as it is."""
    scene.hit()
    return metadata


def into_the_first(scene: Scene, plain: Callable[..., Any], builder: Any, *args: Any) -> Any:
    """The second group's metadata is written into the first builder's buffers."""
    scene.hit()
    return plain(opened(scene).drafts.groups.builders[0], *args)


def with_old_lengths(scene: Scene, plain: Callable[..., Any], builder: Any, metadata: Any, *args: Any) -> Any:
    """The second group's blocks are looked up by the lengths of a new request."""
    scene.hit()
    old = replace(metadata, seq_lens=torch.ones_like(metadata.seq_lens))
    return replace(plain(builder, old, *args), seq_lens=metadata.seq_lens)


def in_a_new_tensor(scene: Scene, plain: Callable[..., Any], *args: Any) -> Any:
    """The second group's state indices are not in a persistent buffer."""
    scene.hit()
    found = plain(*args)
    return replace(found, state_indices_tensor_d=found.state_indices_tensor_d.clone())


def by_the_first_table(
    scene: Scene, plain: Callable[..., Any], builder: Any, metadata: Any, table: Any, slots: Any
) -> Any:
    """The second group's state indices come from the first group's table."""
    scene.hit()
    return plain(builder, metadata, opened(scene).drafts.tables.input_block_tables[0][: len(table)], slots)


def _not_reused(scene: Scene, builder: Any, metadata: Any) -> None:
    for one in opened(scene).drafts.groups.builders:
        one.supports_update_block_table = False


FAULTS = (
    Fault(
        id="V31",
        letter="A",
        text="Metadata is built once for each batch size.",
        case=at(Path.MULTI_STEP, P1),
        injection=AtSeam(seam.ALL_BUILDS, once_a_bucket, "stale field", during=BUILT),
        expected="freshness",
    ),
    Fault(
        id="V32",
        letter="H",
        text="Metadata is built before the first draft step alone.",
        case=at(Path.MULTI_STEP, steps=5),
        injection=AtSeam(seam.ALL_BUILDS, once_a_round, "stale step", during=BUILT),
        expected="freshness",
    ),
    Fault(
        id="V33",
        letter="A",
        text="The schedule is kept while the batch has as many segments.",
        case=at(Path.MULTI_STEP, P1, steps=5, bucket=4),
        injection=AtSeam(seam.SCHEDULE, by_all_segments, "remembered under a key", during=BUILT),
        expected="freshness",
        also=("equivalence",),
    ),
    Fault(
        id="V34",
        letter="B",
        text="A build returns slots in a tensor of its own.",
        case=at(Path.MULTI_STEP),
        injection=AtSeam(seam.TAIL_BUILD, after(_copied_slots), "new tensor", during=BUILT),
        expected="address",
    ),
    Fault(
        id="V35",
        letter="C",
        text="A build counts a request too few.",
        case=at(Path.MULTI_STEP),
        injection=AtSeam(seam.INDEXER_BUILD, after(_fewer_decodes), "host value", during=BUILT),
        expected="address",
    ),
    Fault(
        id="V36",
        letter="C",
        text="A build says the contrary of whether rows have to be packed.",
        case=at(Path.MULTI_STEP, bucket=4, drill=Drill.PADDED),
        injection=AtSeam(seam.INDEXER_BUILD, after(_never_padded), "host value", during=BUILT),
        expected="address",
    ),
    Fault(
        id="V37",
        letter="F",
        text="Padded rows keep the lengths of a larger batch.",
        case=at(Path.MULTI_STEP, P1, steps=5, bucket=4, drill=Drill.PADDED),
        injection=AtSeam(seam.INDEXER_BUILD, after(_old_lengths), "padded rows", during=BUILT),
        expected="equivalence",
    ),
    Fault(
        id="V38",
        letter="H",
        text="Slots are those of the tokens before.",
        case=at(Path.MULTI_STEP, P1),
        injection=AtSeam(seam.SLOTS, positions_of_before, "stale step", during=BUILT),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="V39",
        letter="H",
        text="Every row's tail key goes to another request's ring.",
        case=at(Path.MULTI_STEP, bucket=4),
        injection=AtSeam(seam.TAIL_MAP, rows_mixed_up, "wrong row", during=BUILT),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="V40",
        letter="B",
        text="An eager batch makes a builder take another buffer.",
        case=at(Path.MULTI_STEP, drill=Drill.OVERSIZE),
        injection=AtSeam(seam.INDEXER_BUILD, after(_grown), "buffer taken anew", during=(EAGER,)),
        expected="address",
    ),
    Fault(
        id="V41",
        letter="H",
        text="The second group takes the first one's metadata as it is.",
        case=at(Path.BLOCK_TABLE_REUSE, steps=2),
        injection=AtSeam(seam.REUSE, as_it_is, "not refreshed", during=REUSED),
        expected="address",
        also=("aliasing", "refresh"),
    ),
    Fault(
        id="V42",
        letter="H",
        text="The second group's metadata is written into the first one's buffers.",
        case=at(Path.BLOCK_TABLE_REUSE, steps=2),
        injection=AtSeam(seam.REUSE, into_the_first, "wrong buffer", during=REUSED),
        expected="equivalence",
        also=("address", "aliasing"),
    ),
    Fault(
        id="V43",
        letter="A",
        text="The second group's blocks are looked up by the lengths of a new request.",
        case=at(Path.BLOCK_TABLE_REUSE, steps=2, bucket=4),
        injection=AtSeam(seam.REUSE, with_old_lengths, "stale input", during=REUSED),
        expected="equivalence",
        also=("freshness",),
    ),
    Fault(
        id="V44",
        letter="B",
        text="Reused metadata lies in a tensor of its own.",
        case=at(Path.BLOCK_TABLE_REUSE, steps=2),
        injection=AtSeam(seam.REUSE, in_a_new_tensor, "new tensor", during=REUSED),
        expected="address",
    ),
    Fault(
        id="V45",
        letter="J",
        text="Metadata is never reused, though the values are right.",
        case=at(Path.BLOCK_TABLE_REUSE, P1, steps=2),
        injection=AtSeam(seam.STATE_BUILD, after(_not_reused), "wrong gate", during=REUSED),
        expected="routing",
        also=("refresh",),
    ),
    Fault(
        id="V46",
        letter="H",
        text="The second group's states come from the first group's block table.",
        case=at(Path.BLOCK_TABLE_REUSE, P1, steps=2),
        injection=AtSeam(seam.REUSE, by_the_first_table, "wrong group", during=REUSED),
        expected="equivalence",
    ),
)
"""Faults outside the graph."""
