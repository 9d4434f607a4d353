"""The start of a training: tokenizer, base model, and the adapter to be trained.

load_text       tokenizer, stop tokens and longest sequence of a job
Prepared        a job that its method has made ready for `runner`
load_start      the model to train, with its adapter, ready for a trainer
load_base       the base model alone, for training and probe
merge           add an adapter to a base model's weights, in float32
base_dtype      the precision of the base model on disk
read_config     the base model's configuration

The start of a job (`EffectiveSettings.start_from`, with `parent_adapter_path`):

base        the base model; a new adapter, or every weight, is trained
continue    a copy of the parent adapter is trained on
stack       the parent is merged into the base in memory, and a new adapter is trained over that
Without LoRA a parent is merged in either case, and every weight is trained.

Precision: the frozen base has the job's precision, LoRA's matrices have float32. If every weight is
trained, the weights have float32, and only the computation has a lower precision (mixed precision),
because small updates would vanish in it.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nip_base.formats.bounds import parse_json
from nip_base.wire import EffectiveSettings
from nip_lm_server.chats import chat_template
from nip_lm_server.engines.base import EngineError
from nip_lm_server.training.job import TrainingError, TrainingJob
from nip_lm_server.training.model.device import (
    choose_device,
    choose_precision,
    require_bitsandbytes,
)

if TYPE_CHECKING:
    from nip_lm_server.lora.rowwise_lora import LoraFiles


@dataclass(frozen=True)
class Text:
    """The tokenizer and its limits."""

    tokenizer: Any
    stop_tokens: frozenset[int]
    context: int | None  # the model's longest sequence; None where nothing says
    max_length: int  # longest sequence that is trained; longer ones are refused


@dataclass(frozen=True)
class Prepared:
    """A job made ready by its method: a trainer, or the model if there is nothing to train."""

    trainer: Any = None
    tokens_per_epoch: int = 0
    unchanged: Any = None


def load_text(job: TrainingJob) -> Text:
    """Load tokenizer and limits. Raises TrainingError if the base model can't be used."""
    try:
        tokenizer = chat_template.load_tokenizer(job.base_model_path, job.chat_template_kwargs)
    except (chat_template.ModelPathError, chat_template.ChatTemplateError) as error:
        raise TrainingError("base_model_unusable", str(error), "model") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    context = chat_template.context_length(tokenizer, read_config(job))
    return Text(
        tokenizer=tokenizer,
        stop_tokens=chat_template.stop_token_ids(tokenizer, _generation_config(job)),
        context=context,
        max_length=min(job.settings.max_length, context or 2**31),
    )


def load_start(job: TrainingJob) -> Any:
    """Load the model to train: a PeftModel, or without LoRA a plain one.

    A new adapter's initial values depend on the job's seed. Raises TrainingError if base, parent
    and settings don't fit each other or this machine.
    """
    import peft  # noqa: F401  # heavy modules come before the next line

    gc.freeze()  # modules stay for good; searching them for garbage takes longer than small jobs
    settings = job.settings
    parent = read_parent(job)
    # 1. A copy of the parent adapter is trained on.
    if parent is not None and settings.use_lora and settings.start_from == "continue":
        check_continued(parent, settings)
        return _continue_adapter(job, load_base(job), parent)
    # 2. Or the base is loaded, and a parent merged into it.
    if parent is not None and settings.quantization != "none":
        raise TrainingError(
            "quantization_unsupported",
            "a parent adapter can't be merged into a quantized base: train with quantization "
            '"none", or start from "continue"',
            "quantization",
        )
    model = load_base(job, trains_all=not settings.use_lora)
    if parent is not None:
        merge(model, parent)
    # 3. A new adapter over it is trained, or all of its weights.
    return _add_new_adapter(job, model) if settings.use_lora else model


def read_parent(job: TrainingJob) -> "LoraFiles | None":
    """Read the parent adapter's matrices; None if there is no parent.

    Raises TrainingError if it can't be read.
    """
    from nip_lm_server.lora.rowwise_lora import read_lora

    if job.parent_adapter_path is None or job.settings.start_from == "base":
        return None
    try:
        return read_lora(job.parent_adapter_path)
    except EngineError as error:
        raise TrainingError("parent_adapter_unreadable", str(error), "model") from error


def load_base(job: TrainingJob, *, trains_all: bool = False) -> Any:
    """Load the base model on the training device; in float32 if `trains_all` of its weights."""
    import torch

    settings = job.settings
    device = choose_device(job)
    precision = choose_precision(settings, device)
    dtype = torch.float32 if trains_all else getattr(torch, precision)
    options = _choose_attention(settings, device)
    if settings.quantization != "none":
        options.update(_configure_quantization(settings, device, precision))
    if device == "cuda":
        options["device_map"] = {"": torch.cuda.current_device()}
    try:
        model = chat_template.load_model(job.base_model_path, dtype, **options)
    except (OSError, ValueError) as error:
        raise TrainingError("base_model_unusable", str(error), "model") from error
    except ImportError as error:  # the attention of the settings needs a package
        raise TrainingError("attention_unsupported", str(error), "attention") from error
    if settings.attention == "flex_attention":
        _take_one_kernel(model)
    return model


def _take_one_kernel(model: Any) -> None:
    """Have flex attention take its kernel for training, for any length of a pass.

    For fewer than 128 tokens torch (2.11 and 2.13) chooses its kernel for decoding. It then finds
    none if the heads that share keys have more than 128 rows together: two heads and 65 tokens.
    """

    def choose(
        _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {"kernel_options": {"BACKEND": "TRITON"}, **kwargs}

    model.base_model.register_forward_pre_hook(choose, with_kwargs=True)


def _choose_attention(settings: EffectiveSettings, device: str) -> dict[str, Any]:
    name = settings.attention
    if name in ("flash_attention_2", "flex_attention") and device != "cuda":
        raise TrainingError(
            "gpu_required",
            f"attention {name!r} needs a CUDA device, and there is none",
            "attention",
        )
    return {} if name is None else {"attn_implementation": name}


def base_dtype(job: TrainingJob) -> Any:
    """Return the torch dtype of the base model on disk; float32 if its config has none."""
    import torch

    dtype = getattr(read_config(job), "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def merge(model: Any, files: "LoraFiles") -> None:
    """Add scale B A to the adapted weights, in place, computed in float32.

    Raises TrainingError if the adapter doesn't fit the model.
    """
    import torch

    from nip_lm_server.lora.rowwise_lora import is_transposed

    modules = check_fits(model, files)
    with torch.no_grad():
        for name, (down, up) in files.pairs.items():
            module = modules[name]
            delta = files.scale(name) * (up.float() @ down.float())
            delta = delta.T if is_transposed(module) else delta
            weight = module.weight
            weight.copy_((weight.float() + delta.to(weight.device)).to(weight.dtype))


def check_fits(model: Any, files: "LoraFiles") -> dict[str, Any]:
    """Return the model's modules by name. Raises TrainingError if the adapter has another base."""
    from nip_lm_server.lora.rowwise_lora import linear_shape

    modules = dict(model.named_modules())
    for name, (down, up) in files.pairs.items():
        module = modules.get(name)
        if module is None or getattr(module, "weight", None) is None:
            raise TrainingError(
                "base_model_differs",
                f"the parent adapter is for {name!r}, which the base model does not have: it "
                "belongs to another base",
                "model",
            )
        has, expected = (down.shape[1], up.shape[0]), linear_shape(module)
        if not hasattr(module, "quant_state") and module.weight.dim() == 2 and has != expected:
            raise TrainingError(
                "base_model_differs",
                f"the parent adapter has {has[0]} -> {has[1]} for {name!r}, the base model "
                f"{expected[0]} -> {expected[1]}: it belongs to another base",
                "model",
            )
    return modules


def check_continued(parent: "LoraFiles", settings: EffectiveSettings) -> None:
    """Raise TrainingError for settings of another shape than the parent adapter's."""
    config = parse_json((parent.path / "adapter_config.json").read_text())
    for name, key in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
        setting, has = getattr(settings, name), config[key]
        if setting != has:
            raise TrainingError(
                "parent_adapter_differs",
                f"{name} is {setting}, but the adapter to continue from has {has}: give the same "
                "or start from the base",
                name,
            )


def _continue_adapter(job: TrainingJob, model: Any, parent: "LoraFiles") -> Any:
    from peft import LoraConfig, PeftModel

    check_fits(model, parent)
    config = LoraConfig.from_pretrained(str(parent.path))
    config.inference_mode = False
    config.lora_dropout = job.settings.lora_dropout
    return PeftModel.from_pretrained(
        _prepare(job, model), parent.path, config=config, is_trainable=True
    )


def _add_new_adapter(job: TrainingJob, model: Any) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import set_seed

    settings = job.settings
    set_seed(job.seed)  # the adapter's initial values are drawn here
    if isinstance(settings.lora_target_modules, list):
        check_targets(model, settings.lora_target_modules)
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=settings.lora_target_modules,
        bias="none",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(_prepare(job, model), config)


def check_targets(model: Any, targets: Sequence[str]) -> None:
    """Raise TrainingError unless every name belongs to linear layers that an adapter may change.

    PEFT would leave out unknown names, and adapt embeddings, which engines don't load.
    """
    import torch
    from transformers.pytorch_utils import Conv1D

    modules = dict(model.named_modules())
    linear = {
        name
        for name, module in modules.items()
        if isinstance(module, torch.nn.Linear | Conv1D)
        and module is not model.get_output_embeddings()
    }
    for target in targets:
        matched = [name for name in modules if f".{name}".endswith(f".{target}")]
        if not matched or not linear.issuperset(matched):
            layer_names = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            problem = "can't be adapted" if matched else "is not in the model"
            raise TrainingError(
                "invalid_target_modules",
                f"{target!r} {problem}; the linear layers that can be adapted are {layer_names}",
                "lora_target_modules",
            )


def _prepare(job: TrainingJob, model: Any) -> Any:
    """Make a quantized model ready for adapters; any other stays as it is."""
    if job.settings.quantization == "none":
        return model
    from peft import prepare_model_for_kbit_training

    # The trainer turns gradient checkpointing on, if the plan has it.
    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def _configure_quantization(
    settings: EffectiveSettings, device: str, precision: str
) -> dict[str, Any]:
    import torch
    from transformers import BitsAndBytesConfig

    require_bitsandbytes(device, "quantization", settings.quantization)
    if not settings.use_lora:
        raise TrainingError(
            "quantization_unsupported",
            "quantized weights can't be trained: use LoRA, or quantization none",
            "quantization",
        )
    if settings.quantization == "8bit":
        config = BitsAndBytesConfig(load_in_8bit=True)
    else:
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=getattr(torch, precision),
        )
    return {"quantization_config": config}


def read_config(job: TrainingJob) -> Any:
    """Read the base model's configuration. Raises TrainingError if it can't be read."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(
            job.base_model_path, local_files_only=chat_template.offline(), trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise TrainingError("base_model_unusable", str(error), "model") from error


def _generation_config(job: TrainingJob) -> Any:
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(
            job.base_model_path, local_files_only=chat_template.offline()
        )
    except OSError:
        return None  # the file is optional
