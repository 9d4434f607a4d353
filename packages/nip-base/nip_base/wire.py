"""Wire types of the fine-tuning API: requests of clients, and the objects they get back.

CreateJobRequest   body of POST /v1/fine_tuning/jobs; unknown keys are refused by name
NipSettings        the one extension object in it (``nip``, by ``extra_body`` of a stock client)
EffectiveSettings  what a job really trains with, every "auto" and default filled in
Page               a page of a list, as several routes answer it; PageWithEnds names its ends

Requests for generation are checked by hand in `generation_parameters`, the hot path.
"""

import contextlib
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from nip_base.api_errors import (
    ApiError,
    abbreviate,
    missing_parameter,
    unsupported_value,
    wrong_value,
)

ACTIVE_STATUSES = ("validating_files", "queued", "running")
ENDED_STATUSES = ("succeeded", "failed", "cancelled")
"""Statuses of a job that goes on and of one that is over, here as at OpenAI. A status that is in
neither may be one to come, and is no end."""
JOIN_HEADER = "Nip-Generation"
"""Names the generation of a chat, so that the request sent again joins it (`api.joined`)."""
ORGANIZATION_ID = "org-local"

DEFAULT_N_EPOCHS = 3
DEFAULT_BATCH_SIZE = 8
DEFAULT_LEARNING_RATES = {"supervised": 2e-4, "dpo": 5e-5, "trajectories": 1e-4}
"""Peak rates with LoRA. Training every weight takes FULL_TRAINING_FACTOR of that."""
FULL_TRAINING_FACTOR = 0.1
DEFAULT_LORA_RANK = 16
DEFAULT_LORA_DROPOUT = 0.0
DEFAULT_TARGET_MODULES = "all-linear"
DEFAULT_BETA = 0.1
DEFAULT_CLIP = 0.2
DEFAULT_KL_PENALTY = 0.0


def _auto_is_none(value: Any) -> Any:
    return None if value == "auto" else value


_Auto = BeforeValidator(_auto_is_none)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_sent(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: item for name, item in value.items() if item is not None}


class Hyperparameters(_Strict):
    """OpenAI's three settings. None and "auto" mean the server's default."""

    n_epochs: Annotated[Annotated[int, Field(ge=1, le=50)] | None, _Auto] = None
    batch_size: Annotated[Annotated[int, Field(ge=1, le=256)] | None, _Auto] = None
    learning_rate_multiplier: Annotated[Annotated[float, Field(gt=0, le=1000)] | None, _Auto] = None


class DpoHyperparameters(Hyperparameters):
    """The three, and how far the policy may move from the reference."""

    beta: Annotated[Annotated[float, Field(gt=0, le=2)] | None, _Auto] = None


class TrajectoriesHyperparameters(Hyperparameters):
    """The three, and the settings of the clipped policy gradient. See `training/rl.py`."""

    clip_low: float | None = Field(None, ge=0, le=1)
    """The ratio of new to old probability counts down to 1 - clip_low."""
    clip_high: float | None = Field(None, ge=0, le=10)
    """... and up to 1 + clip_high. Default: clip_low."""
    kl_penalty: float | None = Field(None, ge=0, le=10)
    """Weight of the divergence (k3 estimate) from where the training starts. Default: 0."""
    advantage: Literal["given", "group", "group_std"] | None = None
    """The row's own `advantage`; the reward less its group's mean; the same over the group's
    standard deviation. Default: "given" if every row has one, else "group_std"."""


_Hyperparameters = TypeVar("_Hyperparameters", bound=Hyperparameters)


class MethodSettings(_Strict, Generic[_Hyperparameters]):
    """Settings of one method."""

    hyperparameters: _Hyperparameters | None = None


METHODS = ("supervised", "dpo", "trajectories")


class Method(_Strict):
    """The training method. `jobs.settings` knows the types."""

    type: str
    supervised: MethodSettings[Hyperparameters] | None = None
    dpo: MethodSettings[DpoHyperparameters] | None = None
    trajectories: MethodSettings[TrajectoriesHyperparameters] | None = None
    reinforcement: Any = None
    """Of OpenAI's; parsed so that its type can be refused as unsupported."""


class TrainerSettings(BaseModel):
    """Training settings with one meaning, and one default, in a request and in a training alike."""

    use_lora: bool = True
    """False trains every weight and makes a new base model, for which the engine is restarted."""
    warmup_ratio: float = Field(0.0, ge=0, le=1)
    lr_scheduler: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "linear"
    weight_decay: float = Field(0.0, ge=0, le=1)
    max_grad_norm: float = Field(1.0, gt=0, le=1000)
    """Gradients with a larger norm are scaled down to it, in every step of every method."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """"auto": bfloat16 on CUDA, float32 elsewhere. LoRA weights are float32 in any case."""
    quantization: Literal["none", "8bit", "4bit"] = "none"
    """Of the frozen base model while training, by bitsandbytes; CUDA only."""
    optimizer: Literal["auto", "adamw_torch", "adamw_8bit", "paged_adamw_8bit", "sgd"] = "auto"
    """"auto": adamw_torch (fused on CUDA)."""
    gradient_checkpointing: bool | None = None
    """Compute activations again in the backward pass instead of keeping them. Default: where they
    don't fit into the device's memory."""
    tokens_per_pass: int | None = Field(None, ge=1)
    """Most tokens that go through the model at a time, padding counted, at least one example; a
    step of more is several passes whose gradients add up to its own. Default: by the device's
    memory, at most 32,768."""
    attention: Literal["eager", "sdpa", "flash_attention_2", "flex_attention"] | None = None
    """How attention is computed in training. Default: as transformers chooses, which is sdpa for
    most models. The last two need CUDA, flash_attention_2 its package."""
    packing: bool | None = None
    """Several examples to a row, without seeing each other. Default: on CUDA, with an attention
    that gains by it (flash or flex); `supervised` only."""
    checkpoint_steps: int | None = Field(None, ge=1)
    """Optimizer steps between checkpoints. Default: a tenth of the steps, but not more often than
    every 30 s, nor than 20 times as long as the last one took."""


class NipSettings(_Strict, TrainerSettings):
    """Training settings unknown to the OpenAI API."""

    learning_rate: float | None = Field(None, ge=0, le=1)
    """Peak rate before `learning_rate_multiplier`. 0 trains nothing, on purpose."""
    lora_rank: int | None = Field(None, ge=1, le=512)
    lora_alpha: float | None = Field(None, gt=0, le=4096)
    """Default: twice the rank."""
    lora_dropout: float | None = Field(None, ge=0, lt=1)
    lora_target_modules: str | list[str] | None = None
    """Names of linear layers, or "all-linear"."""
    max_length: int | None = Field(None, ge=8)
    """Longest example in tokens; what the trainer does with longer ones is its rule. Default:
    the engine's longest prompt plus completion."""
    start_from: Literal["base", "continue", "stack"] | None = None
    """Where training starts if `model` is an adapter: its base model, a copy of that adapter, or a
    new adapter over the base with that adapter. Default: "continue" for an adapter, "base" for a
    base model. A fine-tune that is a base model is one: what is trained starts from its weights."""
    stack_overflow: Literal["merge", "refuse"] = "merge"
    """Stacking adds ranks. Beyond the engine's largest rank: everything is merged into a new base
    model, or the job is refused."""
    dpo_reference: Literal["start", "base"] = "start"
    """What `dpo` compares the policy with: what training starts from, or the base model."""
    dpo_sft_weight: float = Field(0.0, ge=0, le=100)
    """Weight of imitating the preferred answers beside preferring them (mean loss per token)."""
    dpo_label_smoothing: float | None = Field(None, ge=0, lt=0.5)
    """Share of pairs taken to be the wrong way round, for which the loss is corrected. Default: 0.
    """


DPO_SETTINGS = ("dpo_reference", "dpo_sft_weight", "dpo_label_smoothing")
"""Those of `NipSettings` that belong to method `dpo`, and are refused with another one."""

METHOD_HYPERPARAMETERS: dict[str, type[Hyperparameters]] = {
    "supervised": Hyperparameters,
    "dpo": DpoHyperparameters,
    "trajectories": TrajectoriesHyperparameters,
}


class CreateJobRequest(_Strict):
    """Body of POST /v1/fine_tuning/jobs."""

    model: str = Field(min_length=1)
    training_file: str = Field(min_length=1)
    validation_file: str | None = None
    suffix: str | None = Field(None, min_length=1, max_length=64)
    """Any text; `models.adapter_name` makes a part of a name of it."""
    seed: int | None = Field(None, ge=0, le=2**31 - 1)
    method: Method | None = None
    hyperparameters: Hyperparameters | None = None
    """OpenAI's old place for them, for any method; refused when `method` gives some too."""
    integrations: list[Any] | None = Field(None, max_length=0)
    metadata: (
        dict[
            Annotated[str, Field(max_length=64)],
            Annotated[str, Field(max_length=512)],
        ]
        | None
    ) = Field(None, max_length=16)
    nip: NipSettings = NipSettings()


class JobHyperparameters(TypedDict):
    """OpenAI's three settings as a job shows them, every default filled in."""

    n_epochs: int
    batch_size: int
    learning_rate_multiplier: float


MethodHyperparameters = dict[str, float | str | None]
"""A method's settings as a job shows them: numbers, and the word that says how rewards count."""


class EffectiveSettings(TrainerSettings):
    """A job's settings of training, every default filled in; a job's row, file and trainer hold it.

    `learning_rate` is the peak rate with the multiplier applied. LoRA's settings are null without
    LoRA, and those of other methods than the job's are null.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_epochs: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    """Sequences per optimizer step."""
    learning_rate_multiplier: float
    learning_rate: float = Field(ge=0)
    lora_rank: int | None = Field(ge=1)
    lora_alpha: float | None = Field(gt=0)
    lora_dropout: float | None = Field(ge=0, lt=1)
    lora_target_modules: str | list[str] | None
    """Names of linear layers; "all-linear" means all but the output layer."""
    max_length: int = Field(ge=2)
    """Longest sequence in tokens; longer ones are an error."""
    start_from: Literal["base", "continue", "stack"]
    result: Literal["adapter", "base"] = "adapter"
    """What the training makes: an adapter, or (full training, a stack that is too high) a base."""
    beta: float | None = Field(None, gt=0)
    dpo_reference: Literal["start", "base"] | None = None
    dpo_sft_weight: float | None = Field(None, ge=0)
    dpo_label_smoothing: float | None = Field(None, ge=0, lt=0.5)
    clip_low: float | None = Field(None, ge=0, le=1)
    clip_high: float | None = Field(None, ge=0)
    kl_penalty: float | None = Field(None, ge=0)
    advantage: Literal["given", "group", "group_std"] | None = None
    """None: by the rows, see `TrajectoriesHyperparameters`."""

    @field_validator("lora_target_modules")
    @classmethod
    def _names_or_all(cls, targets: str | list[str] | None) -> str | list[str] | None:
        # PEFT would take any other string as a pattern.
        if targets == [] or (isinstance(targets, str) and targets != DEFAULT_TARGET_MODULES):
            raise ValueError("expected a list of names, or all-linear")
        return targets

    @model_validator(mode="after")
    def _fit_each_other(self) -> "EffectiveSettings":
        if not self.use_lora and self.result != "base":
            raise ValueError('without LoRA a base is trained: result must be "base"')
        lora = (self.lora_rank, self.lora_alpha, self.lora_dropout, self.lora_target_modules)
        if self.use_lora and None in lora:
            raise ValueError("with LoRA its rank, alpha, dropout and target modules are needed")
        return self

    @model_serializer(mode="wrap")
    def _leave_out_what_came_later(self, serialize: SerializerFunctionWrapHandler) -> Any:
        # A job without the setting reads, and its model has the digest, as in earlier versions.
        settings = serialize(self)
        for name in ("tokens_per_pass", "attention", "dpo_label_smoothing"):
            if name in settings and settings[name] is None:
                del settings[name]
        return settings

    def openai_hyperparameters(self) -> JobHyperparameters:
        """Show the deprecated `hyperparameters` of a job."""
        return {
            "n_epochs": self.n_epochs,
            "batch_size": self.batch_size,
            "learning_rate_multiplier": self.learning_rate_multiplier,
        }

    def method_hyperparameters(self, method: str) -> MethodHyperparameters:
        """Show `method.<type>.hyperparameters` of a job, which are those of its method."""
        method_fields = METHOD_HYPERPARAMETERS[method].model_fields
        return self.model_dump(include=set(method_fields))

    def nip_settings(self) -> dict[str, Any]:
        """The rest. `learning_rate` is as asked, `effective_learning_rate` is the rate of training,
        `result_kind` is `result` (in a job, `result` has the figures of the training).
        """
        settings = self.model_dump(
            exclude={"n_epochs", "batch_size", "learning_rate_multiplier", "learning_rate"}
        )
        settings["learning_rate"] = self.learning_rate / self.learning_rate_multiplier
        settings["effective_learning_rate"] = self.learning_rate
        settings["result_kind"] = settings.pop("result")
        return settings


_Model = TypeVar("_Model", bound=BaseModel)


class _Identified(TypedDict):
    id: str


_Object = TypeVar("_Object", bound=_Identified)


class Page(TypedDict, Generic[_Object]):
    """A page of a list."""

    object: str
    data: list[_Object]
    has_more: bool


class PageWithEnds(Page[_Object]):
    """A page with the ids of its first and last object."""

    first_id: str | None
    last_id: str | None


def parse_object(model: type[_Model], plain: dict[str, Any]) -> tuple[_Model, dict[str, Any]]:
    """Check a JSON object. Returns the model, and the object without its nulls: null means not
    sent. Raises ApiError 400.
    """
    try:
        return model.model_validate(plain), _without_nulls(plain)
    except ValidationError as error:
        raise _request_error(error, plain) from None


def _without_nulls(plain: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(value) if isinstance(value, dict) else value
        for name, value in plain.items()
        if value is not None
    }


def _request_error(error: ValidationError, plain: dict[str, Any]) -> ApiError:
    # One error is enough to mend; the others may follow from it.
    first = error.errors(include_url=False)[0]
    param = _param(first["loc"], plain, missing=first["type"] == "missing")
    if param == "integrations":
        return unsupported_value(param, "integrations are not supported")
    if first["type"] == "extra_forbidden":
        return ApiError(
            400, f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param
        )
    if first["type"] == "missing":
        return missing_parameter(str(param))
    value = abbreviate(first.get("input"))
    return wrong_value(param, f"Invalid '{param}': {first['msg']} (got {value}).")


def _param(location: tuple[int | str, ...], plain: Any, *, missing: bool) -> str | None:
    """Return the client's name of a place in its object.

    A part that is no key there is pydantic's: a branch of a union, or "[key]" for a key that is
    wrong itself, where the object is to be named.
    """
    # The client's own object decides which steps are its keys.
    path = []
    for step in location[:-1] if missing else location:
        with contextlib.suppress(KeyError, TypeError):
            plain = plain[step]
            path.append(str(step))
    last = str(location[-1])
    if missing:
        path.append(last)
    elif last == "[key]" and path[-1] != last:
        path.pop()
    return ".".join(path) or None


def list_object(data: list[_Object], has_more: bool) -> Page[_Object]:
    """Build a page."""
    return {
        "object": "list",
        "data": data,
        "has_more": has_more,
    }


def list_with_ends(
    data: list[_Object], has_more: bool, *, none: str | None
) -> PageWithEnds[_Object]:
    """Build a page with the ids of its ends, or `none` for both when it is empty."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (none, none)
    return {**list_object(data, has_more), "first_id": first, "last_id": last}
