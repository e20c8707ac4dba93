"""Where `cases/` and `golden/` are: given, in the working folder, or in the checkout of this package."""

from __future__ import annotations

from pathlib import Path

from harness.errors import UsageError

CHECKOUT = Path(__file__).resolve().parent.parent
"""The repository root, where the package runs from a checkout (an editable install does)."""


def cases_dir(given: Path | None, cwd: Path | None = None) -> Path:
    """Return the folder of case files: `given`, else `cases/` in `cwd`, else in the checkout.

    Raises UsageError where none of them is a folder with case files.
    """
    if given is not None:
        if not given.is_dir():
            raise UsageError(f"--cases-dir {given}: no such folder")
        if not any(given.glob("*.toml")):
            raise UsageError(f"--cases-dir {given}: holds no case files (*.toml)")
        return given
    found = default_cases_dir(cwd)
    if found is not None:
        return found
    raise UsageError("no folder cases/ with case files here; run in a checkout or give --cases-dir DIR")


def default_cases_dir(cwd: Path | None = None) -> Path | None:
    """Return the folder of case files where none is given; None where there is none."""
    folders = (root / "cases" for root in (cwd or Path.cwd(), CHECKOUT))
    return next((folder for folder in folders if any(folder.glob("*.toml"))), None)


def golden_dir(given: Path | None, cases: Path) -> Path:
    """Return the folder of goldens: `given`, else `golden/` beside the folder of case files.

    It may not exist yet: an update creates it, a check reports what is missing. Raises UsageError
    where `given` is a file.
    """
    if given is not None:
        if given.exists() and not given.is_dir():
            raise UsageError(f"--golden-dir {given}: is not a folder")
        return given
    return cases.parent / "golden"
