"""What every rank is told: one JSON text on its command line."""

from __future__ import annotations

import msgspec

from harness.errors import UsageError
from harness.fuzz.sequence import Setting
from harness.ranks.agree import Parallel

TRIALS = ("skew", "kill", "hang", "idle")
"""What can be done to one rank on purpose: another batch, an end, a halt, no refresh."""


class Trial(msgspec.Struct, frozen=True):
    """Something that one rank does in one round, so that it is seen whether anybody notices."""

    what: str
    """One of `TRIALS`."""
    rank: int
    round: int
    """Number of the replay, from 1."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One run of several ranks."""

    cases_dir: str
    setting: Setting
    world: int
    parallel: Parallel
    replays: int
    load: str = ""
    """Load model, or empty for traces."""
    seed: int = 0
    traces: tuple[str, ...] = ()
    """By rank."""
    fit: bool = False
    limit_s: float = 60.0
    """Seconds that one round may take."""
    port: int = 0
    sut_options: dict[str, str] = {}
    trials: tuple[Trial, ...] = ()


def trial_of(text: str, world: int) -> Trial:
    """Read `WHAT:RANK@ROUND`. Raises UsageError for another form."""
    what, _, place = text.partition(":")
    rank, _, number = place.partition("@")
    if what not in TRIALS or not rank.isdigit() or not number.isdigit() or int(rank) >= world:
        names = ", ".join(TRIALS)
        raise UsageError(f"--trial {text}: give WHAT:RANK@ROUND, WHAT one of {names}, RANK below {world}")
    return Trial(what, int(rank), int(number))
