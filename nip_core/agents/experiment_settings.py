"""How an experiment is run by hand, apart from what is played: `ExperimentSettings`.

Every field of the original has its name and default. Those that steer things which this library
does not do, or does by a setting of its own, keep their default and are refused otherwise.
"""

import logging
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from nip_core.parameters.base import Parameters

_CONCURRENCY = "rollouts.concurrency in the hyper-parameters bounds the calls in flight"
_RETRIES = "rollouts.transport_retries in the hyper-parameters bounds retries of every kind"
_MEANINGLESS = {
    "device": "where models run is decided by lm_server.options and lm_server.training_device",
    "wandb_run": "nothing is sent to Weights & Biases",
    "silence_wandb": "nothing is sent to Weights & Biases",
    "ignore_cache": "datasets are not cached",
    "num_rollout_samples": "every rollout is kept",
    "rollout_sample_period": "every rollout is kept",
    "checkpoint_period": "every generation is kept as it comes",
    "num_dataset_threads": "datasets are read in one thread",
    "num_rollout_workers": _CONCURRENCY,
    "num_api_generation_timeouts": _RETRIES,
    "num_api_connection_errors": _RETRIES,
    "num_rate_limit_errors": _RETRIES,
    "do_not_load_checkpoint": "a checkpoint is loaded only where set_state is called",
    "test_run": "use_dummy_api plays without a model",
}


class ExperimentSettings(Parameters):
    """How an experiment is run. Unknown fields are refused."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    run_id: str | None = None
    """Run in the run store under which fine-tune jobs are recorded. None: `run_name`."""
    logger: Annotated[logging.Logger | None, Field(exclude=True)] = None
    """The log to which groups report. None: the logger "nip.agents"."""
    device: str = "cpu"
    """Of tensors, which text has not."""
    wandb_run: Any = None
    """A run of Weights & Biases."""
    silence_wandb: bool = True
    """Keep Weights & Biases quiet."""
    ignore_cache: bool = False
    """Rebuild cached datasets."""
    num_rollout_samples: int = 10
    """Rollouts kept as samples."""
    rollout_sample_period: int = 1000
    """Iterations between samples."""
    checkpoint_period: int = 1000
    """Iterations between checkpoints."""
    num_dataset_threads: int = 8
    """Threads that read datasets."""
    num_rollout_workers: int = 4
    """Processes that play."""
    num_api_generation_timeouts: int = 100
    """Retries after a time-out."""
    num_api_connection_errors: int = 10
    """Retries after a lost connection."""
    num_rate_limit_errors: int = 14
    """Retries after a rate limit."""
    do_not_load_checkpoint: bool = False
    """Start anew though there is a checkpoint."""
    test_run: bool = False
    """Keep nothing."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, instead in _MEANINGLESS.items():
            default, value = type(self).model_fields[name].default, getattr(self, name)
            if value != default:
                raise ValueError(
                    f"{name} is {value!r}, but means nothing here and must keep its default "
                    f"{default!r}: {instead}"
                )
        return self

    @property
    def log(self) -> logging.Logger:
        """The log to which groups report."""
        return self.logger or logging.getLogger("nip.agents")
