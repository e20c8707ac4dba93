"""Checks that no fault of the catalogue needs alone, with the reason why they exist all the same."""

from collections.abc import Mapping

REASONS: Mapping[str, str] = {}
