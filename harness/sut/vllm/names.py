"""What of vLLM, and of the packages that it imports, is left out (`harness.sut.shim`)."""

from __future__ import annotations

from harness.sut.shim import Names

NAMES = Names(
    package="vllm",
    placeholders=frozenset(
        (
            "PIL", "aiohttp", "av", "blake3", "cbor2", "cloudpickle", "cpuinfo", "cv2", "deep_gemm", "depyf",
            "einops", "fastapi", "flashinfer", "gguf", "huggingface_hub", "ijson", "jsonschema", "openai",
            "openai_harmony", "opentelemetry", "orjson", "partial_json_parser", "prometheus_client",
            "py_cpuinfo", "pybase64", "pynvml", "requests", "safetensors", "setproctitle", "starlette",
            "tokenizers", "torchaudio", "torchvision", "tqdm", "urllib3", "uvloop", "zmq",
        )
    ),
    bare=(
        "vllm",  # environment overrides and the Python API
        "vllm.compilation",
        "vllm.distributed.kv_transfer",
        "vllm.model_executor.layers.attention",  # every kind of attention layer
        "vllm.model_executor.layers.fused_moe",
    ),
    replaced=(
        "transformers",  # slow to import
        "vllm._custom_ops",  # compiled
        "vllm.vllm_flash_attn",  # compiled
        "vllm.v1.structured_output",
        "vllm.distributed.kv_transfer.kv_connector",
    ),
)  # fmt: skip
