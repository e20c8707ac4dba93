"""Installing a recorder in a running server, at the call that it makes before every replay.

That call is `init_forward_metadata_out_graph(forward_batch, in_capture=False)` in SGLang. Anything that has
it and `attn_backends`, or the attributes of a single backend, can be recorded: a module with SGLang's
classes, a class or a backend.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, UsageError
from harness.record.format import IDS
from harness.record.output import Limits
from harness.record.recorder import About, Recorder

if TYPE_CHECKING:
    import torch

METHOD = "init_forward_metadata_out_graph"
CLASSES = ("DeepseekSparseAttnMultiStepBackend", "DeepseekSparseAttnBackend")
PHYSICAL_PAGE = 64
MODES = {"DECODE": "decode", "TARGET_VERIFY": "target_verify", "DRAFT_EXTEND_V2": "draft_extend"}
"""Forward modes under the names of the trace; others keep their own, in lower case."""
FLAGS = (
    "dsa_decode_impl", "dsa_index_topk", "experimental_kpool_metadata_fusion", "num_q_heads",
    "_share_cuda_graph_metadata",
)  # fmt: skip
"""Attributes of a backend that decide what a refresh does."""
RANK_VARIABLES = ("REPLAY_HARNESS_RANK", "RANK", "SGLANG_RANK", "LOCAL_RANK")
_LOG = logging.getLogger(__name__)
_FAILURES = (RuntimeError, OSError, HarnessError, AttributeError, TypeError, ValueError, KeyError, IndexError)
"""What a recorder may run into in a server that is not as expected; none of it may stop the server."""


@dataclass
class Installed:
    """A recorder at work in this process; made by `install`."""

    path: Path
    pages: str
    limits: Limits
    rank: int | None
    world: int | None
    recorder: Recorder | None = None
    """Made at the first call, which comes when the server captures."""
    problem: str = ""
    """Why nothing is recorded any more; empty while all is well."""
    _undo: list[Callable[[], None]] = field(default_factory=list)
    _process: int = 0
    _inside: threading.local = field(default_factory=threading.local)

    def uninstall(self) -> None:
        """Put the methods back and end the trace."""
        while self._undo:
            self._undo.pop()()
        if self.recorder is not None:
            self.recorder.close()

    def wrap(self, owner: Any) -> None:
        """Wrap the method of a class or of one backend."""
        plain = getattr(owner, METHOD)
        bound = not isinstance(owner, type)

        @functools.wraps(plain)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            backend, batch, in_capture = _arguments(owner if bound else None, args, kwargs)
            outer = not getattr(self._inside, "call", False)
            if outer and not self.problem:
                self._note(backend, batch, in_capture)
            self._inside.call = True
            try:
                return plain(*args, **kwargs)
            finally:
                if outer:
                    self._inside.call = False

        own = METHOD in vars(owner)
        setattr(owner, METHOD, recorded)
        self._undo.append(
            functools.partial(setattr, owner, METHOD, plain)
            if own
            else functools.partial(delattr, owner, METHOD)
        )

    def _note(self, backend: Any, batch: Any, in_capture: bool) -> None:
        try:
            if _capturing_now(batch.seq_lens):
                return  # part of a graph: it would be recorded once and copied at each replay
            if self.recorder is None or self._process != os.getpid():  # a fork has no recorder of its own
                self.recorder = self._make(backend)
                self._process = os.getpid()
            several = getattr(backend, "attn_backends", None)
            mode = "DECODE" if several is not None else batch.forward_mode.name
            rows = batch.batch_size
            padding = getattr(batch, "num_padding", None)
            spec = getattr(batch, "spec_info", None)
            self.recorder.note(
                capture=in_capture,
                mode=MODES.get(mode, mode.lower()),
                lengths=_first(batch.seq_lens, rows),
                requests=_first(batch.req_pool_indices, rows),
                steps=len(several) if several is not None else 1,
                live=-1 if padding is None else rows - padding,
                accepted=_accepted(spec) if mode.startswith("DRAFT_EXTEND") else None,
                mirror=getattr(batch, "seq_lens_cpu", None) is not None,
            )
        except _FAILURES as error:
            self.problem = f"{type(error).__name__}: {error}"
            _LOG.warning("recording to %s ends: %s", self.path, self.problem)

    def _make(self, backend: Any) -> Recorder:
        first = backend.attn_backends[0] if hasattr(backend, "attn_backends") else backend
        rank, world = ranks()
        return Recorder(
            self.path,
            first.req_to_token,
            about(backend, first),
            rank=rank if self.rank is None else self.rank,
            world=world if self.world is None else self.world,
            pages=self.pages,
            limits=self.limits,
        )


def install(
    backend_or_module: Any,
    path: str | os.PathLike[str],
    *,
    pages: str = IDS,
    limits: Limits | None = None,
    rank: int | None = None,
    world: int | None = None,
) -> Installed:
    """Record what every capture and refresh from now on is given, to `path` with the rank in its name.

    backend_or_module: a module with SGLang's DSA backend classes, one such class, or one backend. pages:
    `ids`, `digest` or `none`. rank, world: told from torch.distributed or the environment where left out.
    Raises UsageError where there is nothing to record.
    """
    owners = [getattr(backend_or_module, name) for name in CLASSES if hasattr(backend_or_module, name)]
    if not owners and hasattr(backend_or_module, METHOD):
        owners = [backend_or_module]
    if not owners:
        name = getattr(backend_or_module, "__name__", type(backend_or_module).__name__)
        raise UsageError(f"nothing to record in {name}: it has neither {METHOD} nor {' or '.join(CLASSES)}")
    installed = Installed(Path(path), pages, limits or Limits(), rank, world)
    for owner in owners:
        installed.wrap(owner)
    return installed


def ranks() -> tuple[int, int]:
    """Return this process's rank and how many there are, as far as anything says."""
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for name in RANK_VARIABLES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name]), int(os.environ.get("WORLD_SIZE", "1"))
    return 0, 1


def about(backend: Any, first: Any) -> About:
    """Return what the attributes of SGLang's backends say of the system."""
    pool = int(getattr(first, "dsa_index_kpool", 1))
    found = {name: str(value) for name in FLAGS if (value := getattr(first, name, None)) is not None}
    return About(
        system="sglang",
        pool=pool,
        page_tokens=PHYSICAL_PAGE * pool,
        steps=int(getattr(backend, "speculative_num_steps", 0) or 0),
        draft_tokens=int(getattr(first, "speculative_num_draft_tokens", 0) or 0),
        software=versions(),
        flags={name.lstrip("_"): text for name, text in found.items() if "method" not in text},
    )


def versions() -> dict[str, str]:
    """Return the versions of what is recorded, as far as they are installed."""
    found = {}
    for package in ("sglang", "torch", "triton", "replay-harness"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _arguments(backend: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, bool]:
    """Return backend, batch and `in_capture` of a call of the method, bound (`backend` given) or not."""
    rest = list(args)
    owner = rest.pop(0) if backend is None else backend
    batch = rest.pop(0) if rest else kwargs["forward_batch"]
    return owner, batch, bool(rest[0] if rest else kwargs.get("in_capture", False))


def _accepted(spec: Any) -> Any:
    """Return the accepted tokens of a draft-extend batch, int32 `[bucket]`; None where it has none."""
    for name in ("num_accept_tokens", "accept_length"):
        if (value := getattr(spec, name, None)) is not None:
            return value
    return None


def _first(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the first rows; the tensor itself, which costs nothing, where it has no more."""
    return tensor if tensor.shape[0] == rows else tensor[:rows]


def _capturing_now(tensor: torch.Tensor) -> bool:
    if not tensor.is_cuda:  # cheaper than to ask for its device
        return False
    import torch

    return bool(torch.cuda.is_current_stream_capturing())
