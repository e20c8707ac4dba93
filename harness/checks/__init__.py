"""The checks: pure functions over an observation and what it is held against."""
