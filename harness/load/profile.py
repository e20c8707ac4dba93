"""What kinds of load there are, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import UsageError


@dataclass(frozen=True)
class Profile:
    """One kind of load. Probabilities are per round unless they say otherwise."""

    name: str
    text: str
    arrivals: float = 0.15
    """Mean of new requests, Poisson."""
    output: float = 60.0
    """Mean of tokens that a request generates, geometric."""
    shortest: float = 0.002
    longest: float = 0.35
    """Prompts are between these shares of W, log-uniform."""
    tail: float = 0.03
    """Probability that a new request is from the long-context tail: up to the longest legal length."""
    prefix: float = 0.2
    """Probability that a new request begins with whole pages of one that is live."""
    pool: float = 1.0
    """Pages that there are, as a share of what a full batch of the longest requests needs; few of them make
    preemptions. At most the model's pool."""
    burst: float = 0.01
    """Probability of a burst that fills the batch at once."""
    drain: float = 0.005
    """Probability that nothing arrives until the batch is empty."""
    idle: float = 0.01
    """Probability that idle rounds begin: other ranks have work, this one has none."""
    disturb: float = 0.01
    """Probability of an eager call, or of allocations made and freed, before a round."""


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("server", "a bit of everything: requests come and go, grow, share prefixes"),
        Profile(
            "bursty", "full batches, then none: large jumps between buckets",
            arrivals=0.02, burst=0.06, drain=0.06, output=25.0,
        ),
        Profile("long", "long contexts, up to the last legal length", tail=0.5, longest=0.9, output=120.0),
        Profile(
            "crowded", "few pages: preempted requests come back longer than they went",
            arrivals=0.6, pool=0.25, longest=0.6, prefix=0.1,
        ),
        Profile("prefix", "most requests begin with pages of another", prefix=0.9, longest=0.6, arrivals=0.3),
        Profile("dp", "a rank among others: many idle rounds", idle=0.12, arrivals=0.08, output=30.0),
    )
}  # fmt: skip
"""By name."""
MIXED = "mixed"
"""All of them in turns."""
TURN = 250
"""Rounds of one turn of `MIXED`."""


def profile_of(name: str) -> tuple[Profile, ...]:
    """Return the profiles of a name, several for `MIXED`. Raises UsageError for another one."""
    if name == MIXED:
        return tuple(PROFILES.values())
    if name not in PROFILES:
        raise UsageError(f"--load {name}: there are {', '.join((*PROFILES, MIXED))}")
    return (PROFILES[name],)
