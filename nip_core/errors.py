"""The exceptions a caller of nip_core may want to tell apart.

Each also inherits the standard exception it refines, each is picklable (arguments are plain
strings), and each message names the place, the value and the remedy.
"""

from nip_base.errors import (
    CorruptionError,
    NipError,
    ServerError,
    SettingsError,
    StageError,
    StoreError,
)

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


class DatasetError(NipError, ValueError):
    """A dataset of problems can't be read or breaks a rule. Nothing was spent."""


class PlaceError(SettingsError, StoreError):
    """There is no run store at a place, and none can be made. Nothing was spent."""


class LeaseError(NipError, RuntimeError):
    """Another live runner holds the run. The message names it."""


class RunConflictError(NipError, ValueError):
    """The run name exists with other settings, for other data."""


class BudgetError(StageError):
    """A cap of the run's budget is reached; calls in flight are counted and kept."""


class JobError(StageError):
    """A fine-tune job ended without a model, or its outcome could not be learned."""


class DeadlineError(JobError):
    """A fine-tune job has not ended before its deadline; it goes on."""


class ParkedError(StageError):
    """The run lets go of a fine-tune job, as its settings say; the job goes on."""
