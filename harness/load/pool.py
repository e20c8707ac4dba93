"""Pages with owners: requests may share whole pages; a page is free again when its last owner lets go."""

from __future__ import annotations

import random
from collections.abc import Sequence


class SharedPages:
    """The page pool of a simulated server."""

    def __init__(self, first: int, last: int, share: float, rng: random.Random) -> None:
        """Own model pages `first` to `last`, or a share of them."""
        pages = list(range(first, last + 1))
        rng.shuffle(pages)
        self._free = pages[: max(1, round(share * len(pages)))]
        self._rng = rng
        self._owners: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Pages without an owner."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Return so many pages, now with an owner. Raises ValueError where there are too few."""
        if count > len(self._free):
            raise ValueError(f"{count} pages are needed, {len(self._free)} are free")
        taken = [self._free.pop() for _ in range(count)]
        self._owners.update(dict.fromkeys(taken, 1))
        return taken

    def share(self, pages: Sequence[int]) -> list[int]:
        """Return the same pages, now with one owner more."""
        for page in pages:
            self._owners[page] += 1
        return list(pages)

    def release(self, pages: Sequence[int]) -> None:
        """Let go of pages; those without an owner go back, to be taken again in no particular order."""
        for page in pages:
            self._owners[page] -= 1
            if not self._owners[page]:
                del self._owners[page]
                self._free.insert(self._rng.randrange(len(self._free) + 1), page)
