"""Loading SGLang: on a GPU as it is, on a CPU in simulated CUDA.

In simulated CUDA, SGLang believes in an H200 while it is imported (its platform probes are cached then),
its Triton kernels run in Triton's interpreter, and what needs a GPU is a stand-in (`standins`). All that
is in force only inside `Loaded.calls()`: the rest of the process uses torch as it is.
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
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from harness.case import Geometry
from harness.errors import UsageError
from harness.sut import interpreted
from harness.sut.deepgemm import paged_mqa_schedule
from harness.sut.patches import Patches
from harness.sut.sglang import cuda, seams, standins
from harness.sut.sglang.names import NAMES
from harness.sut.sglang.site import Site, locate
from harness.sut.shim import PlaceholderModule, Shim
from harness.sut.simulated import check_interpreter
from harness.sut.toolkit import toolkit

_MARK = "_replay_harness_loaded"
"""Attribute of the module `sglang` that holds the process's `Loaded`: a process imports SGLang once."""

REAL_PARTS = "SGLang's Python and Triton kernels"
STAND_INS = (
    "DeepGEMM schedule, top-k v2 plan, fused metadata copies, FlashMLA planner, KV counter size "
    "(what needs a GPU), Triton's interpreter"
)


@dataclass(frozen=True)
class Loaded:
    """An imported SGLang."""

    site: Site
    simulated: bool
    """Simulated CUDA on a CPU."""
    seams: seams.Seams
    facts: Mapping[str, str]
    shim: Shim | None
    deep_gemm: ModuleType | None
    """The stand-in module, simulated CUDA only."""
    interpreter: interpreted.Interpreter = field(default_factory=interpreted.Interpreter)
    """Runs Triton launches, simulated CUDA only."""

    @contextlib.contextmanager
    def calls(self, geometry: Geometry, *, declared: bool = True) -> Iterator[Patches]:
        """Within the block SGLang may be called; yields the stack that undoes further patches at its end.

        declared: whether launches on a GPU are wrapped so that a ledger sees them; timings want them bare.
        """
        with Patches() as patches:
            if self.shim is not None:
                patches.enter(self.shim.active())
            if self.simulated:
                self._simulate(patches, geometry)
            elif declared:
                cuda.declare_launches(patches, self.seams, geometry.plan)
            self._replace_absent(patches, geometry)
            yield patches

    def _simulate(self, patches: Patches, geometry: Geometry) -> None:
        found = self.seams
        patches.item(os.environ, "TRITON_INTERPRET", "1")
        patches.attribute(torch.Tensor, "is_cuda", property(lambda tensor: True))  # the wrappers assert it
        patches.attribute(torch.cuda, "is_current_stream_capturing", lambda: False)
        patches.attribute(self.deep_gemm, "get_num_sms", lambda: geometry.num_sms)
        patches.attribute(found.topk, "_jit_topk_v2_module", lambda: standins.TopkModule(geometry.plan))
        patches.attribute(
            found.copies, "_jit_fused_metadata_copy_module", lambda mode, *_: standins.CopyModule(mode)
        )
        patches.attribute(
            found.copies, "_jit_fused_metadata_copy_multi_module", lambda *_: standins.CopyModule()
        )
        for function in found.cached:
            function.cache_clear()
            patches.callback(function.cache_clear)
        self.interpreter.intercept(patches)

    def _replace_absent(self, patches: Patches, geometry: Geometry) -> None:
        """Stand in for callees of packages that are not installed."""
        found = self.seams
        if self.simulated or not found.has_flashmla():
            planner = SimpleNamespace(get_mla_metadata=standins.flashmla_planner(geometry.num_sms))
            patches.item(sys.modules, found.flashmla, planner)
        if self.simulated or isinstance(found.counters.flashinfer, PlaceholderModule):
            patches.attribute(found.counters.flashinfer, "utils", standins.flashinfer_utils(geometry))


def load(version: str | None, device: torch.device) -> Loaded:
    """Import SGLang, once a process; `version` None takes whichever is found first.

    Raises UsageError where there is none, where another release or kind is loaded already, or where it
    does not import.
    """
    present = sys.modules.get("sglang")
    simulated = device.type != "cuda"
    if present is not None and (loaded := vars(present).get(_MARK)) is not None:
        if version not in (None, loaded.site.version) or simulated != loaded.simulated:
            raise UsageError(
                f"SGLang {loaded.site.version} is loaded in this process already: verify "
                f"{version or 'another kind of device'} in a process of its own"
            )
        return loaded  # type: ignore[no-any-return]
    if present is not None and simulated:
        raise UsageError("sglang was imported before the harness could simulate CUDA: start a new process")
    site = locate(version, gpu=not simulated)
    loaded = _load_simulated(site) if simulated else _load_real(site)
    setattr(sys.modules["sglang"], _MARK, loaded)
    return loaded


def _load_real(site: Site) -> Loaded:
    check_interpreter(wanted=False)
    os.environ["CUDA_HOME"] = toolkit()
    torch.cuda.current_device()  # initialises CUDA, so that SGLang asks torch for the architecture, not NVML
    if not site.slim:
        found = _import(site, contextlib.nullcontext())
        return Loaded(site, False, found, _facts(site, found, "everything", "none"), None, None)
    sys.path.append(str(site.folder))  # packages beside SGLang; installed ones win
    shim = Shim(NAMES, site.folder, {})
    found = _import(site, shim.active(), shim)
    absent = [] if found.has_flashmla() else ["FlashMLA planner"]
    absent += ["KV counter size"] if "flashinfer" in shim.names() else []
    stand_ins = f"{', '.join(absent) or 'none'}; packages never called: {', '.join(shim.names())}"
    return Loaded(site, False, found, _facts(site, found, "all other code", stand_ins), shim, None)


def _load_simulated(site: Site) -> Loaded:
    check_interpreter(wanted=True)
    deep_gemm = PlaceholderModule("deep_gemm")
    deep_gemm.__path__ = []
    vars(deep_gemm)["get_paged_mqa_logits_metadata"] = paged_mqa_schedule
    shim = Shim(NAMES, site.folder, {"deep_gemm": deep_gemm})
    found = _import(site, _pretended_h200(shim), shim)
    others = [name for name in shim.names() if name not in ("deep_gemm", "flashinfer")]
    stand_ins = f"{STAND_INS}; packages never called: {', '.join(others)}"
    return Loaded(site, True, found, _facts(site, found, REAL_PARTS, stand_ins), shim, deep_gemm)


@contextlib.contextmanager
def _pretended_h200(shim: Shim) -> Iterator[None]:
    """Let torch.cuda describe an H200, and Triton interpret, while SGLang is imported."""
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=140 << 30)
    gpu.multi_processor_count = 132
    answers: dict[str, Any] = {
        "is_available": True,
        "get_device_capability": (9, 0),
        "get_device_name": gpu.name,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": gpu,
    }
    with Patches() as patches, shim.active():
        patches.item(os.environ, "TRITON_INTERPRET", "1")
        patches.attribute(torch.version, "cuda", "13.0")
        for name, answer in answers.items():
            patches.attribute(torch.cuda, name, lambda *_, answer=answer, **__: answer)
        yield


def _import(
    site: Site, context: contextlib.AbstractContextManager[None], shim: Shim | None = None
) -> seams.Seams:
    before = set(sys.modules)
    printed = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            warnings.catch_warnings(),
            context,
        ):
            warnings.simplefilter("ignore")  # those of other people's modules
            if shim is not None:
                shim.prepare()
            found = seams.find(site.version)
            _ask_probes()
            return found
    except Exception as error:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "sglang":
                del sys.modules[name]
        if isinstance(error, UsageError):
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UsageError(f"SGLang {site.version} does not import: {reason}") from error


def _ask_probes() -> None:
    """Have the cached platform probes answer while they answer as wanted."""
    utils = importlib.import_module("sglang.srt.utils")
    if not utils.is_cuda():
        raise UsageError("SGLang does not take this device for a CUDA device")


def _facts(site: Site, found: seams.Seams, real: str, stand_ins: str) -> dict[str, str]:
    import triton

    file = Path(str(found.backend_module.__file__))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return {
        "sglang": site.version,
        "sglang.site": "slim site" if site.slim else "installed package",
        "sglang.file": f"{file.relative_to(site.folder)} sha256 {digest}",
        "sglang.real": real,
        "sglang.stand_ins": stand_ins,
        "triton": triton.__version__,
    }
