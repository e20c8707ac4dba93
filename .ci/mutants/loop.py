"""A pytest plugin: each mutant in a fork of the collected session, under the tests that run its line."""

from __future__ import annotations

import ast
import functools
import gc
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from coverage import Coverage
from mutmut.mutation.data import LineSpan, MutantLineSpans, SourceFileMutationData
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import mangled_name_from_mutant_name

KILLED, SURVIVED, NO_TESTS, TIMEOUT = 1, 0, 33, 36
"""Exit codes by which mutmut keeps results."""

PATIENCE = 8.0
"""CPU seconds of tests that a mutant may take: what only a long run can tell has no test of its own."""

SLOW = 0.1
"""CPU seconds from which on a test runs twice to see how long it takes."""

Explained = Callable[[str, SourceFileMutationData], bool]

Hits = dict[tuple[str, int], set[int]]
"""(mutated file, line) -> numbers of the tests that ran it."""


@dataclass(frozen=True)
class Mutant:
    """One mutant and where it differs."""

    name: str
    lines: range
    """Lines of the unmutated copy, in the mutated file, of the statement that differs."""


class Loop:
    """Runs the tests once as they are, then every mutant that has no result yet or survived."""

    def __init__(self, root: Path, modules: list[str], explained: Explained) -> None:
        """Run mutants of these modules, all where none is named, but not again survivors with a reason."""
        self._root, self._modules, self._explained = root, modules, explained
        self._hits: Hits = {}
        self._seconds: list[float] = []
        self._kills: Counter[tuple[str, int]] = Counter()
        """(function, test) -> mutants of the one that the other killed."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Replace pytest's own loop."""
        if session.testsfailed:
            raise session.Interrupted("tests could not be collected")
        if not self._clean(session.items):
            session.testsfailed = 1
            return True
        gc.collect()
        gc.freeze()
        os.chdir(self._root)
        for data in self._files():
            self._file(data, session.items)
        os.chdir(self._root / "mutants")
        return True

    def _clean(self, items: list[pytest.Item]) -> bool:
        """Run all tests as they are; note how long each took and which lines of mutated files it ran."""
        files = [str(self._root / "mutants" / path) for path in walk_mutatable_files()]
        watch = Coverage(data_file=None, include=files)
        watch.start()
        good = True
        for number, item in enumerate(items):
            watch.switch_context(str(number))
            after = items[number + 1] if number + 1 < len(items) else None
            start = time.process_time()
            reports = runtestprotocol(item, nextitem=after, log=False)
            again = time.process_time()
            if again - start > SLOW:  # what it made for later tests is there now
                reports += runtestprotocol(item, nextitem=after, log=False)
                start = again
            self._seconds.append(time.process_time() - start)
            for report in reports:
                if report.failed:
                    print(f"\n{item.nodeid}\n{report.longreprtext}")
                    good = False
        watch.stop()
        for file in files:
            for line, contexts in watch.get_data().contexts_by_lineno(file).items():
                self._hits[file, line] = {int(context) for context in contexts if context}
        print(f"{len(items)} tests ran as they are in {sum(self._seconds):.0f} s", flush=True)
        return good

    def _files(self) -> Iterator[SourceFileMutationData]:
        for path in walk_mutatable_files():
            name = str(path.with_suffix("")).replace(os.sep, ".")
            if not self._modules or name in self._modules:
                data = SourceFileMutationData(path=path)
                data.load()
                yield data

    def _file(self, data: SourceFileMutationData, items: list[pytest.Item]) -> None:
        open_ = [
            name
            for name, code in data.exit_code_by_key.items()
            if code is None or (code in (SURVIVED, NO_TESTS) and not self._explained(name, data))
        ]
        if not open_:
            return
        place = str(self._root / "mutants" / data.path)
        start = time.monotonic()
        for done, mutant in enumerate(_located(data, open_), 1):
            numbers = set[int]().union(*(self._hits.get((place, line), set()) for line in mutant.lines))
            data.exit_code_by_key[mutant.name] = self._try(mutant.name, items, numbers)
            if done % 50 == 0 or done == len(open_):
                data.save()
        codes = list(data.exit_code_by_key.values())
        print(
            f"{data.path}: {len(codes)} mutants, {codes.count(SURVIVED)} survived,"
            f" {codes.count(NO_TESTS)} not run by any test, {codes.count(TIMEOUT)} timed out;"
            f" {len(open_)} tried in {time.monotonic() - start:.0f} s",
            flush=True,
        )

    def _try(self, name: str, items: list[pytest.Item], numbers: set[int]) -> int:
        if not numbers:
            return NO_TESTS
        function = mangled_name_from_mutant_name(name)
        order = sorted(numbers, key=lambda one: (-self._kills[function, one], self._seconds[one]))
        while len(order) > 1 and sum(self._seconds[number] for number in order) > PATIENCE:
            order.pop()
        limit = 10 + 10 * int(sum(self._seconds[number] for number in order))
        heard, said = os.pipe()
        pid = os.fork()
        if not pid:
            os._exit(self._child(name, [(number, items[number]) for number in order], limit, said))
        os.close(said)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        killer = os.read(heard, 16)
        os.close(heard)
        if killer:
            self._kills[function, int(killer)] += 1
        return TIMEOUT if status in (-signal.SIGXCPU, -signal.SIGALRM) else SURVIVED if not status else KILLED

    def _child(self, name: str, chosen: list[tuple[int, pytest.Item]], limit: int, said: int) -> int:
        """Run the chosen tests under a mutant until one fails; say which."""
        try:
            spent = int(time.process_time()) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (spent + limit, spent + limit + 1))
            signal.alarm(20 * limit)
            os.chdir(self._root / "mutants")
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            _forget()
            gc.disable()
            chosen[0][1].config.option.tbstyle = "native"  # nobody reads it, and it costs the least
            set_mutant_under_test(name)
            following = [item for _, item in chosen[1:]]
            for (number, item), after in zip(chosen, [*following, None], strict=True):
                if any(report.failed for report in runtestprotocol(item, nextitem=after, log=False)):
                    os.write(said, str(number).encode())
                    return KILLED
        except BaseException:
            return KILLED
        return SURVIVED


def _forget() -> None:
    """Empty the caches of mutated modules: what they hold was worked out without the mutant."""
    for module in [module for name, module in sys.modules.items() if name.startswith("harness.")]:
        for owner in [module, *(value for value in vars(module).values() if isinstance(value, type))]:
            for value in vars(owner).values():
                cached = value.__func__ if isinstance(value, staticmethod | classmethod) else value
                if isinstance(cached, functools._lru_cache_wrapper):
                    cached.cache_clear()


def _located(data: SourceFileMutationData, names: list[str]) -> Iterator[Mutant]:
    spans = MutantLineSpans.load(data.path)
    assert spans is not None
    text = (Path("mutants") / data.path).read_text(encoding="utf-8").splitlines()

    def lines(span: LineSpan) -> list[str]:
        return text[span.start - 1 : span.end]

    statements: dict[str, list[tuple[int, int]]] = {}
    for name in names:
        short = name.rpartition(".")[2]
        original = mangled_name_from_mutant_name(short) + "__mutmut_orig"
        span = spans.span_by_function_name[original]
        theirs, ours = lines(spans.span_by_function_name[short]), lines(span)
        pairs = zip_longest(ours, [line.replace(short, original) for line in theirs])
        differs = next(index for index, (one, other) in enumerate(pairs) if one != other)
        if original not in statements:
            statements[original] = list(_statements(ours))
        first, last = _innermost(statements[original], min(differs, len(ours) - 1))
        yield Mutant(name, range(span.start + first, span.start + last + 1))


def _statements(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Yield first and last line, from 0, of every simple statement and of every compound one's head.

    A function counts as a whole: its own head runs when it is defined.
    """
    for node in ast.walk(ast.parse("\n".join(["if True:", *(f" {line}" for line in lines)]))):
        if not isinstance(node, ast.stmt):
            continue
        first, last = node.lineno, node.end_lineno or node.lineno
        inside = (
            None
            if isinstance(node, ast.FunctionDef)
            else getattr(node, "body", None) or getattr(node, "cases", None)
        )
        if inside:
            inner = inside[0].pattern if isinstance(inside[0], ast.match_case) else inside[0]
            last = max(node.lineno, inner.lineno - 1)
        yield first - 2, last - 2


def _innermost(statements: list[tuple[int, int]], line: int) -> tuple[int, int]:
    around = [(last - first, first, last) for first, last in statements if first <= line <= last]
    if not around:
        return line, line
    _, first, last = min(around)
    return first, last
