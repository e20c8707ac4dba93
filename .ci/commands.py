"""Print the commands of the `sh` blocks of Markdown files, each once, in reading order.

Those of blocks marked `sh finds` have to end with status 1, what a run with findings ends with. Blocks marked
`sh gpu` (need a GPU) or `sh slow` (take long) are left out. Comments and blank lines are no commands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

FINDS = "status=0; {} || status=$?; [ $status = 1 ]"


def commands(text: str) -> Iterator[str]:
    """Yield the command lines of the `sh` blocks of one Markdown text."""
    tag: str | None = None
    for line in text.splitlines():
        if line.startswith("```"):
            tag = line.removeprefix("```").strip() if tag is None else None
        elif tag in ("sh", "sh finds"):
            command = line.split(" #")[0].strip()
            if command and not command.startswith("#"):
                yield command if tag == "sh" else FINDS.format(command)


if __name__ == "__main__":
    found = [command for name in sys.argv[1:] for command in commands(Path(name).read_text(encoding="utf-8"))]
    print(*dict.fromkeys(found), sep="\n")
