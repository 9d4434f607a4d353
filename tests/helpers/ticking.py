"""A clock that stands still until it is told to go on, and a run's progress that goes by it."""

from nip_core.parameters import HyperParameters
from nip_core.progress.board import Progress

MIDNIGHT = 1_800_000_000.0


class Ticking:
    """Simulated time, in seconds."""

    def __init__(self) -> None:
        self.s = 1000.0

    def passes(self, seconds: float) -> None:
        """Let time go on."""
        self.s += seconds

    def progress(self) -> Progress:
        """The progress of a run that begins now."""
        return Progress(clock=lambda: self.s, now=lambda: MIDNIGHT + self.s)


def small_parameters(**changes) -> HyperParameters:
    """Settings of a run of one iteration."""
    settings = {
        "run_name": "small",
        "dataset": "families",
        "interaction_protocol": "nip",
        "rl": {"num_iterations": 1, "rollouts_per_iteration": 100},
        "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "tiny"}},
        **changes,
    }
    return HyperParameters.model_validate(settings)
