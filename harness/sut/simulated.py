"""What loading a server for a simulated CUDA device has in common, whichever server it is."""

from __future__ import annotations

import sys

from harness.errors import UsageError


def check_interpreter(wanted: bool) -> None:
    """Raise UsageError where Triton was imported otherwise than needed.

    Triton decides at the decoration of a kernel whether it is interpreted, its own library included.
    """
    standard = sys.modules.get("triton.language.standard")
    interpreted_now = type(getattr(standard, "cdiv", None)).__name__ == "InterpretedFunction"
    if standard is not None and interpreted_now != wanted:
        raise UsageError(
            f"triton was imported {'without' if wanted else 'with'} its interpreter in this process already: "
            f"{'set TRITON_INTERPRET=1, or ' if wanted else ''}start a new process"
        )
