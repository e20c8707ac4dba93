"""Recording what captures and refreshes of a running server are given: `install(backend_or_module, path)`.

Importing this package imports neither torch nor a server. No tokens and no text are recorded.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.record.install import Installed
    from harness.record.output import Limits


def install(
    backend_or_module: Any,
    path: str | os.PathLike[str],
    *,
    pages: str = "ids",
    limits: Limits | None = None,
    rank: int | None = None,
    world: int | None = None,
) -> Installed:
    """Record every capture and refresh from now on; see `harness.record.install.install`."""
    from harness.record.install import install as installing

    return installing(backend_or_module, path, pages=pages, limits=limits, rank=rank, world=world)
