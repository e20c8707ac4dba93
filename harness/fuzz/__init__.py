"""Fuzzing the life of a backend: drawn sequences of captures, replays and disturbances, judged and shrunk."""
