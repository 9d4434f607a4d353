"""From the request of a job to its training, or a refusal with the parameter's name.

resolve_request  request, base models, models -> Plan
name_param       a client's name of a setting that a training process names

The limits of the engine and the device (`TrainingPlace`) are compared here too, so that a job
that can't work is refused when it is created, not when it runs.
"""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, TypedDict

from nip_base import wire
from nip_base.api_errors import ApiError, model_not_found, wrong_value
from nip_base.formats.bounds import parse_json
from nip_base.manifest import ModelManifest
from nip_base.spec import name_engines
from nip_base.wire import (
    CreateJobRequest,
    DpoHyperparameters,
    EffectiveSettings,
    Hyperparameters,
    NipSettings,
    TrajectoriesHyperparameters,
)
from nip_lm_server.serving.training_place import TrainingPlace
from nip_lm_server.state.models import ModelStore
from nip_lm_server.state.rows import ModelRow

if TYPE_CHECKING:
    from nip_lm_server.serving.pool import EnginePool

ADAPTER_CONFIG = "adapter_config.json"
_EIGHT_BIT = ("adamw_8bit", "paged_adamw_8bit")


@dataclass(frozen=True)
class JobPlan:
    """The plan of a job's training."""

    method: str
    base_model: str  # the job trains its weights, or an adapter over them
    named_after: str  # the base model of the configuration that `base_model` comes from
    parent: str | None  # the model that must stay for as long as the new one does
    settings: EffectiveSettings
    note: str | None  # a note about the engine, for the user who creates the job


@dataclass(frozen=True)
class _Shape:
    """An adapter's shape, by the names of settings; None: not set, or there is no adapter."""

    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_dropout: float | None = None
    lora_target_modules: str | list[str] | None = None


_LORA = tuple(field.name for field in fields(_Shape))


class _MethodSettings(TypedDict, total=False):
    beta: float
    dpo_reference: Literal["start", "base"]
    dpo_sft_weight: float
    dpo_label_smoothing: float | None
    clip_low: float
    clip_high: float
    kl_penalty: float
    advantage: Literal["given", "group", "group_std"] | None


@dataclass(frozen=True)
class _Start:
    start_from: Literal["base", "continue", "stack"]
    base_model: str
    parent: ModelRow | None  # an adapter, or a base model that was trained here


def resolve_request(request: CreateJobRequest, pool: "EnginePool", models: ModelStore) -> JobPlan:
    """Fill in every default.

    Raises ApiError 400 for an impossible training, 503 if the engine of the base model has not run
    yet, because it tells its limits only then.
    """
    method, hyper = _choose_method(request)
    nip = request.nip
    start = _find_start(request, pool, models)
    place = pool.training_place(start.base_model)
    _check_trains(place)
    _check_applies(nip, method, start)
    _check_device(nip, place, start)
    _check_max_length(nip, place)
    shape, result = _settle_shape(nip, start, place, models)
    multiplier = hyper.learning_rate_multiplier or 1.0
    rate = nip.learning_rate
    if rate is None:
        rate = wire.DEFAULT_LEARNING_RATES[method]
        rate *= 1.0 if nip.use_lora else wire.FULL_TRAINING_FACTOR
    settings = EffectiveSettings(
        **{name: getattr(nip, name) for name in wire.TrainerSettings.model_fields},
        **vars(shape),
        **_settle_method(method, hyper, nip),
        n_epochs=hyper.n_epochs or wire.DEFAULT_N_EPOCHS,
        batch_size=hyper.batch_size or wire.DEFAULT_BATCH_SIZE,
        learning_rate_multiplier=multiplier,
        learning_rate=rate * multiplier,
        max_length=nip.max_length or place.max_model_len,
        start_from=start.start_from,
        result=result,
    )
    return JobPlan(
        method=method,
        base_model=start.base_model,
        named_after=_find_configured_base(start.base_model, models),
        parent=start.parent.name if start.parent is not None else None,
        settings=settings,
        note=_write_note(settings, start.base_model, pool.base(start.base_model).wanted),
    )


def name_param(method: str, setting: str | None) -> str | None:
    """Return the name in a request of the training process's `setting`."""
    if setting is None:
        return None
    name = setting.removeprefix("hyperparameters.")
    if name in wire.METHOD_HYPERPARAMETERS[method].model_fields:
        return f"method.{method}.hyperparameters.{name}"
    return f"nip.{name}" if name in NipSettings.model_fields else setting


def _write_note(settings: EffectiveSettings, base_model: str, state: str) -> str | None:
    if settings.result == "base":
        reason = (
            "The adapters together have a higher rank than the engine takes, so they are merged"
            if settings.use_lora
            else "Every weight is trained"
        )
        return (
            f"{reason}: the job makes a new base model, for which the engine is started anew. "
            f"Where the server holds one at a time, {base_model!r} then comes back when it is "
            "asked for"
        )
    if state != "running":
        return (
            f"The engine of {base_model!r} is {state}: it is started when the new adapter is "
            "published, and a base model that is served in its place is stopped"
        )
    return None


# The method


def _choose_method(request: CreateJobRequest) -> tuple[str, Hyperparameters]:
    """The method's type, and its hyperparameters from either place in the request."""
    method = request.method
    if method is None:
        return "supervised", request.hyperparameters or Hyperparameters()
    method_names = ", ".join(wire.METHODS)
    if method.type == "reinforcement":
        raise ApiError(
            400,
            f"Method 'reinforcement' is not supported: use one of {method_names}.",
            code="unsupported_method",
            param="method.type",
        )
    if method.type not in wire.METHODS:
        raise _invalid("method.type", f"got {method.type!r}, expected one of {method_names}")
    for other_method in (*wire.METHODS, "reinforcement"):
        if other_method != method.type and getattr(method, other_method) is not None:
            raise _invalid(f"method.{other_method}", f"the method's type is {method.type!r}")
    block = getattr(method, method.type)
    hyper: Hyperparameters | None = None if block is None else block.hyperparameters
    if hyper is not None and request.hyperparameters is not None:
        raise _invalid(
            "hyperparameters", f"give them here or in 'method.{method.type}', not in both"
        )
    if hyper is None:
        old = request.hyperparameters or Hyperparameters()
        hyper = wire.METHOD_HYPERPARAMETERS[method.type](**old.model_dump())
    return method.type, hyper


def _settle_method(method: str, hyper: Hyperparameters, nip: NipSettings) -> _MethodSettings:
    if isinstance(hyper, DpoHyperparameters):
        return {
            "beta": wire.DEFAULT_BETA if hyper.beta is None else hyper.beta,
            "dpo_reference": nip.dpo_reference,
            "dpo_sft_weight": nip.dpo_sft_weight,
            "dpo_label_smoothing": nip.dpo_label_smoothing,
        }
    if isinstance(hyper, TrajectoriesHyperparameters):
        low = wire.DEFAULT_CLIP if hyper.clip_low is None else hyper.clip_low
        penalty = hyper.kl_penalty
        return {
            "clip_low": low,
            "clip_high": low if hyper.clip_high is None else hyper.clip_high,
            "kl_penalty": wire.DEFAULT_KL_PENALTY if penalty is None else penalty,
            "advantage": hyper.advantage,
        }
    return {}


# The start of the training


def _list_names(pool: "EnginePool", models: ModelStore) -> list[str]:
    """Names that a job may begin with: base models, then models made of them, newest first."""
    return [*pool.base_models(), *(row.name for row in reversed(models.list_rows()))]


def _find_start(request: CreateJobRequest, pool: "EnginePool", models: ModelStore) -> _Start:
    wanted_start, name = request.nip.start_from, request.model
    row = models.get_row(name)
    if row is None or row.kind == "base":
        if name not in pool.base_models():
            raise model_not_found(name, _list_names(pool, models), status=400)
        if wanted_start == "stack" or (wanted_start == "continue" and row is None):
            raise _invalid(
                "nip.start_from",
                f"it is {wanted_start!r}, but {name!r} is a base model: use 'base'",
            )
        return _Start("base", name, row)
    if row.problem is not None:
        raise ApiError(
            400,
            f"The model {name!r} can't be trained on: {row.problem}",
            code="model_not_served",
            param="model",
        )
    if row.base_model not in pool.base_models():
        raise model_not_found(name, _list_names(pool, models), status=400)
    start_from = wanted_start or "continue"
    if start_from == "stack" and not request.nip.use_lora:
        raise _invalid(
            "nip.start_from",
            "'stack' makes a new adapter, but 'nip.use_lora' is false: use 'continue' or 'base'",
        )
    return _Start(start_from, row.base_model, None if start_from == "base" else row)


def _find_configured_base(base_model: str, models: ModelStore) -> str:
    """Return the base model of the configuration that a base model trained here comes from."""
    names: set[str] = set()
    while (row := models.get_row(base_model)) is not None and base_model not in names:
        names.add(base_model)
        base_model = row.base_model
    return base_model


# Settings against the job and its device


def _check_trains(place: TrainingPlace) -> None:
    if not place.capabilities.trains:
        raise wrong_value(
            "model",
            f"the engine of {place.base_model!r} loads no adapters: train a model of --engine "
            f"{name_engines('trains')}",
        )


def _check_applies(nip: NipSettings, method: str, start: _Start) -> None:
    """Refuse settings without a meaning for this job."""
    names = {name for name in nip.model_fields_set if getattr(nip, name) is not None}
    if not nip.use_lora:
        for name in _LORA:
            if name in names:
                raise _invalid(f"nip.{name}", "'nip.use_lora' is false: there is no adapter")
    for name in wire.DPO_SETTINGS:
        if name in names and method != "dpo":
            raise _invalid(f"nip.{name}", f"it belongs to method 'dpo', not {method!r}")
    if "stack_overflow" in names and start.start_from != "stack":
        raise _invalid(
            "nip.stack_overflow",
            f"it belongs to 'nip.start_from' 'stack', which is {start.start_from!r} here",
        )
    if nip.packing and method != "supervised":
        raise _invalid("nip.packing", f"it belongs to method 'supervised', not {method!r}")


def _check_device(nip: NipSettings, place: TrainingPlace, start: _Start) -> None:
    """Refuse settings that this device, or a training with the other settings, can't have."""
    if not place.device.startswith("cuda"):
        wrong = {
            "quantization": nip.quantization != "none",
            "optimizer": nip.optimizer in _EIGHT_BIT,
            "precision": nip.precision == "float16",
            "attention": nip.attention in ("flash_attention_2", "flex_attention"),
        }
        for name, is_wrong in wrong.items():
            if is_wrong:
                raise _invalid(
                    f"nip.{name}",
                    f"{getattr(nip, name)!r} needs a CUDA device, and jobs of "
                    f"{place.base_model!r} are trained on {place.device!r}",
                )
    if nip.quantization != "none":
        if not nip.use_lora:
            raise _invalid("nip.quantization", "quantized weights can't be trained: use LoRA")
        if start.start_from == "stack":
            raise _invalid(
                "nip.quantization",
                "an adapter can't be stacked upon over a quantized base: use 'none', or "
                "'nip.start_from' 'continue'",
            )


def _check_max_length(nip: NipSettings, place: TrainingPlace) -> None:
    if nip.max_length is not None and nip.max_length > place.max_model_len:
        raise _invalid(
            "nip.max_length",
            f"got {nip.max_length}, the engine of {place.base_model!r} takes at most "
            f"{place.max_model_len} tokens",
        )


def _check_targets(targets: str | list[str] | None) -> None:
    names = targets if isinstance(targets, list) else []
    if targets not in (None, wire.DEFAULT_TARGET_MODULES) and not (names and all(names)):
        raise _invalid(
            "nip.lora_target_modules",
            f"got {targets!r}, expected a list of names, or {wire.DEFAULT_TARGET_MODULES}",
        )


def _settle_shape(
    nip: NipSettings, start: _Start, place: TrainingPlace, models: ModelStore
) -> tuple[_Shape, Literal["adapter", "base"]]:
    """The new adapter's shape, and the kind of the new model."""
    if not nip.use_lora:
        return _Shape(), "base"
    _check_targets(nip.lora_target_modules)
    shape = _Shape(**{name: getattr(nip, name) for name in _LORA})
    inherited, parent = _Shape(), start.parent
    if parent is not None and start.start_from != "base":
        inherited = _read_adapter_shape(parent, models)
    if parent is not None and start.start_from == "continue":
        shape = _continue_shape(shape, inherited, parent.name)
    largest = place.capabilities.max_lora_rank
    rank = shape.lora_rank or min(wire.DEFAULT_LORA_RANK, largest)
    if rank > largest:
        raise _invalid(
            "nip.lora_rank",
            f"got {rank}, the engine of {place.base_model!r} takes at most {largest}",
        )
    dropout, targets = shape.lora_dropout, shape.lora_target_modules
    full = _Shape(
        lora_rank=rank,
        lora_alpha=shape.lora_alpha or 2.0 * rank,
        lora_dropout=wire.DEFAULT_LORA_DROPOUT if dropout is None else dropout,
        lora_target_modules=wire.DEFAULT_TARGET_MODULES if targets is None else targets,
    )
    inherited_rank = inherited.lora_rank or 0
    if start.start_from != "stack" or rank + inherited_rank <= largest:
        return full, "adapter"
    if nip.stack_overflow == "merge":
        return full, "base"
    raise _invalid(
        "nip.stack_overflow",
        f"it is 'refuse', and rank {rank} over rank {inherited_rank} is more than the "
        f"{largest} that the engine of {place.base_model!r} takes",
    )


def _continue_shape(shape: _Shape, parent: _Shape, parent_name: str) -> _Shape:
    """Return the parent's shape, which stays. Raises ApiError 400 if `shape` has another value."""
    for name, value in vars(shape).items():
        inherited = getattr(parent, name)
        # Dropout is no part of the weights' shape, so it may change.
        if value is not None and value != inherited and name != "lora_dropout":
            raise _invalid(
                f"nip.{name}",
                f"it is {value!r}, but {parent_name!r} has {inherited!r}: "
                "continuing keeps the adapter's shape",
            )
    dropout = shape.lora_dropout
    return parent if dropout is None else replace(parent, lora_dropout=dropout)


def _read_adapter_shape(row: ModelRow, models: ModelStore) -> _Shape:
    """The shape of an adapter from its saved LoRA file, or, without one, from its settings."""
    manifest = models.manifest(row.digest)
    shape = _Shape(**{name: manifest.settings[name] for name in _LORA})
    shape = replace(shape, lora_rank=manifest.lora_rank or shape.lora_rank)
    path = models.path(row.digest) / ADAPTER_CONFIG
    if path.exists():
        config = parse_json(path.read_text())
        shape = replace(shape, lora_rank=config["r"], lora_alpha=config["lora_alpha"])
    return shape


def sum_ranks(plan_settings: EffectiveSettings, parent: ModelManifest | None) -> int | None:
    """Return the rank of the job's new adapter, for its manifest; None for a base model.

    `parent` is the manifest of the adapter that the job continues or stacks upon.
    """
    if plan_settings.result == "base" or plan_settings.lora_rank is None:
        return None
    parent_rank = 0
    if plan_settings.start_from == "stack" and parent is not None:
        parent_rank = parent.rank
    return plan_settings.lora_rank + parent_rank


def _invalid(param: str, message: str) -> ApiError:
    return ApiError(400, f"Invalid '{param}': {message}.", code="invalid_value", param=param)
