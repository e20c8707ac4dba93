"""A tiny draft/verify generation loop `S/1/N` over captured graphs, with traffic as a server makes it.

One round: draft-extend over the tokens that the verification before accepted, S - 1 draft steps in
one graph, target-verify of N tokens. The target has nearly the drafts' weights and also sees the
tokens that it is verifying, so it agrees often but not always. Lengths grow by what was
accepted, requests finish and are replaced, pages are reused. Tokens must not depend on the path.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.case import Case
from harness.engine.protocol import Engine, Graph
from harness.errors import CaseError
from harness.rounds import Inputs, expand_table, length_fill
from harness.sut.embedded.forward import Model
from harness.sut.embedded.sut import EmbeddedSut, seeded_model
from harness.sut.embedded.weights import VOCABULARY
from harness.types import Mode

IDLE_ROUNDS = 3
"""Most rounds for which a slot stays empty after its request has finished."""
SHORTEST_PROMPT = 3
"""Tokens; the longest is twice the top-k, so that top-k leaves tokens out, or half the table."""
GROWTH = (8, 60)
"""Fewest and most tokens that a request generates before it finishes."""

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class GenerationRound:
    """What one round drafted and accepted, by live request in slot order."""

    requests: tuple[int, ...]
    lengths: tuple[int, ...]
    """Tokens before this round's drafts."""
    drafts: tuple[tuple[int, ...], ...]
    """N - 1 draft tokens."""
    accepted: tuple[tuple[int, ...], ...]
    """Tokens that the verification gave: matching drafts and one more."""

    @property
    def accept_lengths(self) -> tuple[int, ...]:
        """Accepted tokens per request, 1..N."""
        return tuple(len(tokens) for tokens in self.accepted)


@dataclass(frozen=True)
class GenerationTrace:
    """A whole generation; equal traces mean that two paths computed the same."""

    rounds: tuple[GenerationRound, ...]
    finished: int
    """Requests that were completed and replaced."""

    @property
    def mean_accept_length(self) -> float:
        """Accepted tokens per request and round; 0 without a live request."""
        lengths = [length for one in self.rounds for length in one.accept_lengths]
        return sum(lengths) / len(lengths) if lengths else 0.0


@dataclass
class _Request:
    """One live request."""

    number: int
    """Its row of the request table."""
    committed: int
    """Tokens before those that the last verification accepted."""
    accepted: list[int]
    """What it accepted; the last one is the input of the next drafts."""
    stop: int
    """Length at which it finishes."""

    @property
    def length(self) -> int:
        """Tokens that are settled."""
        return self.committed + len(self.accepted)


class _Traffic:
    """Slots, request rows and pages; draws from a seed and from lengths only."""

    def __init__(self, case: Case) -> None:
        geometry = case.geometry
        self._rng = np.random.default_rng([case.seed, 3])
        self._spare = case.variant.draft_tokens
        self._longest_prompt = _longest_prompt(case)
        self._page_tokens = case.model.page_tokens
        self._pages = np.zeros((geometry.requests, geometry.width // self._page_tokens), np.int32)
        self._free = list(self._rng.permutation(np.arange(1, self._pages.size - self._pages.shape[1])))
        self._rows = list(self._rng.permutation(np.arange(1, geometry.requests)))
        self._owned: dict[int, int] = {}
        self._idle = [0] * case.bucket
        self.slots: list[_Request | None] = [None] * case.bucket
        self.finished = 0

    def admit(self) -> None:
        """Fill empty slots whose pause is over (one at least), give every request pages for its tokens."""
        nobody = not self.live()
        for slot, request in enumerate(self.slots):
            if request is None:
                self._idle[slot] -= 1
                if self._idle[slot] < 0 or (nobody and slot == 0):
                    self.slots[slot] = self._arrive()
        for request in self.live():
            self._cover(request.number, request.committed + 2 * self._spare + 1)

    def live(self) -> list[_Request]:
        """Return the live requests in slot order."""
        return [request for request in self.slots if request is not None]

    def retire(self) -> None:
        """Free slots, rows and pages of requests that reached their end."""
        for slot, request in enumerate(self.slots):
            if request is not None and request.length >= request.stop:
                count = self._owned.pop(request.number)
                self._free[:0] = self._pages[request.number, :count].tolist()
                self._rows.insert(int(self._rng.integers(0, len(self._rows) + 1)), request.number)
                self._idle[slot] = int(self._rng.integers(0, IDLE_ROUNDS + 1))
                self.slots[slot] = None
                self.finished += 1

    def table(self) -> NDArray[np.int32]:
        """Return the request table as it is now; freed columns keep their old pages."""
        return expand_table(self._pages, self._page_tokens)

    def _arrive(self) -> _Request:
        number = int(self._rows.pop())
        prompt = int(self._rng.integers(SHORTEST_PROMPT, self._longest_prompt, endpoint=True))
        stop = prompt + int(self._rng.integers(*GROWTH, endpoint=True))
        return _Request(number, prompt, [int(self._rng.integers(0, VOCABULARY))], stop)

    def _cover(self, number: int, tokens: int) -> None:
        needed = -(-tokens // self._page_tokens)
        for column in range(self._owned.get(number, 0), needed):
            self._pages[number, column] = self._free.pop()
        self._owned[number] = max(needed, self._owned.get(number, 0))


class _Pass:
    """One captured forward of one mode."""

    def __init__(self, case: Case, mode: Mode, engine: Engine, model: Model) -> None:
        self._case = dataclasses.replace(case, mode=mode)
        self._engine = engine
        self._sut = EmbeddedSut(self._case, engine, _no_span, model)
        self._sut.init_graph_state()
        self._sut.stage(self._padded([], [], expand_table(_blank(case), case.model.page_tokens), []))
        self._sut.prepare_capture(case.bucket)
        self._graph: Graph
        self._graph, self._outputs = engine.capture(lambda: self._sut.forward(case.bucket))

    def run(
        self,
        requests: list[int],
        lengths: list[int],
        table: NDArray[np.int32],
        tokens: Tokens,
        accepted: list[int] | None = None,
    ) -> list[Tokens]:
        """Run on live rows with query tokens `[live, rows per request]`; return each step's tokens alike."""
        bucket, live = self._case.bucket, len(requests)
        self._sut.stage(self._padded(requests, lengths, table, accepted or []))
        padded = np.zeros((bucket, tokens.shape[1]), np.int64)
        padded[:live] = tokens
        self._sut.stage_tokens(bucket, padded)
        self._sut.refresh(bucket)
        self._engine.launch(self._graph)
        self._engine.synchronize()
        results = [step.computed["draft_token"].cpu().numpy() for step in self._outputs]
        return [np.array(result.reshape(bucket, -1)[:live], np.int64) for result in results]

    def close(self) -> None:
        """Let go of the system."""
        self._sut.close()

    def _padded(
        self, requests: list[int], lengths: list[int], table: NDArray[np.int32], accepted: list[int]
    ) -> Inputs:
        case = self._case
        bucket, tokens = case.bucket, case.variant.draft_tokens
        padding = bucket - len(requests)
        fill = length_fill(case.mode, case.model.index_kpool, tokens)
        return Inputs(
            bucket=bucket,
            live=len(requests),
            lengths=np.array([*lengths, *[fill] * padding], np.int64),
            requests=np.array([*requests, *[0] * padding], np.int64),
            accepted=np.array([*accepted, *[tokens] * (bucket - len(accepted))], np.int32),
            table=table,
        )


def generate(case: Case, engine: Engine, rounds: int = 64) -> GenerationTrace:
    """Generate for `rounds` rounds in the case's bucket, every pass through captured graphs of its path.

    Raises CaseError if the variant does not draft S tokens for N = S + 1, or the table is too narrow
    or has too few rows.
    """
    _check(case)
    model = seeded_model(case, engine.device)
    target = Model(model.weights.target(case.seed), model.caches)
    extend = _Pass(case, Mode.DRAFT_EXTEND, engine, model)
    draft = _Pass(case, Mode.DECODE, engine, model)
    verify = _Pass(case, Mode.TARGET_VERIFY, engine, target)
    traffic = _Traffic(case)
    history = []
    for _ in range(rounds):
        traffic.admit()
        history.append(_round(case.variant.draft_tokens, traffic, extend, draft, verify))
        traffic.retire()
    for one in (extend, draft, verify):
        one.close()
    return GenerationTrace(tuple(history), traffic.finished)


def _round(count: int, traffic: _Traffic, extend: _Pass, draft: _Pass, verify: _Pass) -> GenerationRound:
    live, table = traffic.live(), traffic.table()
    numbers = [request.number for request in live]
    settled = [request.length for request in live]
    taken = [len(request.accepted) for request in live]
    shifted = np.array([[*one.accepted, *[0] * (count - len(one.accepted))] for one in live], np.int64)
    extended = [request.committed + count for request in live]
    rows = np.arange(len(live))
    (firsts,) = extend.run(numbers, extended, table, shifted.reshape(len(live), count), taken)
    first = firsts[rows, np.array(taken, np.int64) - 1]
    later = draft.run(numbers, [length + 1 for length in settled], table, first[:, None])
    drafts = np.concatenate([first[:, None], *later], axis=1)
    last = np.array([request.accepted[-1] for request in live], np.int64)
    (target,) = verify.run(numbers, settled, table, np.concatenate([last[:, None], drafts], axis=1))
    matches = np.cumprod(drafts == target[:, :-1], axis=1).sum(axis=1)
    for request, tokens, matched in zip(live, target, matches, strict=True):
        request.committed = request.length
        request.accepted = tokens[: matched + 1].tolist()
    return GenerationRound(
        requests=tuple(numbers),
        lengths=tuple(settled),
        drafts=tuple(tuple(row) for row in drafts.tolist()),
        accepted=tuple(tuple(request.accepted) for request in live),
    )


def _check(case: Case) -> None:
    variant, geometry = case.variant, case.geometry
    if variant.draft_tokens != variant.steps + 1:
        raise CaseError(
            f"{case.model.name}: generation needs N = S + 1, {variant} has N = {variant.draft_tokens}"
        )
    longest = _longest_prompt(case) + GROWTH[1] + 3 * variant.draft_tokens + 1
    if geometry.width < longest:
        raise CaseError(
            f"{case.model.name}: width {geometry.width} is below the {longest} tokens of a request"
        )
    if geometry.requests - 1 < case.bucket:
        raise CaseError(
            f"{case.model.name}: requests {geometry.requests} is too few for bucket {case.bucket}"
        )


def _longest_prompt(case: Case) -> int:
    return max(SHORTEST_PROMPT, min(2 * case.geometry.topk, case.geometry.width // 2))


def _blank(case: Case) -> NDArray[np.int32]:
    return np.zeros((case.geometry.requests, case.geometry.width // case.model.page_tokens), np.int32)


@contextlib.contextmanager
def _no_span(name: str, step: int = -1) -> Iterator[None]:
    yield
