import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("words", "at", "wanted"),
    [
        ("replay-harness golden a", 2, {"accept"}),
        ("replay-harness verify --rep", 2, {"--report"}),
        ("replay-harness verify --path shared_", 3, {"shared_in_graph"}),
    ],
)
def test_a_shell_completes_commands_options_and_values(words: str, at: int, wanted: set[str]) -> None:
    environ = {
        **os.environ,
        "COMP_WORDS": words,
        "COMP_CWORD": str(at),
        "_REPLAY_HARNESS_COMPLETE": "bash_complete",
    }
    code = "import sys; sys.argv = ['replay-harness']; from harness.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == wanted
