"""The options of an ART program for a training, and our server's words for them.

TrainOptions    the arguments of ART's `backend.train`, checked; those that the server lacks are
refused SftOptions      those of its supervised training
ModelOptions    the adapter and the trainer in a model's `_internal_config`
job_settings    both together -> the settings of a job, in the server's words
refuse_server_arguments   those of an inference server, which runs already

Defaults are ART's own (openpipe-art 0.5), except for `batch_size`: ART makes one step of each row
that it packs. An option that nothing here can do is accepted at its default only, so that none is
ever dropped in silence.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nip_base.wire import NipSettings
from nip_by_hand.fine_tuning.first_problem import first_problem
from nip_by_hand.fine_tuning.job_data import JobSettings, Setting
from nip_core.errors import SettingsError

DEFAULT_BATCH_SIZE = 8
_PPO_CLIP = 0.2
_CISPO_CLIP = (1.0, 4.0)
"""Bounds of ART's default loss. Within them it has the gradient of the server's clipped loss."""

_CANT = {
    "kl_ref_adapter_path": None,
    "importance_sampling_level": "token",
    "max_negative_advantage_importance_sampling_weight": None,
    "mask_prob_ratio": False,
    "kimi_k2_tau": None,
    "plot_tensors": False,
    "truncated_importance_sampling": None,
    "scale_learning_rate_by_reward_std_dev": False,
    "logprob_calculation_chunk_size": 1024,
    "num_trajectories_learning_rate_multiplier_power": 0.0,
    "save_checkpoint": True,
}
"""Options of ART that the server has no words for, at the value that means nothing is asked."""

_CANT_CONFIG: dict[str, dict[str, tuple[Any, ...]]] = {
    "init_args": {"fast_inference": (False,), "use_exact_model_name": (True, False)},
    "peft_args": {"bias": ("none",), "use_rslora": (False,), "modules_to_save": (None,)},
    "trainer_args": {"report_to": ("none",), "save_strategy": ("no",), "num_generations": (None,)},
}
"""The unread settings that may stand in a model's configuration, with the values that are alike
for every back-end."""

_DEFAULTS = {
    "use_lora": True,
    "lora_rank": 8,
    "lora_alpha": 16,
    "weight_decay": 0.1,
    "max_grad_norm": 0.1,
    "lr_scheduler": "constant",
}
"""Of a model's configuration, in the server's words."""

_Rate = Annotated[float, Field(ge=0, le=1)]
_Batch = Annotated[int, Field(ge=1, le=256)]

_Model = TypeVar("_Model", bound=BaseModel)


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainOptions(_Options):
    """ART's arguments of `train`. The last two are ours."""

    learning_rate: _Rate = 5e-6
    kl_penalty_coef: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Weight of the divergence from the weights that the step starts from."""
    kl_penalty_reference_step: Annotated[int, Field(ge=0)] | None = None
    """Only the step that is trained from; None means that one too."""
    ppo: bool = False
    epsilon: Annotated[float, Field(ge=0, le=1)] | None = None
    epsilon_high: Annotated[float, Field(ge=0, le=10)] | None = None
    advantage_balance: Annotated[float, Field(ge=-1, le=1)] = 0.0
    scale_rewards: bool = True
    precalculate_logprobs: bool = False
    """Leave the sampler's log-probabilities out; the server computes those of the start."""
    allow_training_without_logprobs: bool = False
    verbose: bool = False
    batch_size: _Batch | None = None
    """Conversations in an optimizer step. Default: the model's configuration, else 8."""
    n_epochs: Annotated[int, Field(ge=1, le=50)] | None = None
    """Passes over the groups. Default: the model's configuration, else 1."""

    @property
    def clip(self) -> tuple[float, float]:
        """Say how far below and above 1 the ratio of new to old probability counts."""
        low = _PPO_CLIP if self.ppo else _CISPO_CLIP[0]
        high = None if self.ppo else _CISPO_CLIP[1]
        low = low if self.epsilon is None else self.epsilon
        high = high if self.epsilon_high is None else self.epsilon_high
        return low, low if high is None else high


class SftOptions(_Options):
    """ART's TrainSFTConfig. A list of learning rates must be of one value."""

    learning_rate: _Rate = 5e-5
    batch_size: _Batch = 2


class _Part(BaseModel):
    """A part of a model's `_internal_config`: the settings that are read, and as extra the others.

    The values are ART's, of any type. They are checked as `ModelOptions`, in the server's words.
    """

    model_config = ConfigDict(extra="allow", frozen=True)


class _InitArgs(_Part):
    max_seq_length: Any = None
    load_in_8bit: Any = None
    load_in_4bit: Any = None
    full_finetuning: Any = False


class _PeftArgs(_Part):
    r: Any = None
    lora_alpha: Any = None
    lora_dropout: Any = None
    target_modules: Any = None
    max_seq_length: Any = None
    random_state: Any = None
    use_gradient_checkpointing: Any = None


class _TrainerArgs(_Part):
    num_train_epochs: Any = None
    weight_decay: Any = None
    max_grad_norm: Any = None
    lr_scheduler_type: Any = None
    warmup_ratio: Any = None
    optim: Any = None
    seed: Any = None
    gradient_checkpointing: Any = None
    per_device_train_batch_size: Any = DEFAULT_BATCH_SIZE
    gradient_accumulation_steps: Any = 1
    bf16: Any = False
    fp16: Any = False
    learning_rate: Any = None
    beta: Any = None


class ModelOptions(NipSettings):
    """The part of a model's `_internal_config` that is read, in the server's words."""

    model_config = ConfigDict(strict=False)

    lora_target_modules: list[str] | Literal["all-linear"] | None = None
    batch_size: _Batch | None = None
    n_epochs: Annotated[int, Field(ge=1, le=50)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None


def train_options(arguments: Mapping[str, Any]) -> TrainOptions:
    """The checked arguments of a training. Raises SettingsError naming an unsupported one."""
    remaining_arguments = dict(arguments)
    for name, default in _CANT.items():
        value = remaining_arguments.pop(name, default)
        if value != default:
            raise SettingsError(
                f"{name}: {value!r} can't be done by lm_server; leave it at {default!r}"
            )
    return _checked(TrainOptions, remaining_arguments, "train")


def is_train_option(name: str) -> bool:
    """True if an option is one of `train`, and not of a model's configuration."""
    return name in TrainOptions.model_fields or name in _CANT


def sft_options(arguments: Mapping[str, Any]) -> SftOptions:
    """The checked fields of a TrainSFTConfig. Raises SettingsError."""
    values = dict(arguments)
    rates = values.get("learning_rate")
    if isinstance(rates, list):
        if len(set(rates)) != 1:
            raise SettingsError(
                "learning_rate: a rate for each batch can't be done by lm_server; give one number"
            )
        values["learning_rate"] = rates[0]
    if values.get("batch_size") == "auto":
        del values["batch_size"]
    return _checked(SftOptions, values, "train_sft")


def model_options(config: Mapping[str, Any] | None) -> ModelOptions:
    """Read a model's `_internal_config`. Raises SettingsError for an unsupported setting."""
    # 1. Take the parts that are read; anything else that is said would be dropped, so is refused.
    config = dict(config or {})
    init = _InitArgs.model_validate(dict(config.pop("init_args", None) or {}))
    peft = _PeftArgs.model_validate(dict(config.pop("peft_args", None) or {}))
    trainer = _TrainerArgs.model_validate(dict(config.pop("trainer_args", None) or {}))
    refuse_server_arguments({"engine_args": config.pop("engine_args", None)})
    for name, value in config.items():
        if value:
            raise SettingsError(f"_internal_config.{name}: {value!r} means nothing to lm_server")
    # 2. Put the settings of each into the server's words.
    settings = {**_init_settings(init), **_peft_settings(peft), **_trainer_settings(trainer)}
    # 3. The remainder must ask for nothing.
    for part, arguments in (("init_args", init), ("peft_args", peft), ("trainer_args", trainer)):
        for name, value in (arguments.model_extra or {}).items():
            if value not in _CANT_CONFIG[part].get(name, ()):
                raise SettingsError(f"{part}.{name}: {value!r} can't be done by lm_server")
    if not settings.get("use_lora", True):
        for name in ("lora_rank", "lora_alpha"):
            if name in settings:
                raise SettingsError("init_args.full_finetuning: it leaves no adapter to shape")
    given_settings = {name: value for name, value in settings.items() if value is not None}
    return _checked(ModelOptions, {**_DEFAULTS, **given_settings}, "_internal_config")


def refuse_server_arguments(config: Mapping[str, Any] | None) -> None:
    """Raise SettingsError for arguments of an inference server: lm_server runs already."""
    for part, values in (config or {}).items():
        for name in values or {}:
            place = f"{part}.{name}" if isinstance(values, Mapping) else part
            raise SettingsError(
                f"{place}: the server runs already; give this to it where it is started "
                "(nip serve --option)"
            )


def job_settings(options: TrainOptions, model: ModelOptions, *, repeats: int = 1) -> JobSettings:
    """Hyper-parameters and the server's own settings of a job of method `trajectories`.

    `repeats`: how many times the data has each line. A step then takes as many lines more, so
    that it stays the same step.
    """
    low, high = options.clip
    batch = options.batch_size or model.batch_size or DEFAULT_BATCH_SIZE
    hyper_parameters: dict[str, Setting] = {
        "n_epochs": options.n_epochs or model.n_epochs or 1,
        "batch_size": min(256, batch * repeats),
        "clip_low": low,
        "clip_high": high,
        "kl_penalty": options.kl_penalty_coef,
        "advantage": "given",
    }
    return JobSettings(hyper_parameters, _nip_settings(options.learning_rate, model))


def sft_settings(options: SftOptions, model: ModelOptions, *, repeats: int = 1) -> JobSettings:
    """Hyper-parameters and own settings of a job of method `supervised`; see `job_settings`."""
    batch = min(256, options.batch_size * repeats)
    nip = _nip_settings(options.learning_rate, model)
    return JobSettings({"n_epochs": 1, "batch_size": batch}, nip)


def _nip_settings(learning_rate: float, model: ModelOptions) -> NipSettings:
    settings = model.model_dump(exclude={"batch_size", "n_epochs", "seed"}, exclude_unset=True)
    if not model.use_lora:
        for name in ("lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules"):
            settings.pop(name, None)
    return NipSettings.model_construct(learning_rate=learning_rate, **settings)


def _init_settings(arguments: _InitArgs) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    if arguments.max_seq_length is not None:
        settings["max_length"] = arguments.max_seq_length
    # Of both, four bits count.
    eight, four = arguments.load_in_8bit, arguments.load_in_4bit
    if eight is not None or four is not None:
        settings["quantization"] = "4bit" if four else "8bit" if eight else "none"
    if arguments.full_finetuning:
        settings["use_lora"] = False
    return settings


def _rename_given(arguments: _Part, names: Mapping[str, str]) -> dict[str, Setting]:
    """Give the program's arguments under our names; unset ones are left out."""
    values = arguments.model_dump(include=arguments.model_fields_set & names.keys())
    return {ours: values[theirs] for theirs, ours in names.items() if theirs in values}


def _peft_settings(arguments: _PeftArgs) -> dict[str, Setting]:
    names = {
        "r": "lora_rank",
        "lora_alpha": "lora_alpha",
        "lora_dropout": "lora_dropout",
        "target_modules": "lora_target_modules",
        "max_seq_length": "max_length",
        "random_state": "seed",
    }
    settings = _rename_given(arguments, names)
    if "use_gradient_checkpointing" in arguments.model_fields_set:
        settings["gradient_checkpointing"] = bool(arguments.use_gradient_checkpointing)
    return settings


def _trainer_settings(arguments: _TrainerArgs) -> dict[str, Setting]:
    names = {
        "num_train_epochs": "n_epochs",
        "weight_decay": "weight_decay",
        "max_grad_norm": "max_grad_norm",
        "lr_scheduler_type": "lr_scheduler",
        "warmup_ratio": "warmup_ratio",
        "optim": "optimizer",
        "seed": "seed",
        "gradient_checkpointing": "gradient_checkpointing",
    }
    settings = _rename_given(arguments, names)
    for name in ("lr_scheduler", "optimizer"):  # ART has enumerations of both
        if name in settings:
            settings[name] = getattr(settings[name], "value", settings[name])
    # One step of an optimizer takes several batches.
    if arguments.model_fields_set & {"per_device_train_batch_size", "gradient_accumulation_steps"}:
        each, steps = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
        settings["batch_size"] = each * steps
    for is_asked, precision in ((arguments.bf16, "bfloat16"), (arguments.fp16, "float16")):
        if is_asked:
            settings["precision"] = precision
    for name in ("learning_rate", "beta"):
        if name in arguments.model_fields_set:
            raise SettingsError(
                f"trainer_args.{name}: ART gives it with each training; "
                f"pass {'kl_penalty_coef' if name == 'beta' else name} to train()"
            )
    return settings


def _checked(kind: type[_Model], values: Mapping[str, Any], place: str) -> _Model:
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first = first_problem(error)
        if first.kind == "extra_forbidden":
            message = f"{place}: there is no option {first.field!r}"
        else:
            message = f"{place}: {first.field}: {first.message} (got {first.got!r})"
        raise SettingsError(message) from None
