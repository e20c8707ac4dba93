"""The two builders of base fields agree with each other and with the oracle, by different routes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.fields import Dims
from harness.oracle import expected
from harness.rounds import Inputs
from harness.sut.embedded.fused import FusedBuilder
from harness.sut.embedded.precompute import BaseFields, DeviceInputs, OrdinaryBuilder
from harness.types import Mode
from tests.helpers import make_dims, make_inputs

CPU = torch.device("cpu")
NAMES = {
    "cache_seqlens": "cache_seqlens_int32",
    "cu_seqlens_k": "cu_seqlens_k",
    "page_table": "page_table_1",
    "real_page_table": "real_page_table",
    "seqlens_expanded": "dsa_seqlens_expanded",
    "dsa_cache_seqlens": "dsa_cache_seqlens_int32",
    "dsa_cu_seqlens_k": "dsa_cu_seqlens_k",
}


def device_inputs(inputs: Inputs) -> DeviceInputs:
    return DeviceInputs(
        seq_lens=torch.from_numpy(inputs.lengths),
        req_pool_indices=torch.from_numpy(inputs.requests),
        accepted=torch.from_numpy(inputs.accepted),
        req_to_token=torch.from_numpy(inputs.table),
    )


def zeroed(dims: Dims) -> BaseFields:
    fields = BaseFields.temporaries(dims, CPU)
    for name in NAMES:
        getattr(fields, name).zero_()
    return fields


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Dims, Inputs]:
    mode = draw(st.sampled_from(list(Mode)))
    dims = make_dims(mode, draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 6)), draw(st.integers(1, 7)))
    lowest = dims.draft_tokens + dims.pool if mode is Mode.DRAFT_EXTEND else 1
    sizes = st.integers(lowest, dims.width - dims.draft_tokens)
    lengths = draw(st.lists(sizes, min_size=dims.bucket, max_size=dims.bucket))
    requests = draw(st.permutations(range(1, dims.bucket + 1)))
    return dims, make_inputs(dims, lengths, list(requests), draw(st.integers(0, 99)))


@given(sample=rounds())
@settings(max_examples=60, deadline=None)
def test_both_builders_equal_the_oracle_everywhere(sample: tuple[Dims, Inputs]) -> None:
    dims, inputs = sample
    right = expected(dims, inputs)
    for builder in (OrdinaryBuilder(dims, CPU), FusedBuilder(dims, CPU)):
        fields = zeroed(dims)
        builder.build(device_inputs(inputs), fields)
        for name, leaf in NAMES.items():
            assert np.array_equal(getattr(fields, name).numpy(), right[leaf]), (builder.name, name)


@pytest.mark.parametrize("kind", [OrdinaryBuilder, FusedBuilder])
def test_first_elements_are_left_alone(kind: type[OrdinaryBuilder] | type[FusedBuilder]) -> None:
    dims = make_dims()
    fields = zeroed(dims)
    fields.cu_seqlens_k[0] = fields.dsa_cu_seqlens_k[0] = -5
    kind(dims, CPU).build(device_inputs(make_inputs(dims, [5, 6, 7, 8])), fields)
    assert (int(fields.cu_seqlens_k[0]), int(fields.dsa_cu_seqlens_k[0])) == (-5, -5)
