"""Mutation testing of what judges: `python .ci/mutants [MODULE ...]`, from the root of the checkout.

mutmut makes the mutants and keeps their results under `mutants/`; `mutmut results`, `show` and `browse` read
them. The tests run in forks of one warm process instead of one pytest a mutant, each mutant under the tests
that run its line: first those that killed others of its function, then the cheapest. Results are kept, so an
interrupted run goes on where it stopped; survivors without a reason are tried again. At the end
`docs/equivalent_mutants.md` is written anew.

Exit 1 if a survivor has no reason in `.ci/mutants/reasons.toml`, or if more than 3 % survived.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy and torch: a pool of threads does not survive a fork

import pytest
from loop import Loop
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir, setup_source_paths
from report import read_reasons, survivor, write_report

HERE = Path(__file__).parent.resolve()


def main(modules: list[str]) -> int:
    """Make the mutants, run those of the named modules (all where none is named), write the report."""
    root = Path.cwd()
    set_mutant_under_test("mutant_generation")
    Path("mutants").mkdir(exist_ok=True)
    with mutmut.CatchOutput():
        copy_src_dir()
        copy_also_copy_files()
        mutmut.create_mutants(1)
    setup_source_paths()
    config()  # read before the folder changes
    set_mutant_under_test("")
    reasons = read_reasons(HERE / "reasons.toml")

    def explained(name: str, data: SourceFileMutationData) -> bool:
        one = survivor(name, data)
        return (one.place, one.change) in reasons

    loop = Loop(root, modules, explained)
    os.chdir("mutants")
    arguments = [
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        "-p",
        "settings",
        "--rootdir=.",
        "--tb=short",
    ]
    status = pytest.main([*arguments, *config().pytest_add_cli_args_test_selection], plugins=[loop])
    os.chdir(root)
    if status:
        print(f"the tests failed without a mutant, or could not run: pytest ended with {int(status)}")
        return 2
    return write_report(HERE / "reasons.toml", root / "docs" / "equivalent_mutants.md")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
