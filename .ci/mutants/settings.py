"""Hypothesis for mutation tests: the same few examples for every mutant, no deadline, no shrinking."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile(
    "mutants",
    derandomize=True,
    max_examples=30,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("mutants")
