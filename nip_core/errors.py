"""The exceptions a caller of nip_core may want to tell apart.

Each also inherits the standard exception it refines, each is picklable (arguments are plain
strings), and each message names the place, the value and the remedy.
"""

from nip_base.errors import NipError

__all__ = [
    "BudgetError",
    "CorruptionError",
    "DatasetError",
    "DeadlineError",
    "JobError",
    "LeaseError",
    "NipError",
    "ParkedError",
    "PlaceError",
    "RunConflictError",
    "ServerError",
    "SettingsError",
    "StageError",
    "StoreError",
]


class SettingsError(NipError, ValueError):
    """A setting is unknown, out of range or contradicts another one. Nothing was spent."""


class DatasetError(NipError, ValueError):
    """A dataset of problems can't be read or breaks a rule. Nothing was spent."""


class StoreError(NipError, OSError):
    """The run store can't be used: no permission, no space, no atomic writes."""


class PlaceError(SettingsError, StoreError):
    """There is no run store at a place, and none can be made. Nothing was spent."""


class CorruptionError(StoreError):
    """A committed file does not match its manifest. The file is named; nothing is repaired."""


class LeaseError(NipError, RuntimeError):
    """Another live runner holds the run. The message names it."""


class RunConflictError(NipError, ValueError):
    """The run name exists with other settings, for other data."""


class StageError(NipError, RuntimeError):
    """A stage stopped cleanly; finished work is kept and running again continues."""


class BudgetError(StageError):
    """A cap of the run's budget is reached; calls in flight are counted and kept."""


class JobError(StageError):
    """A fine-tune job ended without a model, or its outcome could not be learned."""


class DeadlineError(JobError):
    """A fine-tune job has not ended before its deadline; it goes on."""


class ParkedError(StageError):
    """The run lets go of a fine-tune job, as its settings say; the job goes on."""


class ServerError(NipError, RuntimeError):
    """The language-model server can't be started or reached, or refused a request."""
