"""How many episodes of a split may fail before its shards stop."""

from dataclasses import dataclass, field

from nip_core.errors import StageError
from nip_core.tolerance import more_than


@dataclass
class Failures:
    """Failed episodes of a split. Its shards share one object, so their size decides nothing."""

    episodes: int  # of the whole split
    keys: set[str] = field(default_factory=set)  # of those that failed; a repetition counts once
    stop: bool = True  # whether too many stop the shard

    def check(self, threshold: float, explanation: str) -> None:
        """Raise StageError if more failed than this share of the episodes.

        `explanation` ends its message: why they failed, and how to go on.
        """
        if self.stop and more_than(len(self.keys), threshold * self.episodes):
            raise StageError(
                f"{len(self.keys)} of {self.episodes} episodes failed, more than the share of "
                f"{threshold} that rollouts.failure_threshold allows; {explanation}"
            )
