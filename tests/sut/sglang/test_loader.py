import os
import sys

import pytest
import torch

from harness.errors import UsageError
from harness.sut.sglang import loader, seams
from harness.sut.simulated import check_interpreter

from .support import CPU, GEOMETRY, loaded

pytestmark = pytest.mark.sglang


def test_facts_say_what_was_real_and_what_stood_in() -> None:
    facts = loaded().facts
    assert facts["sglang"] == loaded().site.version
    assert "dsa_backend.py sha256" in facts["sglang.file"]
    assert "Triton kernels" in facts["sglang.real"]
    assert "DeepGEMM schedule" in facts["sglang.stand_ins"]
    assert not any(value.startswith("/") for value in facts.values())


def test_a_process_loads_one_release() -> None:
    assert loader.load(None, CPU) is loaded()
    with pytest.raises(UsageError, match="is loaded in this process already"):
        loader.load("0.0.1", CPU)


def test_simulation_ends_with_the_block() -> None:
    with loaded().calls(GEOMETRY):
        assert torch.zeros(1).is_cuda
        assert sys.modules["deep_gemm"].get_num_sms() == GEOMETRY.num_sms
        assert os.environ["TRITON_INTERPRET"] == "1"
    assert not torch.zeros(1).is_cuda
    assert "is_cuda" not in vars(torch.Tensor)
    assert not torch.cuda.is_available()


def test_an_sglang_imported_by_others_cannot_be_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded()
    monkeypatch.delattr(sys.modules["sglang"], "_replay_harness_loaded")
    with pytest.raises(UsageError, match="imported before the harness"):
        loader.load(None, CPU)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("step_backend", "set_dsa_prefill_impl"),
        ("multi_backend", "init_cuda_graph_state"),
        ("copies", "fused_metadata_copy_multi_cuda"),
        ("topk", "plan_topk_v2"),
    ],
)
def test_a_release_without_a_seam_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, owner: str, name: str
) -> None:
    monkeypatch.delattr(getattr(loaded().seams, owner), name)
    with pytest.raises(UsageError, match=f"cannot be driven: .* has no {name}"):
        seams.find("0.5.99")


def test_triton_of_the_other_kind_cannot_be_used() -> None:
    loaded()
    check_interpreter(wanted=True)
    with pytest.raises(UsageError, match="with its interpreter in this process"):
        check_interpreter(wanted=False)
