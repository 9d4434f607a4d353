"""How an experiment is run by hand, apart from the game: `ExperimentSettings`.

Every field of the original may be given. Those that steer things which this library does not do,
or does by a setting of its own, are refused unless they have their default, and are not kept.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from nip_core.parameters.basis.base import Parameters

_CONCURRENCY = "rollouts.concurrency in the hyper-parameters bounds the calls in flight"
_RETRIES = "rollouts.transport_retries in the hyper-parameters bounds retries of every kind"
_MEANINGLESS: Mapping[str, tuple[Any, str]] = {
    "device": (
        "cpu",
        "where models run is decided by lm_server.options and lm_server.training_device",
    ),
    "wandb_run": (None, "nothing is sent to Weights & Biases"),
    "silence_wandb": (True, "nothing is sent to Weights & Biases"),
    "ignore_cache": (False, "datasets are not cached"),
    "num_rollout_samples": (10, "every rollout is kept"),
    "rollout_sample_period": (1000, "every rollout is kept"),
    "checkpoint_period": (1000, "every generation is kept as it comes"),
    "num_dataset_threads": (8, "datasets are read in one thread"),
    "num_rollout_workers": (4, _CONCURRENCY),
    "num_api_generation_timeouts": (100, _RETRIES),
    "num_api_connection_errors": (10, _RETRIES),
    "num_rate_limit_errors": (14, _RETRIES),
    "do_not_load_checkpoint": (False, "a checkpoint is loaded only where set_state is called"),
    "test_run": (False, "use_dummy_api plays without a model"),
}
"""Fields of the original that steer nothing here, with their defaults and substitutes."""


class ExperimentSettings(Parameters):
    """How an experiment is run. Unknown fields are refused."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    run_id: str | None = None
    """Run in the run store under which fine-tune jobs are recorded. None: `run_name`."""
    logger: Annotated[logging.Logger | None, Field(exclude=True)] = None
    """The log to which groups report. None: the logger "nip.agents"."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_meaningless(cls, values: Any) -> Any:
        values = dict(values)
        for name, (default, instead) in _MEANINGLESS.items():
            value = values.pop(name, default)
            if value != default:
                raise ValueError(
                    f"{name} is {value!r}, but means nothing here and must keep its default "
                    f"{default!r}: {instead}"
                )
        return values

    @property
    def log(self) -> logging.Logger:
        """Give the log for reports of groups."""
        return self.logger or logging.getLogger("nip.agents")
