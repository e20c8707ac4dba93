"""The vocabulary of cases: closed sets of names that case files, commands and reports share."""

from __future__ import annotations

from enum import StrEnum


class Path(StrEnum):
    """How the draft steps' metadata is refreshed before a replay."""

    INDEPENDENT = "independent"
    """Every step copies the precomputed base fields and derives the rest itself: the ordinary path."""
    SIBLING_COPY = "sibling_copy"
    """Step 0 as in `independent`; the others copy all of step 0's buffers."""
    MULTI_DESTINATION_COPY = "multi_destination_copy"
    """One kernel fills the base fields of steps 0, 1, 2; the others go one by one (S > 3)."""
    SHARED = "shared"
    """Steps 1.. alias step 0's metadata; only step 0 refreshes, eagerly, before the replay."""
    SHARED_IN_GRAPH = "shared_in_graph"
    """As `shared`, with the refresh captured inside the draft graph."""
    RELEASED = "released"
    """Whatever the system under test chooses by itself (packages only)."""
    MULTI_STEP = "multi_step"
    """An ordinary build before each draft step's own replay; lengths advance in the graph."""
    FUSED_MULTI_STEP = "fused_multi_step"
    """One graph of all draft steps, each refreshed inside it by the builders' own update."""
    FUSED_REPAIRED = "fused_repaired"
    """As `fused_multi_step`, with a repaired update."""
    BLOCK_TABLE_REUSE = "block_table_reuse"
    """The metadata of one KV-cache group is built, the others' is made of it and their own block tables."""

    @property
    def in_graph(self) -> bool:
        """Whether the refresh is captured inside the graph."""
        return self in (Path.SHARED_IN_GRAPH, Path.FUSED_MULTI_STEP, Path.FUSED_REPAIRED)

    @property
    def interleaved(self) -> bool:
        """Whether refreshes and replays take turns, a pair for each draft step."""
        return self is Path.MULTI_STEP


class Mode(StrEnum):
    """What a forward pass does; decode is the multi-step draft, the others are single backends."""

    DECODE = "decode"
    TARGET_VERIFY = "target_verify"
    DRAFT_EXTEND = "draft_extend"


class Drill(StrEnum):
    """A disturbance between capture and replay, or an unusual order of rounds."""

    PLAIN = "plain"
    """Rounds one after the other in the main bucket."""
    BUCKET_SWITCH = "bucket_switch"
    """A -> B -> A between the captured buckets."""
    PADDED = "padded"
    """Live batch smaller than the bucket in most rounds."""
    REPEAT = "repeat"
    """The same batch twice in a row: the second refresh may not be skipped."""
    CHURN = "churn"
    """Allocations made and freed between replays."""
    OVERSIZE = "oversize"
    """An eager call with more rows than any bucket, between replays."""
    RECAPTURE = "recapture"
    """The main bucket is captured again in the middle of the run."""
    DELAYED = "delayed"
    """The previous replay still reads while the next round is staged and refreshed."""
    DEAD_COLUMNS = "dead_columns"
    """Dead columns of the request table hold junk, rewritten every round."""


class EngineKind(StrEnum):
    """What captures and replays."""

    TAPE = "tape"
    CUDA_GRAPH = "cuda_graph"


class Kernel(StrEnum):
    """Decode attention kernel, as far as it decides which metadata exists."""

    FA3 = "fa3"
    TRTLLM = "trtllm"
    """Has the multi-CTA KV counter, one per backend."""
    FLASHMLA_KV = "flashmla_kv"
    """Has `flashmla_metadata` and `num_splits`; P = 1 only."""


class Precision(StrEnum):
    """Storage type of the KV cache and the attention inputs."""

    FP32 = "fp32"
    BF16 = "bf16"


class Role(StrEnum):
    """Who writes a metadata field, and when."""

    REFRESHED = "refreshed"
    """Written before every replay."""
    INIT_ONCE = "init_once"
    """Written when the buffers are made, never again; must keep its value."""
    PER_BACKEND = "per_backend"
    """Belongs to one backend and is never shared (the KV counter)."""
    STAGED = "staged"
    """A view of a buffer that the runner fills with the batch, and that the draft steps may advance."""
