"""What a system says while it works: printed lines, warnings, log records."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


class _Records(logging.Handler):
    """Keeps log records of level WARNING and up."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record in one line."""
        self._lines.append(f"{record.levelname}: {' '.join(record.getMessage().split())}")


@contextmanager
def listening() -> Iterator[list[str]]:
    """Yield a list that holds, after the block, one line for each thing said in it.

    Loggers that do not propagate to the root logger and writers below Python are not heard.
    """
    said: list[str] = []
    text, root, records = io.StringIO(), logging.getLogger(), _Records(said)
    root.addHandler(records)
    try:
        with warnings.catch_warnings(record=True) as caught, redirect_stdout(text), redirect_stderr(text):
            warnings.simplefilter("always")
            yield said
    finally:
        root.removeHandler(records)
        said[:0] = [line.strip() for line in text.getvalue().splitlines() if line.strip()]
        said += [f"{one.category.__name__}: {one.message}" for one in caught]
