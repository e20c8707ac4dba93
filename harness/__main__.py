"""`python -m harness`: the same program as `replay-harness`."""

import sys

from harness.cli import main

if __name__ == "__main__":
    sys.exit(main())
