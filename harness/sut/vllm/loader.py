"""Loading vLLM: on a GPU with its own kernels, on a CPU in simulated CUDA.

In both cases the platform object is a slim one. In simulated CUDA, vLLM believes in an H200, its Triton
kernels run in Triton's interpreter, and what needs a GPU is a stand-in. All that is in force only inside
`Loaded.calls()`: the rest of the process uses torch as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from harness.case import Geometry
from harness.errors import UsageError
from harness.sut import interpreted
from harness.sut.deepgemm import paged_mqa_schedule
from harness.sut.patches import Patches
from harness.sut.shim import Shim
from harness.sut.simulated import check_interpreter
from harness.sut.slim import Site
from harness.sut.toolkit import toolkit
from harness.sut.vllm import seams
from harness.sut.vllm.hopper import declare_launches
from harness.sut.vllm.names import NAMES
from harness.sut.vllm.platform import SIMULATED, Device, make_platform, real_device
from harness.sut.vllm.site import locate

_MARK = "_replay_harness_loaded"
"""Attribute of the module `vllm` that holds the process's `Loaded`: a process imports vLLM once."""
REAL_PARTS = "draft decode loop, metadata builders, block tables, Triton kernels"
STAND_INS = "DeepGEMM schedule, pinned buffers (what needs a GPU), platform object, Triton's interpreter"


@dataclass(frozen=True)
class Loaded:
    """An imported vLLM."""

    site: Site
    simulated: bool
    """Simulated CUDA on a CPU."""
    seams: seams.Seams
    facts: Mapping[str, str]
    shim: Shim
    interpreter: interpreted.Interpreter = field(default_factory=interpreted.Interpreter)
    """Runs Triton launches, simulated CUDA only."""

    @contextlib.contextmanager
    def calls(
        self, geometry: Geometry, *, beyond: interpreted.Reach | None = None, declared: bool = True
    ) -> Iterator[Patches]:
        """Within the block vLLM may be called; yields the stack that undoes further patches at its end.

        beyond: tensors that kernels reach through tables of addresses. declared: whether launches on a GPU
        are wrapped so that a ledger sees them; timings want them bare.
        """
        with Patches() as patches:
            patches.enter(self.shim.active())
            patches.attribute(self.seams.indexer, "has_deep_gemm", lambda: True)
            if self.simulated:
                self._simulate(patches, geometry, beyond)
            elif declared:
                declare_launches(patches, self.seams, beyond or {})
            yield patches

    def _simulate(self, patches: Patches, geometry: Geometry, beyond: interpreted.Reach | None) -> None:
        found = self.seams
        patches.item(os.environ, "TRITON_INTERPRET", "1")
        patches.attribute(torch.Tensor, "is_cuda", property(lambda tensor: True))  # the builders ask it
        patches.attribute(found.indexer, "num_compute_units", lambda *_: geometry.num_sms)
        patches.attribute(found.deep_gemm, "_get_paged_mqa_logits_metadata_impl", paged_mqa_schedule)
        patches.attribute(found.buffers, "UvaBuffer", HostBuffer)
        patches.attribute(found.buffers, "is_uva_available", lambda: True)
        self.interpreter.intercept(patches, beyond)


class HostBuffer:
    """Stand-in for vLLM's `UvaBuffer`: host memory that a kernel reads in place, without pinning it."""

    def __init__(self, size: Any, dtype: torch.dtype) -> None:
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()

    def uva(self, n: int | None = None) -> torch.Tensor:
        """Return the first `n` elements, all of them for None."""
        return self.cpu if n is None else self.cpu[:n]


def load(version: str | None, device: torch.device) -> Loaded:
    """Import vLLM, once a process; `version` None takes whichever is found first.

    Raises UsageError where there is none, where another release or kind is loaded already, or where it
    does not import.
    """
    present = sys.modules.get("vllm")
    simulated = device.type != "cuda"
    if present is not None and (loaded := vars(present).get(_MARK)) is not None:
        if version not in (None, loaded.site.version) or simulated != loaded.simulated:
            raise UsageError(
                f"vLLM {loaded.site.version} is loaded in this process already: verify "
                f"{version or 'another kind of device'} in a process of its own"
            )
        return loaded  # type: ignore[no-any-return]
    if present is not None:
        raise UsageError(
            "vllm was imported before the harness could choose its platform: start a new process"
        )
    site = locate(version, gpu=not simulated)
    check_interpreter(wanted=simulated)
    loaded = _load(site, SIMULATED if simulated else real_device(), simulated)
    setattr(sys.modules["vllm"], _MARK, loaded)
    return loaded


def _load(site: Site, device: Device, simulated: bool) -> Loaded:
    shim = Shim(NAMES, site.folder, {})
    before = set(sys.modules)
    printed = io.StringIO()
    try:
        with (
            Patches() as patches,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            warnings.catch_warnings(),
            shim.active(),
        ):
            warnings.simplefilter("ignore")  # those of other people's modules
            _environment(patches, site, simulated)
            shim.prepare()
            platforms = importlib.import_module("vllm.platforms")
            interface = importlib.import_module("vllm.platforms.interface")
            vars(platforms)["_current_platform"] = make_platform(interface, device)
            found = seams.find(site.version)
            if not simulated:
                _real_schedule(found)
    except Exception as error:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "vllm":
                del sys.modules[name]
        if isinstance(error, UsageError):
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UsageError(f"vLLM {site.version} does not import: {reason}") from error
    return Loaded(site, simulated, found, _facts(site, found, shim, device, simulated), shim)


def _environment(patches: Patches, site: Site, simulated: bool) -> None:
    """Set what vLLM and Triton read at import, until the patches are undone."""
    patches.item(os.environ, "VLLM_CONFIGURE_LOGGING", "0")
    if simulated:
        patches.item(os.environ, "TRITON_INTERPRET", "1")
        patches.item(os.environ, "CUDA_VISIBLE_DEVICES", "")  # else vLLM counts Triton's drivers and gives up
    sys.path.append(str(site.folder))  # for the release's own version, and packages beside it
    if simulated:
        patches.callback(lambda: sys.path.remove(str(site.folder)))


def _real_schedule(found: seams.Seams) -> None:
    """Give vLLM's wrapper DeepGEMM's schedule, which it would look for among its vendored packages."""
    os.environ["CUDA_HOME"] = toolkit()
    sys.modules.pop("deep_gemm", None)
    deep_gemm = importlib.import_module("deep_gemm")
    vars(found.deep_gemm)["_get_paged_mqa_logits_metadata_impl"] = deep_gemm.get_paged_mqa_logits_metadata


def _facts(site: Site, found: seams.Seams, shim: Shim, device: Device, simulated: bool) -> dict[str, str]:
    import triton

    file = Path(str(found.indexer.__file__))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    missing = f"packages never called: {', '.join(shim.names())}"
    return {
        "vllm": site.version,
        "vllm.site": "slim site" if site.slim else "installed package",
        "vllm.file": f"{file.relative_to(site.folder)} sha256 {digest}",
        "vllm.real": REAL_PARTS,
        "vllm.stand_ins": f"{STAND_INS if simulated else 'platform object'}; {missing}",
        "vllm.device": f"{device.name}, simulated" if simulated else device.name,
        "triton": triton.__version__,
    }
