"""Where the SGLang under test comes from: an installed package, or a slim site made from PyPI wheels.

`python -m harness.sut.sglang.site` (what `make sglang-site` calls) downloads pinned wheels, keeps what
the DSA metadata path may load and puts it into `.sites/sglang-<version>` (`harness.sut.slim`).
"""

from __future__ import annotations

import sys

from harness.sut.slim import SITES, Site, Slim

__all__ = ["DEFAULT_VERSION", "SITES", "SITE_VARIABLE", "Site", "build", "locate", "main"]

DEFAULT_VERSION = "0.5.23"
"""The release that cases name where they name none."""
SITE_VARIABLE = "REPLAY_HARNESS_SGLANG_SITE"
"""Environment variable that names a slim site's folder."""

_GPU_WHEELS = ("apache-tvm-ffi==0.1.11", "msgspec", "sgl-deep-gemm==0.1.5.post1")
"""Compiled packages that a GPU machine without network needs beside SGLang. This DeepGEMM is the newest
one that loads with torch 2.11; SGLang's own pin does not."""

_UNUSED = (
    "api", "benchmark", "cli", "lang", "multimodal_gen", "test", "kernels/jit/benchmark",
    "kernels/jit/csrc/diffusion", "kernels/jit/include/sgl_kernel/diffusion",
    *(
        f"srt/{name}"
        for name in (
            "checkpoint_engine", "connector", "constrained", "debug_utils", "entrypoints", "function_call",
            "model_loader", "models", "multimodal", "parser", "ray", "rust_extensions", "rust_server",
        )
    ),
)  # fmt: skip
"""Folders of the package that nothing on the metadata path imports."""


def _kept(name: str) -> bool:
    package, _, path = name.partition("/")
    if package != "sglang" or any(path.startswith(f"{unused}/") for unused in _UNUSED):
        return False
    return path.endswith(".py") or path.startswith(("kernels/jit/csrc/", "kernels/jit/include/"))


SLIM = Slim(
    package="sglang",
    title="SGLang",
    default=DEFAULT_VERSION,
    variable=SITE_VARIABLE,
    command="make sglang-site",
    version_argument="SGLANG_VERSION",
    gpu_wheels=_GPU_WHEELS,
    kept=_kept,
)
locate, build, main = SLIM.locate, SLIM.build, SLIM.main


if __name__ == "__main__":
    sys.exit(main())
