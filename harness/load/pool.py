"""Pages with owners: requests may share whole pages; a page is free again when its last owner lets go."""

from __future__ import annotations

import random
from collections.abc import Sequence


class SharedPages:
    """The page pool of a simulated server."""

    def __init__(self, first: int, last: int, rng: random.Random) -> None:
        """Own model pages `first` to `last`."""
        self._free = list(range(first, last + 1))
        rng.shuffle(self._free)
        self._rng = rng
        self._all = len(self._free)
        self.limit = self._all
        """Pages that may have an owner."""
        self._owners: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Pages that may still be taken; negative where more have an owner than may."""
        return min(len(self._free), self.limit - self._all + len(self._free))

    def take(self, count: int) -> list[int]:
        """Return so many pages, now with an owner. Raises ValueError where there are too few."""
        if count > self.free:
            raise ValueError(f"{count} pages are needed, {self.free} are free")
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
