"""Page coding: what of each request's pages was written already."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from harness.record.format import Pages

Ints = NDArray[np.int32]


class KnownPages:
    """The page ids last written of each request."""

    def __init__(self) -> None:
        """Know of nothing: the first pages of each request are written in full."""
        self._rows: dict[int, Ints] = {}

    def difference(self, request: int, live: Ints) -> Pages:
        """Return what is new of a request's live page ids, and know them from now on."""
        known = self._rows.get(request)
        if known is None:
            self._rows[request] = live.copy()
            return 0, tuple(live.tolist())
        common = min(known.size, live.size)
        differing = np.flatnonzero(known[:common] != live[:common])
        first = int(differing[0]) if differing.size else common
        if first == live.size:  # what is known beyond them stays known
            return None
        self._rows[request] = live.copy()
        return first, tuple(live[first:].tolist())


def page_digest(live: Ints) -> str:
    """Return what stands for page ids where they are not kept: 16 hex digits."""
    return hashlib.sha256(np.ascontiguousarray(live, np.int32).data).hexdigest()[:16]
