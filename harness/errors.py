"""Errors that a user can mend, and errors that a system under test provokes."""

from __future__ import annotations


class HarnessError(Exception):
    """Base of all errors of this package; its text is one line that says what, where and how to mend it."""


class UsageError(HarnessError):
    """A bad flag, case file, golden or device: the command line ends with status 2."""


class CaseError(UsageError):
    """A case file, or a case made of it, breaks a rule; the text names file, key and allowed values."""


class GoldenError(UsageError):
    """A stored golden is missing, damaged, of another schema, or may not be updated now."""


class NotDrivable(HarnessError):
    """The system cannot be driven on a case: the case is skipped, and this text is the reason."""


class CaptureError(HarnessError):
    """An operation that a graph cannot hold: a host read of device data, a data-dependent shape."""


class FreedStorageError(HarnessError):
    """A replay reads storage that was freed after capture (a CUDA graph would do so in silence)."""
