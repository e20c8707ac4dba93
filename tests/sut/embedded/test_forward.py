"""The forward: right against a NumPy derivation, only reading, bounded, blind to what is dead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.case import Case
from harness.fields import Dims, FieldSpec, fields_for, live_mask
from harness.rounds import Inputs
from harness.sut.embedded.metadata import named_leaves
from harness.sut.embedded.sut import EmbeddedSut
from harness.sut.embedded.weights import VOCABULARY
from harness.sut.protocol import StepOutputs
from harness.types import Kernel, Mode, Path, Precision, Role
from tests.helpers import make_case, tiny_model
from tests.sut.embedded.reference import asked_as, reference_row, visible_lengths
from tests.sut.embedded.support import built, inputs_of, is_read, random_inputs, refreshed

MODES_AND_POOLS = [(mode, pool) for mode in Mode for pool in (1, 4)]


def leaves_of(sut: EmbeddedSut, step: int = 0) -> dict[str, torch.Tensor]:
    return dict(named_leaves(sut.roots()[step].metadata[4]))


def awkward(case: Case) -> Inputs:
    """Lengths around a pool, a page, the top-k and the width; one row is padding."""
    count = case.variant.draft_tokens
    return inputs_of(case, 4, [4 * count + 4, 257, 1024 - count], [7, 3, 9], [1, count, 2])


def same(one: tuple[StepOutputs, ...], other: tuple[StepOutputs, ...]) -> bool:
    return all(
        torch.equal(a.computed[name], b.computed[name])
        for a, b in zip(one, other, strict=True)
        for name in a.computed
    )


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize(("mode", "pool"), MODES_AND_POOLS)
def test_results_equal_a_numpy_derivation(mode: Mode, pool: int, precision: Precision) -> None:
    case = make_case(tiny_model(pool), path=Path.SHARED, mode=mode, precision=precision)
    sut = built(case)
    inputs = awkward(case)
    refreshed(sut, inputs)
    rows = Dims.of(case, 4).rows // 4
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (4, rows))
    sut.stage_tokens(4, tokens)
    for step, outputs in enumerate(sut.forward(4)):
        computed = {name: tensor.numpy() for name, tensor in outputs.computed.items()}
        assert computed["out_of_range"].tolist() == [0]
        for request in range(inputs.live):
            for row, visible in enumerate(visible_lengths(case, inputs, request)):
                asked = asked_as(case, row, step)
                right = reference_row(case, sut.model, inputs, request, visible, tokens[request, row], asked)
                at = request * rows + row
                assert computed["selected"][at] == right.selected, (step, request, row)
                assert computed["draft_token"][at] == right.draft_token
                np.testing.assert_allclose(computed["attention"][at], right.attention, rtol=1e-4, atol=1e-5)
        tokens = computed["draft_token"].reshape(4, rows)


@pytest.mark.parametrize(("mode", "pool"), MODES_AND_POOLS)
@pytest.mark.parametrize("kernel", [Kernel.FA3, Kernel.TRTLLM])
def test_forward_changes_no_metadata_and_repeats_itself(mode: Mode, pool: int, kernel: Kernel) -> None:
    case = make_case(tiny_model(pool), path=Path.SHARED, mode=mode, kernel=kernel)
    sut = built(case)
    refreshed(sut, awkward(case))
    before = {name: leaf.clone() for name, leaf in leaves_of(sut).items()}
    once = sut.forward(4)
    again = sut.forward(4)
    assert same(once, again)
    for name, leaf in leaves_of(sut).items():
        assert torch.equal(leaf, before[name]), name
        assert torch.equal(once[0].read[name], before[name]), name
        assert once[0].read[name].shape == leaf.shape


def test_steps_and_rounds_differ() -> None:
    case = make_case(path=Path.SHARED, steps=5)
    sut = built(case)
    results = []
    for seed in (1, 2):
        refreshed(sut, random_inputs(case, 4, 4, seed))
        results += [outputs.computed["selected"].tolist() for outputs in sut.forward(4)]
    assert len({tuple(result) for result in results}) == len(results)


def is_bounded(name: str, mode: Mode, pool: int) -> bool:
    """Return whether the same junk in all elements of a leaf is out of range for this mode's forward."""
    if "cu_seqlens" in name or name.endswith("plan"):
        return False  # differences of equal values are 0; a plan is only read where it is written
    return name != "paged_mqa_schedule_metadata" or pool == 1


JUNK = (-(2**31), -1, 2**20 + 3, 2**31 - 1)


@pytest.mark.parametrize(("mode", "pool"), MODES_AND_POOLS)
def test_junk_in_any_leaf_is_data_and_not_a_crash(mode: Mode, pool: int) -> None:
    case = make_case(tiny_model(pool), path=Path.SHARED, mode=mode, steps=2, kernel=Kernel.TRTLLM)
    sut = built(case)
    inputs = awkward(case)
    refreshed(sut, inputs)
    right = {name: leaf.clone() for name, leaf in leaves_of(sut).items()}
    clean = sut.forward(4)
    for name, leaf in leaves_of(sut).items():
        for junk in JUNK:
            leaf.fill_(junk)
            (outputs, *_) = sut.forward(4)
            assert bool(torch.isfinite(outputs.computed["attention"]).all()), name
            if is_bounded(name, mode, pool):
                assert int(outputs.computed["out_of_range"]) > 0, (name, junk)
        leaf.copy_(right[name])
    # Pooled keys are sums over their tokens: what a bad round wrote elsewhere is not put right by itself.
    if pool == 1:
        assert same(clean, sut.forward(4))


def altered(field: FieldSpec, dims: Dims, leaf: torch.Tensor, inputs: Inputs) -> None:
    """Change the defined elements of a leaf to others in range: halve lengths, shift ids by one."""
    mask = live_mask(field, dims, inputs)
    chosen = torch.ones(leaf.shape, dtype=torch.bool) if mask is None else torch.from_numpy(mask)
    if field.init_once_first:
        chosen[0] = False
    ids = mask is not None or field.name.endswith("req")
    leaf.copy_(torch.where(chosen, (leaf - 1).abs() if ids else leaf // 2, leaf))


def results_and_writes(sut: EmbeddedSut) -> tuple[StepOutputs, torch.Tensor]:
    """Run a forward over pooled keys that are spoilt where this round's pools complete; return both."""
    pooled = sut.model.caches.pooled_keys
    if sut.model.caches.pooled_keys.data_ptr() != sut.model.caches.index_keys.data_ptr():
        pooled.add_(0.5)
    (outputs, *_) = sut.forward(4)
    return outputs, pooled.clone()


@pytest.mark.parametrize(("mode", "pool"), MODES_AND_POOLS)
def test_every_leaf_that_steers_results_does_so(mode: Mode, pool: int) -> None:
    case = make_case(tiny_model(pool), path=Path.SHARED, mode=mode, steps=2)
    dims = Dims.of(case, 4)
    inputs = inputs_of(case, 4, [204, 407, 613, 810], [7, 3, 9, 2], [3, 3, 3, 3])
    clean = built(case)
    refreshed(clean, inputs)
    right, written = results_and_writes(clean)
    silent = []
    for name, field in fields_for(dims).items():
        if not is_read(field, dims) or field.role is Role.INIT_ONCE:
            continue
        sut = built(case)
        refreshed(sut, inputs)
        altered(field, dims, leaves_of(sut)[name], inputs)
        results, stored = results_and_writes(sut)
        if same((right,), (results,)) and torch.equal(written, stored):
            silent.append(name)
    assert silent == []


@pytest.mark.parametrize(("mode", "pool"), MODES_AND_POOLS)
def test_dead_elements_are_not_read(mode: Mode, pool: int) -> None:
    case = make_case(tiny_model(pool), path=Path.SHARED, mode=mode)
    dims = Dims.of(case, 4)
    sut = built(case)
    inputs = awkward(case)
    refreshed(sut, inputs)
    clean = sut.forward(4)
    spoiled = 0
    for name, field in fields_for(dims).items():
        mask = live_mask(field, dims, inputs)
        if mask is not None:
            leaf = leaves_of(sut)[name]
            leaf.copy_(torch.where(torch.from_numpy(mask), leaf, 2**30))
            spoiled += int((~mask).sum())
    assert spoiled > 0
    assert same(clean, sut.forward(4))
    assert int(clean[0].computed["out_of_range"]) == 0


def test_pooled_keys_are_written_where_pools_complete() -> None:
    """A pool that a decode step completes is summed anew: a spoilt key is mended, others are left alone."""
    case = make_case(tiny_model(4), path=Path.SHARED, steps=2)
    sut = built(case)
    inputs = inputs_of(case, 4, [256, 257, 512, 511], [7, 3, 9, 2])
    refreshed(sut, inputs)
    pooled = sut.model.caches.pooled_keys
    right = pooled.clone()
    slots = [
        int(inputs.table[request, length - 1]) // 4
        for request, length in ((7, 256), (3, 257), (9, 512), (2, 511))
    ]
    pooled[slots] = 99.0
    sut.forward(4)
    mended = [bool((pooled[slot] == right[slot]).all()) for slot in slots]
    assert mended == [True, False, True, False]


@pytest.mark.parametrize("accepted", [1, 2, 3, 4, 5])
def test_draft_extend_completes_pools_of_accepted_tokens_only(accepted: int) -> None:
    case = make_case(tiny_model(4), path=Path.SHARED, mode=Mode.DRAFT_EXTEND)
    sut = built(case, buckets=(4,))
    count = case.variant.draft_tokens
    start = 101  # tokens 101..: the pool 100..103 completes with the third accepted token
    inputs = inputs_of(case, 4, [start + count], [7], [accepted])
    refreshed(sut, inputs)
    slot = int(inputs.table[7, 100]) // 4
    pooled = sut.model.caches.pooled_keys
    right = pooled[slot].clone()
    pooled[slot] = 99.0
    sut.forward(4)
    assert bool((pooled[slot] == right).all()) == (accepted >= 3)
