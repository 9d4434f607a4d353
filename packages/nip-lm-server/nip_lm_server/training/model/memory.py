"""The number of tokens that go through the model at a time, by the device's memory.

plan_passes          plan the passes of a job
PassPlan             the tokens of a pass, and whether activations are computed again
divide               the arithmetic of the plan
measure_kept_bytes   the bytes that a model keeps of each token for its backward pass, measured
check_full_training  refuse to train every weight where that can't fit

A pass keeps activations until its backward pass. With gradient checkpointing it keeps only those
between layers and computes the others again, which costs one more forward pass (Chen et al.,
"Training Deep Nets with Sublinear Memory Cost", 2016). So all activations are kept if a pass of
`ENOUGH_TOKENS` fits with them (on the processors, `ENOUGH_ON_PROCESSORS`). Then a pass takes as
many tokens as fit.

On the processors the free memory changes with other programs, but the passes of a training must
not: its last bits depend on them. So a pass has a fixed share of the memory that the machine, or
its container, has in all. Only if that is not free, it is half of the share, or a quarter, and so
on.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nip_base.machine.allowed_memory import allowed_bytes, free_bytes
from nip_lm_server.training.job import TrainingError, TrainingJob
from nip_lm_server.training.model import loading
from nip_lm_server.training.model.device import (
    choose_device,
    choose_precision,
    processes_of_this_run,
)

MOST_TOKENS = 32_768
"""More tokens in a pass hardly save time: matrix products have reached their speed by then."""
ENOUGH_TOKENS = 4_096
"""With fewer tokens in a pass, reading the weights may cost more than computing."""
ENOUGH_ON_PROCESSORS = 512
"""The same for processors, which compute much more slowly than they read."""
_PROCESSORS_SHARE = 0.25
"""A training's share of the whole memory on the processors. A rule of thumb: an engine, its cache
and the user's other programs need memory, too."""
_USED_SHARE = 0.8
"""Share of the free memory; the rest is for short-lived tensors, and for gaps."""
_LEAST_BYTES = 2**26
"""The share is not halved below this: if even this is not free, no plan helps."""
_HEAD_TENSORS = 5
"""Logits of a piece, their logarithms, the gradients of both, and a tensor for logged figures."""
_SHORT, _LONG = 32, 96  # tokens of the two passes that are compared
_OPTIMIZER_BYTES = {"adamw_8bit": 2, "paged_adamw_8bit": 2, "sgd": 0}
"""Bytes of state per trained parameter; AdamW has two numbers in float32."""


@dataclass(frozen=True)
class PassPlan:
    """The passes of a training. `tokens_per_pass` counts padding.

    With `gradient_checkpointing`, activations are computed twice.
    """

    tokens_per_pass: int
    gradient_checkpointing: bool
    evaluated_at_once: int = 1  # examples of the validation file


def plan_passes(
    job: TrainingJob,
    model: Any,
    lengths: Sequence[int],
    validation: Sequence[int] = (),
    rows_per_example: int = 1,
) -> PassPlan:
    """Plan passes for the device's free memory; the job's settings take precedence.

    `lengths` and `validation` are the tokens of each example's longest row; `model` is on its
    device, ready to be trained.
    """
    plan = _plan_training(job, model, lengths, rows_per_example)
    longest = rows_per_example * max(validation, default=1)
    return replace(plan, evaluated_at_once=max(1, plan.tokens_per_pass // longest))


def _plan_training(
    job: TrainingJob, model: Any, lengths: Sequence[int], rows_per_example: int
) -> PassPlan:
    settings = job.settings
    longest = rows_per_example * max(lengths, default=1)
    tokens_per_pass, checkpointing = settings.tokens_per_pass, settings.gradient_checkpointing
    device = choose_device(job)
    if device == "cpu" and tokens_per_pass is not None and checkpointing is not None:
        return PassPlan(max(longest, tokens_per_pass), checkpointing)
    per_process = settings.batch_size // processes_of_this_run(job)
    per_token = measure_kept_bytes(model, _autocast(job, device))
    state = training_bytes(job, model)
    if device == "cpu":
        state += head_bytes(model)
        free = memory_on_processors(total_bytes(job), free_bytes(), state)
    else:
        free = float(_free_bytes() - state)
    return divide(
        free,
        per_token,
        per_token / max(1, int(model.config.get_text_config().num_hidden_layers)),
        step_tokens=min(per_process, len(lengths)) * longest,
        longest=longest,
        tokens_per_pass=tokens_per_pass,
        checkpointing=checkpointing,
        enough=ENOUGH_ON_PROCESSORS if device == "cpu" else ENOUGH_TOKENS,
    )


def memory_on_processors(total: int, available: int, state: int) -> float:
    """Return the bytes for passes: a share of `total`, halved until it is free beside `state`."""
    share = total * _PROCESSORS_SHARE
    while share > max(0, available - state) and share > _LEAST_BYTES:
        share /= 2
    return share


def divide(
    free_bytes: float,
    kept_bytes: float,
    layer_bytes: float,
    *,
    step_tokens: int,
    longest: int,
    tokens_per_pass: int | None = None,
    checkpointing: bool | None = None,
    enough: int = ENOUGH_TOKENS,
) -> PassPlan:
    """Plan a pass by the bytes of a token: `kept_bytes` in all layers, `layer_bytes` in one.

    With checkpointing a token costs its inputs to the layers, at most an eighth of `kept_bytes`,
    and `layer_bytes` while a layer is computed again. A pass has at least the `longest` example.
    """
    usable = max(0.0, free_bytes) * _USED_SHARE
    need = max(longest, min(step_tokens, tokens_per_pass or enough))
    if checkpointing is None:
        checkpointing = usable < need * kept_bytes
    cost = kept_bytes / 8 + layer_bytes if checkpointing else kept_bytes
    fits = int(usable / max(cost, 1.0))
    return PassPlan(max(longest, tokens_per_pass or min(fits, MOST_TOKENS)), checkpointing)


def measure_kept_bytes(model: Any, autocast: Callable[[], Any]) -> float:
    """Measure the bytes per token that a pass without checkpointing keeps for its backward pass.

    It is the difference of two passes of different lengths, without the output layer: tensors that
    depend on the weights only are the same in both. Random generators stay as they are.
    """
    import torch

    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    body = getattr(model, "get_base_model", lambda: model)().base_model
    sizes = {}
    was_training = model.training
    model.train()
    try:
        with torch.random.fork_rng():
            for tokens in (_SHORT, _LONG):
                storages: dict[int, int] = {}

                def note(tensor: Any, storages: dict[int, int] = storages) -> Any:
                    storage = tensor.untyped_storage()
                    if storage.data_ptr() not in weights:
                        storages[storage.data_ptr()] = storage.nbytes()
                    return tensor

                ids = torch.zeros((1, tokens), dtype=torch.long, device=model.device)
                hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
                with hooks, autocast():
                    out = body(input_ids=ids, use_cache=False).last_hidden_state
                sizes[tokens] = sum(storages.values())
                del out  # only now may its memory be another tensor's
    finally:
        model.train(was_training)
    return (sizes[_LONG] - sizes[_SHORT]) / (_LONG - _SHORT)


def training_bytes(job: TrainingJob, model: Any) -> int:
    """Count the bytes of gradients, in float32, and of the optimizer's state.

    The first step allocates them.
    """
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return int(parameters * (4 + _OPTIMIZER_BYTES.get(job.settings.optimizer, 8)))


def head_bytes(model: Any) -> int:
    """Count the bytes that a piece of the output layer needs while it is computed; see `head`."""
    from nip_lm_server.training.methods.head import CHUNK_LOGITS

    words = int(model.get_input_embeddings().weight.shape[0])
    return 4 * _HEAD_TENSORS * max(CHUNK_LOGITS, words)


def check_full_training(job: TrainingJob) -> None:
    """Raise TrainingError where weights, gradients and optimizer exceed the device's memory.

    No weights are loaded. They would be in float32, see `loading`; method `dpo` needs its reference
    beside them.
    """
    parameters = count_parameters(job)
    state = _OPTIMIZER_BYTES.get(job.settings.optimizer, 8)
    parts = {"weights": 4, "gradients": 4, "the optimizer": state}
    if job.method == "dpo":
        parts["the reference"] = 4
    needed, available = sum(parts.values()) * parameters, total_bytes(job)
    if needed <= available:
        return
    sums = " + ".join(f"{size} for {name}" for name, size in parts.items() if size)
    raise TrainingError(
        "out_of_memory",
        f"training every weight of {parameters / 1e9:.2f} billion takes {sums} = "
        f"{sum(parts.values())} bytes each, {needed / 1e9:.0f} GB before any activation; "
        f"{choose_device(job)} has {available / 1e9:.0f} GB: train with LoRA, or a smaller model",
        "use_lora",
    )


def count_parameters(job: TrainingJob) -> int:
    """Count the base model's parameters by its configuration; shared ones count once."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(loading.read_config(job), trust_remote_code=False)
    return sum(p.numel() for p in model.parameters())


def total_bytes(job: TrainingJob) -> int:
    """Return the whole memory of the training device; on processors, the container's limit."""
    import torch

    if choose_device(job) == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return allowed_bytes()


def _free_bytes() -> int:
    """Count the free bytes, and torch's unused bytes."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


def _autocast(job: TrainingJob, device: str = "cuda") -> Callable[[], Any]:
    """Return the context to compute in."""
    import torch

    precision = getattr(torch, choose_precision(job.settings, device))
    return (
        contextlib.nullcontext
        if precision == torch.float32
        else lambda: torch.autocast(device, precision)
    )
