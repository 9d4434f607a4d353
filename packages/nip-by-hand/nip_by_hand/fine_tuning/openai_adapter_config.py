"""The settings of the OpenAI trainer adapter, every one of them checked before anything is sent.

OpenAITrainerAdapterConfig   where is trained, from which model, how, and where its state lies
"""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypedDict
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    model_validator,
)

from nip_base.wire import METHOD_HYPERPARAMETERS, NipSettings
from nip_by_hand.fine_tuning.conversion import Method
from nip_by_hand.fine_tuning.first_problem import first_problem
from nip_by_hand.fine_tuning.interface import TrainerAdapterConfig
from nip_by_hand.fine_tuning.job_data import JobSettings, Setting
from nip_core.errors import SettingsError
from nip_core.parameters.basis.addresses import check_plain_address
from nip_core.redaction import read_key

_OPENAI_HOST = "api.openai.com"
_OPENAI_SETTLE_S = 60.0


class Integration(TypedDict):
    """A service that OpenAI tells of a job."""

    type: Literal["wandb"]
    wandb: dict[str, str]  # its project


class OpenAITrainerAdapterConfig(TrainerAdapterConfig):
    """Where and how is trained. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    base_url: Annotated[str, BeforeValidator(check_plain_address)]
    """Address of the API, like http://127.0.0.1:8000/v1; without a path, ``/v1`` is added."""
    model: Annotated[str, Field(min_length=1)]
    """Name of the model to start from."""
    state_dir: Annotated[str, Field(min_length=1)]
    """Directory of the submissions. Processes that share it know each other's."""
    method: Method = "supervised"
    """"supervised", "dpo", or on a server of nip "trajectories"."""
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    """n_epochs, batch_size, learning_rate_multiplier, for dpo beta; on a server of nip also the
    settings that its trajectories method and its ``nip`` object take: learning_rate, lora_rank ...
    Names and values are checked here."""
    reward_threshold: FiniteFloat | None = None
    """For supervised: trajectories with a smaller reward are not imitated. None: all are."""
    train_from: Literal["last_model", "model"] = "last_model"
    """Where a later submission of a run id starts: "last_model", with that of the last successful
    one, or "model", with `model` each time."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of every job."""
    wandb_project: Annotated[str, Field(min_length=1)] | None = None
    """Weights & Biases project to which OpenAI reports its jobs. None: none. OpenAI only."""
    server: Literal["auto", "nip", "openai"] = "auto"
    """Whether the server is an lm_server. "auto": it is asked."""
    api_key_variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Environment variable with the key. None: OPENAI_API_KEY for api.openai.com, else
    NIP_API_KEY."""
    settle_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """How long the server's lists may lag behind, in seconds, at least 0. None: 0 for a server of
    nip, else 60."""
    patience_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 300.0
    """How long to bear with a busy or silent server while submitting, in seconds, above 0."""
    deadline_s: Annotated[float, Field(gt=0)] = 24 * 3600.0
    """Longest life of a job for `wait_until_complete`, from submission, in seconds, above 0."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.reward_threshold is not None and self.method != "supervised":
            raise ValueError(f"reward_threshold: only for supervised, not for {self.method}")
        self.settings()
        if self.hyperparameters.get("advantage") == "given":
            raise ValueError("hyperparameters.advantage: trajectories carry none to be 'given'")
        return self

    def settings(self) -> JobSettings:
        """Sort the hyper-parameters into those of the method and those of the ``nip`` object.

        Their values stay as they were given. Raises ValueError for names that neither knows, and
        for values that the server would refuse.
        """
        method = METHOD_HYPERPARAMETERS[self.method]
        words = method.model_fields
        unknown = sorted({*self.hyperparameters} - {*words} - {*NipSettings.model_fields})
        if unknown:
            raise ValueError(
                f"hyperparameters: unknown for method {self.method}: {unknown}; known: "
                f"{sorted({*words, *NipSettings.model_fields})}"
            )
        settings = {name: v for name, v in self.hyperparameters.items() if name in words}
        own = {name: v for name, v in self.hyperparameters.items() if name not in words}
        _check_values(method, settings)
        _check_values(NipSettings, own)
        return JobSettings(settings, NipSettings.model_construct(**own))

    @property
    def advantage(self) -> Literal["group", "group_std"]:
        """The setting of the trajectories method, or its default."""
        return self.hyperparameters.get("advantage") or "group_std"

    @property
    def integrations(self) -> list[Integration]:
        """List the services to tell of the jobs, in the words of OpenAI's API."""
        project = self.wandb_project
        return [] if project is None else [Integration(type="wandb", wandb={"project": project})]

    @property
    def url(self) -> str:
        """The address with its path."""
        address = self.base_url.rstrip("/")
        return address if urlsplit(address).path else f"{address}/v1"

    def settle(self, *, is_nip: bool) -> float:
        """`settle_s`, or its default for the kind of server."""
        if self.settle_s is not None:
            return self.settle_s
        return 0.0 if is_nip else _OPENAI_SETTLE_S

    def key(self) -> str:
        """The key from the environment. Raises SettingsError if it is not set."""
        is_openai = urlsplit(self.base_url).hostname == _OPENAI_HOST
        variable = self.api_key_variable or ("OPENAI_API_KEY" if is_openai else "NIP_API_KEY")
        key = read_key(os.environ, variable)
        if not key:
            raise SettingsError(f"{self.url}: its key is expected in the environment: {variable}")
        return key


def _check_values(model: type[BaseModel], settings: Mapping[str, Setting]) -> None:
    """Raise ValueError for the first value outside the server's rules."""
    try:
        model.model_validate(dict(settings))
    except ValidationError as error:
        first = first_problem(error)
        value = settings.get(first.field)
        raise ValueError(
            f"hyperparameters.{first.field}: {first.message} (got {value!r})"
        ) from None
