"""Another run as the base of this one."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nip_core.parameters.basis.base import Parameters

RunName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")]


class BaseRunParameters(Parameters):
    """Another run in the same `run_store` whose models are used again."""

    base_run_type: Literal["none", "parameters", "rerun_tests"] = "none"
    """"parameters": begin with the models with which the base run ended, and go on with this run's
    own settings. "rerun_tests": only play tests, with the models of every iteration of the base
    run. "none": there is no base run."""
    run_id: RunName | None = None
    """The name of the base run: 1 to 41 lower-case letters, digits and dashes."""
    wandb_project: str | None = None
    """Keeps its default: the base run is one in `run_store`."""
    wandb_entity: str | None = None
    """Keeps its default: the base run is one in `run_store`."""
    rerun_tests_force_test_during_training_state: bool = True
    """Keeps its default: with rerun_tests the tests are always played."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.base_run_type != "none" and self.run_id is None:
            raise ValueError(f"run_id is missing; base_run_type {self.base_run_type!r} needs it")
        if self.base_run_type == "none" and self.run_id is not None:
            raise ValueError(
                "run_id has no effect with base_run_type 'none'; set that to 'parameters' or "
                "'rerun_tests', or leave run_id out"
            )
        return self
