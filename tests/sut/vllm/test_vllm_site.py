"""What a slim site of vLLM keeps of its wheel."""

import pytest

from harness.sut.vllm.site import SLIM


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("vllm/__init__.py", True),
        ("vllm/v1/attention/backends/mla/indexer.py", True),
        ("vllm/model_executor/models/registry.py", True),
        ("vllm/model_executor/models/llama.py", False),
        ("vllm/models/glm5next/common/attention.py", False),
        ("vllm/_C.abi3.so", False),
        ("vllm-0.33.0.dist-info/METADATA", True),
        ("vllm-0.33.0.dist-info/RECORD", False),
    ],
)
def test_a_site_keeps_what_the_metadata_path_may_load(name: str, kept: bool) -> None:
    assert SLIM.kept(name) is kept
