"""Recording what captures and refreshes of a running server are given: `install(backend_or_module, path)`.

Importing this package imports neither torch nor a server. No tokens and no text are recorded.
"""

from harness.record.install import install
from harness.record.recorder import Recorder

__all__ = ["Recorder", "install"]
