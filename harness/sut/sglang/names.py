"""What of SGLang, and of the packages that it imports, is left out (`harness.sut.shim`)."""

from __future__ import annotations

from harness.sut.shim import Names

NAMES = Names(
    package="sglang",
    placeholders=frozenset(
        (
            "IPython", "PIL", "deep_gemm", "flashinfer", "orjson", "pybase64", "pydantic", "pydantic_core",
            "requests", "sgl_kernel", "starlette", "torchvision", "tqdm", "zmq",
        )
    ),
    bare=(
        "sglang",  # Hugging Face patches and the language API
        "sglang.srt.configs",  # some sixty model configurations
        "sglang.srt.layers.quantization",  # every quantization method
        "sglang.srt.layers.moe",
    ),
    replaced=(
        "transformers",  # slow to import, and SGLang wants one certain version
        "sglang.srt.entrypoints",
        "sglang.srt.function_call",
        "sglang.srt.parser",
        "sglang.srt.layers.attention.flashinfer_mla_backend",  # base class of the one with the counter
        "sglang.srt.layers.logits_processor",
        "sglang.srt.utils.hf_transformers_utils",
        "sglang.srt.utils.hf_transformers",
    ),
)  # fmt: skip
