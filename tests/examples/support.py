"""Examples of the documentation as if they were installed: their entry points on the path."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.locate import CHECKOUT
from harness.specification import specification_of

EXAMPLES = CHECKOUT / "docs" / "examples"


def metadata(example: str, folder: Path) -> None:
    """Write what an installer would write of an example: its name and its entry points."""
    project = tomllib.loads((EXAMPLES / example / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))


@contextmanager
def installed(example: str, folder: Path) -> Iterator[None]:
    """Within it, this process finds an example's systems."""
    metadata(example, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES / example))
        patch.syspath_prepend(str(folder))
        specification_of.cache_clear()
        yield
    specification_of.cache_clear()
