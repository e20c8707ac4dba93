"""The page `docs/checks.md`: what each check claims, sees and suggests, from the registry.

Run `python -m harness.checks.page docs/checks.md` after a change to the registry; a test holds both together.
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.checks.registry import CHECKS

HEAD = """# Checks

A check is a pure function: a record of a run in, findings out. Each states one kind of cause, and leaves
out what follows from a cause that another has stated ([why](decisions/0007-one-cause-one-finding.md)).
`replay-harness explain CHECK` prints the same in a terminal.

*Not applicable* is a verdict of its own: the claim has no subject in the case, such as sharing where there
is one step. It is counted and printed with its reason.
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for check in CHECKS:
        parts += [
            f"## {check.name}\n",
            f"**Claims.** {check.claim}\n",
            f"**Sees it by.** {check.sees}\n",
            f"**What mends it.** {check.mend}\n",
        ]
    return "\n".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
