"""Where the vLLM under test comes from: an installed package, or a slim site made from PyPI wheels.

`python -m harness.sut.vllm.site` (what `make vllm-site` calls) downloads the pinned wheel (336 MB), keeps
the Python files that the draft decode loop and its metadata builders may load, and puts them into
`.sites/vllm-<version>` (`harness.sut.slim`).
"""

from __future__ import annotations

import sys

from harness.sut.slim import Slim

DEFAULT_VERSION = "0.33.0"
"""The release that cases name where they name none."""
SITE_VARIABLE = "REPLAY_HARNESS_VLLM_SITE"
"""Environment variable that names a slim site's folder."""

_GPU_WHEELS = (
    "pydantic==2.14.4", "pydantic_core==2.50.5", "annotated_types", "typing_inspection", "typing_extensions",
    "cachetools", "regex", "apache-tvm-ffi==0.1.11", "sgl-deep-gemm==0.1.5.post1",
)  # fmt: skip
"""What a GPU machine without network may lack or have too old; DeepGEMM in the form that loads there."""

_UNUSED = (
    "benchmarks", "entrypoints/cli", "entrypoints/openai", "model_executor/models", "models", "parser",
    "third_party", "tool_parsers", "transformers_utils/chat_templates", "transformers_utils/configs",
    "vllm_flash_attn",
)  # fmt: skip
"""Folders of the package of which nothing on the metadata path imports anything but `_USED`."""
_USED = tuple(
    f"model_executor/models/{name}.py"
    for name in ("__init__", "interfaces", "interfaces_base", "registry", "utils", "vision")
)


def _kept(name: str) -> bool:
    package, _, path = name.partition("/")
    if package.endswith(".dist-info"):
        return path == "METADATA"  # vLLM asks for its own version
    unused = path not in _USED and any(path.startswith(f"{folder}/") for folder in _UNUSED)
    return package == "vllm" and path.endswith(".py") and not unused


SLIM = Slim(
    package="vllm",
    title="vLLM",
    default=DEFAULT_VERSION,
    variable=SITE_VARIABLE,
    command="make vllm-site",
    version_argument="VLLM_VERSION",
    gpu_wheels=_GPU_WHEELS,
    kept=_kept,
    tags=("manylinux_2_28_x86_64",),
)
locate, build, main = SLIM.locate, SLIM.build, SLIM.main


if __name__ == "__main__":
    sys.exit(main())
