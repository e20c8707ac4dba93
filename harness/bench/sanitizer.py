"""compute-sanitizer over the fused refresh, on a GPU: `python -m harness.bench.sanitizer [--json FILE]`."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.errors import UsageError
from harness.report import jsonreport

TOOLS = ("memcheck", "initcheck", "racecheck")
"""Accesses beyond allocations, reads of memory that nobody wrote, hazards in shared memory."""
PROGRAM = "compute-sanitizer"
LIMIT_S = 300.0
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


def check(tool: str) -> dict[str, object]:
    """Run `sanitized` under one tool; return what it found.

    errors: what the tool counted, -1 where it gave no summary. right: whether every leaf was the oracle's.
    Raises UsageError where compute-sanitizer is not installed.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise UsageError(f"{PROGRAM} is not on the PATH: it comes with the CUDA toolkit")
    start = time.monotonic()
    command = [program, "--tool", tool, "--target-processes", "application-only", sys.executable]
    done = subprocess.run(
        [*command, "-m", "harness.bench.sanitized"], capture_output=True, text=True, check=False,
        timeout=LIMIT_S, env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )  # fmt: skip
    lines = (done.stdout + done.stderr).splitlines()
    rounds = [line for line in done.stdout.splitlines() if line.endswith(": right")]
    return {
        "tool": tool,
        "errors": errors_in(lines),
        "right": done.returncode == 0 and bool(rounds),
        "rounds": len(rounds),
        "seconds": round(time.monotonic() - start, 1),
        "messages": [line for line in lines if line.startswith("=========")][:20],
    }


def errors_in(lines: Sequence[str]) -> int:
    """Return the errors of a tool's summary, -1 where there is none."""
    found = [match for line in lines if (match := _SUMMARY.search(line))]
    return int(found[-1][1] or found[-1][2]) if found else -1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all tools side by side; return 0 if none found anything, 1 if one did, 2 if they cannot run."""
    parser = argparse.ArgumentParser(prog="python -m harness.bench.sanitizer", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the summary")
    flags = parser.parse_args(arguments)
    try:
        with ThreadPoolExecutor(len(TOOLS)) as pool:
            results = list(pool.map(check, TOOLS))
    except UsageError as error:
        print(f"sanitizer: {error}", file=sys.stderr)
        return 2
    for result in results:
        print(
            f"{result['tool']:<10} {result['errors']} errors, {result['rounds']} rounds "
            f"{'right' if result['right'] else 'NOT right'}, {result['seconds']} s"
        )
    if flags.json is not None:
        jsonreport.write(flags.json, {"what": f"{PROGRAM} over the fused refresh", "tools": results})
    return int(any(result["errors"] or not result["right"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
