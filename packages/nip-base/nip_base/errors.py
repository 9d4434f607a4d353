"""The errors that several parts of nip raise.

Each is picklable (arguments are plain strings), and each message names the place, the value and
the remedy.
"""


class NipError(Exception):
    """The base of the errors that nip raises on purpose: one line says what to do."""


class SettingsError(NipError, ValueError):
    """A setting is unknown, out of range or contradicts another one. Nothing was spent."""


class StoreError(NipError, OSError):
    """Files can't be kept: no permission, no space, no atomic writes."""


class CorruptionError(StoreError):
    """A committed file does not match its manifest. The file is named; nothing is repaired."""


class ServerError(NipError, RuntimeError):
    """A server can't be started or reached, or refused a request."""


class StageError(NipError, RuntimeError):
    """A stage stopped cleanly; finished work is kept and running again continues."""
