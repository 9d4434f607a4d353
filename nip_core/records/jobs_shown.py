"""The parts of a fine-tune job, and of its dataset, that are shown."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from nip_core.jobs.job import JobRecord
from nip_core.jobs.steps import read_step_figures
from nip_core.records.models import NOT_SCHEDULED
from nip_core.report.embedding import thin_out

_MOST_LOSSES = 100  # of a job, which is more than the curve of the report has room for


class JobShown(BaseModel):
    """The part of a fine-tune job that is shown."""

    model_config = ConfigDict(frozen=True)

    id: str | None = None
    outcome: str | None = None
    status: str | None = None
    """The back-end's last word; `NOT_SCHEDULED` where there is no job."""
    reason: str | None = None
    """Why it gave no model."""
    trained_tokens: int | None = None
    loss: list[tuple[int, float]] = []
    """(step, training loss)."""
    billed_tokens: int = 0
    """Of all attempts; of a job that goes on those that are expected."""

    @property
    def is_due(self) -> bool:
        """Say whether there is a job at all."""
        return self.status != NOT_SCHEDULED

    @property
    def state(self) -> str | None:
        """Name how it ended, or the last status from its back-end."""
        return self.outcome or self.status

    def to_document(self) -> dict[str, Any]:
        """Give it as a block of iterations has it."""
        facts = self.model_dump()
        if not self.is_due:
            # Blocks have always had the loss last here: a block that is written again is the same.
            facts["loss"] = facts.pop("loss")
        return facts


NOT_DUE = JobShown(
    status=NOT_SCHEDULED,
    reason="no agent of the group trains in this iteration (update_schedule)",
)


class DatasetShown(BaseModel):
    """The part of a job's dataset that is shown; nothing is set where there is none."""

    model_config = ConfigDict(frozen=True)

    episodes: int | None = None
    examples: int | None = None
    method: str | None = None
    counts: dict[str, int] | None = None
    """The trainer's counts in choosing."""
    tokens: int | None = None
    training_usd: float | None = None


def read_losses(job: JobRecord) -> list[tuple[int, float]]:
    """Give (step, training loss) from the back-end's events; of many some, with the last."""
    figures = read_step_figures(job.backend_events)
    points = [(step, of_step.loss) for step, of_step in figures.items() if of_step.loss is not None]
    return thin_out(points, _MOST_LOSSES)
