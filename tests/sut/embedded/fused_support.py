"""What tests of the fused refresh share: buffers full of sentinels, inputs on a device, and what differs."""

from __future__ import annotations

import pytest
import torch

from harness.errors import UsageError
from harness.fields import Dims, canonical, fields_for
from harness.oracle import expected
from harness.rounds import Inputs
from harness.sut.embedded.buffers import WideBuffers, allocate_metadata
from harness.sut.embedded.fused_runtime import load_kernel
from harness.sut.embedded.metadata import DSAMetadata, named_leaves
from harness.sut.embedded.planners import Planners
from harness.sut.embedded.precompute import DeviceInputs
from harness.types import Role

SENTINEL = -0x3A3A3A3B
CPU = torch.device("cpu")


def need_interpreter() -> None:
    """Skip where this process compiles Triton for its GPU; elsewhere the interpreter has to be there."""
    try:
        load_kernel(CPU)
    except UsageError as error:
        if not torch.cuda.is_available():
            raise
        pytest.skip(str(error))


def need_compiler() -> None:
    """Skip where this process interprets Triton though it has a GPU."""
    try:
        load_kernel(torch.device("cuda"))
    except UsageError as error:
        pytest.skip(str(error))


def device_inputs(inputs: Inputs, device: torch.device = CPU) -> DeviceInputs:
    """Return a round's inputs on a device."""
    return DeviceInputs(
        seq_lens=torch.from_numpy(inputs.lengths).to(device),
        req_pool_indices=torch.from_numpy(inputs.requests).to(device),
        accepted=torch.from_numpy(inputs.accepted).to(device),
        req_to_token=torch.from_numpy(inputs.table).to(device),
    )


def poisoned(dims: Dims, device: torch.device = CPU) -> DSAMetadata:
    """Return metadata as built, every refreshed element but the first of each sum full of a sentinel."""
    wide = WideBuffers.allocate(dims, Planners(dims, device), device)
    metadata = allocate_metadata(dims, wide, device)
    fields = fields_for(dims)
    for name, leaf in named_leaves(metadata):
        if fields[name].role is Role.REFRESHED:
            (leaf[1:] if fields[name].init_once_first else leaf).fill_(SENTINEL)
    return metadata


def wrong(dims: Dims, inputs: Inputs, metadata: DSAMetadata) -> set[str]:
    """Return the leaves whose defined elements are not the oracle's, or the planner's where it has none."""
    right = expected(dims, inputs)
    names = set()
    leaves = dict(named_leaves(metadata))
    for name, field in fields_for(dims).items():
        value = right.get(name)
        if value is None:
            sparse = torch.from_numpy(right["dsa_cache_seqlens_int32"])
            value = getattr(Planners(dims, CPU).flashmla(sparse), name.partition(".")[2]).numpy()
        got = canonical(field, dims, inputs, leaves[name].cpu().numpy())
        if not (got == canonical(field, dims, inputs, value)).all():
            names.add(name)
    return names
