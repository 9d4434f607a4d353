"""The resident trainer: one base model and many adapters, trained step by step by its caller.

ResidentTrainer   create_model, forward_backward, optim_step, save, load, drop_model

A call does all of its work or none: if it is refused, or fails half-way, every model stays as it
was. The same calls give the same bits on the processors, also after `save` and `load` with the
optimizer, and with any calls of other models in between. So the size of a pass depends on the
machine and the base model, never on the memory that is free at the moment.

Not covered: a gradient that was computed and not yet stepped with is in no checkpoint, and on CUDA
the same calls give the same numbers up to rounding.
"""

import gc
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import get_total_norm

from nip_base.machine.allowed_memory import allowed_bytes, free_bytes
from nip_lm_server.chats import chat_template
from nip_lm_server.training.methods.micro_batches import split
from nip_lm_server.training.model.memory import (
    ENOUGH_ON_PROCESSORS,
    ENOUGH_TOKENS,
    measure_kept_bytes,
)
from nip_lm_server.training.resident.adapters import KINDS, Adapter, LoraLayers, new_adapter
from nip_lm_server.training.resident.checks import (
    Checked,
    check_adam,
    check_datum,
    check_loss,
    refuse,
)
from nip_lm_server.training.resident.losses import SEQUENCE_LOG_RATIO, Loss
from nip_lm_server.training.resident.saved_adapters import read_saved_adapter, write_adapter
from nip_lm_server.training.resident.token_scores import pad, score_targets, without_dropout
from nip_lm_server.training.resident.types import (
    AdamParams,
    Datum,
    Facts,
    LoraConfig,
    Output,
    ResidentError,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SHARE = 0.25
"""Share of a machine's memory, or of a GPU's free memory at the start, for the activations of a
pass. A rule of thumb: adapters, the output layer's logits and an engine need memory, too."""
_MOST = {"cuda": 8_192, "cpu": 1_024}
"""Most tokens of a pass. On the processors larger passes cost more, by padding and by data that no
longer fits into a cache, than they save (measured with the tiny model)."""
_ROOM = 0.9
"""Share of the free memory that a new model may take, with its gradients and optimizer."""


class ResidentTrainer:
    """Adapters over one base model on one device. Only one thread may call it."""

    def __init__(self, base: Path, *, device: str, dtype: str, threads: int):
        """Load the base model. Raises ResidentError.

        `device` is "cpu" or one that torch knows, `dtype` the precision of the frozen base;
        adapters are float32. `threads` compute on the processors, for the whole process.
        """
        if dtype not in DTYPES:
            raise refuse("invalid_dtype", f"dtype is {dtype!r}, expected one of {list(DTYPES)}")
        torch.set_num_threads(threads)
        try:
            model = chat_template.load_model(base, DTYPES[dtype])
        except (OSError, ValueError) as error:
            raise ResidentError("server", "base_model_unusable", str(error)) from error
        gc.freeze()  # modules stay for good; searching them for garbage would slow every call
        self._model = model.to(device).requires_grad_(False)
        without_dropout(self._model)
        self._device = torch.device(device)
        self._layers = LoraLayers(self._model)
        self._models: dict[str, Adapter] = {}
        _recompute_in_training(self._model)
        self.facts = self._describe()

    def create_model(self, model_id: str, lora: LoraConfig) -> None:
        """Draw a new adapter without an effect yet. Raises ResidentError."""
        if model_id in self._models:
            raise refuse("model_exists", f"the model {model_id!r} is in training already")
        self._check_rank(lora)
        adapter = new_adapter(model_id, lora, self._layers, self._device)
        self._check_room(adapter)
        self._models[model_id] = adapter

    def forward_backward(
        self,
        model_id: str,
        data: Sequence[Datum],
        loss_fn: str,
        config: Mapping[str, float],
        *,
        forward_only: bool,
    ) -> Output:
        """Compute a loss, and add its gradient to the sums for the next `optim_step`.

        Returns the targets' log-probabilities of every datum, before any step. Raises
        ResidentError.
        """
        adapter = self._find(model_id)
        # 1. Check all data before anything is computed.
        loss, numbers = check_loss(loss_fn, config)
        if not data:
            raise refuse("no_data", "there is no datum to compute a loss of")
        context, vocabulary = self.facts.context, self.facts.vocabulary
        checked = [
            check_datum(i, datum, loss_fn, loss, numbers, context=context, vocabulary=vocabulary)
            for i, datum in enumerate(data)
        ]
        # 2. Compute a few sequences of like length at a time, always in the same groups.
        groups = split([len(datum.tokens) for datum in checked], self.facts.tokens_per_pass)
        logprobs: list[Any] = [None] * len(checked)
        gradients = None if forward_only else [torch.zeros_like(p) for p in adapter.parameters]
        total = 0.0
        with self._layers.switched_on(adapter):
            for group in groups:
                total += self._pass(adapter, loss, checked, group, logprobs, gradients)
        # 3. Add the gradient, if all of it is finite.
        if gradients is not None:
            if not bool(get_total_norm(gradients, math.inf).isfinite()):
                raise refuse(
                    "gradient_not_finite",
                    "the gradient is not finite: the model's weights have broken, or a weight or "
                    "an advantage is too large",
                )
            adapter.add_gradients(gradients)
        return Output(tuple(logprobs), {"loss:sum": total})

    def optim_step(self, model_id: str, adam: AdamParams) -> dict[str, float]:
        """Step by AdamW with the gradients since the last step. Raises ResidentError.

        Without gradients, the model stays as it is. Returns the gradient's norm before its cut.
        """
        adapter = self._find(model_id)
        check_adam(adam)
        return adapter.step(adam)

    def save(self, model_id: str, directory: Path, *, optimizer: bool) -> None:
        """Write a model to `directory`; see `saved_adapters`. Raises ResidentError."""
        adapter = self._find(model_id)
        try:
            write_adapter(adapter, directory, self._layers, optimizer=optimizer)
        except Exception as error:  # safetensors has its own exceptions
            raise ResidentError(
                "server", "not_saved", f"{directory.name} can't be written: {error}"
            ) from error

    def load(
        self, model_id: str, directory: Path, lora: LoraConfig | None, *, optimizer: bool
    ) -> None:
        """Load a new model from `directory`, or replace the model of this id.

        `lora` must agree with the saved configuration; None: any. Without `optimizer` the next step
        is the first. Raises ResidentError.
        """
        adapter = read_saved_adapter(
            directory, lora, self._layers, self._device, optimizer=optimizer
        )
        self._check_rank(adapter.config)
        if model_id not in self._models:
            self._check_room(adapter)
        self._models[model_id] = adapter

    def drop_model(self, model_id: str) -> None:
        """Forget a model. Raises ResidentError if there is none."""
        self._find(model_id)
        del self._models[model_id]

    def _pass(
        self,
        adapter: Adapter,
        loss: Loss,
        data: Sequence[Checked],
        group: Sequence[int],
        logprobs: list[Any],
        gradients: list[torch.Tensor] | None,
    ) -> float:
        """Go through the model once, fill in `logprobs`, add to `gradients`; returns the loss."""
        members = [data[i] for i in group]
        is_learned = _tensor([datum.is_learned for datum in members], self._device, torch.bool)
        learns = gradients is not None and bool(is_learned.any())
        # 1. Compute the hidden states of all tokens, one sequence after the other.
        with torch.set_grad_enabled(learns):
            ids = pad([datum.tokens for datum in members], self._device)
            # In training mode the model computes activations again; neither mode has dropout.
            if self._model.training != (ids.numel() > self.facts.tokens_kept):
                self._model.train(not self._model.training)
            hidden = self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            width = ids.shape[1]
            places = np.concatenate(
                [row * width + np.arange(len(datum.tokens)) for row, datum in enumerate(members)]
            )
            hidden = hidden.flatten(0, 1)[torch.from_numpy(places).to(self._device)]
        # 2. Compute log-probabilities: of learned tokens with a gradient, of the others without.
        targets = torch.from_numpy(_wide_targets(members)).to(self._device)
        with torch.set_grad_enabled(learns):
            scored = score_targets(self._model, hidden[is_learned], targets[is_learned])
        every = scored.new_empty(targets.shape)
        every[is_learned] = scored.detach()
        with torch.no_grad():
            every[~is_learned] = score_targets(
                self._model, hidden[~is_learned].detach(), targets[~is_learned]
            )
        _keep_logprobs(every, members, group, logprobs)
        # 3. Compute the terms, and from them the gradient.
        inputs = _join_inputs(loss, members, every, self._device)
        learned_inputs = {name: values[is_learned] for name, values in inputs.items()}
        narrow = scored.double() if "weights" in inputs else scored.double()[:, 0]
        terms = loss.terms(narrow, learned_inputs)
        _check_terms(terms, is_learned, members, group)
        if learns and gradients is not None:
            parts = torch.autograd.grad(terms.sum(), adapter.parameters, allow_unused=True)
            for gradient, part in zip(gradients, parts, strict=True):
                if part is not None:
                    gradient.add_(part)
        return float(terms.detach().sum())

    def _describe(self) -> Facts:
        config = self._model.config.get_text_config()
        context = getattr(config, "max_position_embeddings", None)
        if not context:
            raise ResidentError(
                "server",
                "base_model_unusable",
                "the model's configuration does not say how long its context is",
            )
        fitting, recomputed, enough = self._measure_passes(int(config.num_hidden_layers))
        return Facts(
            context=int(context),
            vocabulary=int(self._model.get_output_embeddings().weight.shape[0]),
            max_rank=int(config.hidden_size),
            layers={kind: len(names) for kind, names in self._layers.kinds.items()},
            tokens_per_pass=min(
                _MOST[self._device.type], fitting if fitting >= enough else max(fitting, recomputed)
            ),
            tokens_kept=fitting,
        )

    def _measure_passes(self, layers: int) -> tuple[int, int, int]:
        """Return three numbers of tokens of a pass.

        They are: as many as fit with all activations, as many as fit if activations are computed
        again, and enough for full speed.
        """
        if self._device.type == "cuda":
            memory, enough = torch.cuda.mem_get_info(self._device)[0], ENOUGH_TOKENS
        else:
            memory, enough = allowed_bytes(), ENOUGH_ON_PROCESSORS
        # A probe adapter is needed: without one, a pass keeps no activations.
        flags = {flag: bool(self._layers.kinds[kind]) for kind, flag in KINDS.items()}
        probe = new_adapter("", LoraConfig(rank=1, seed=0, **flags), self._layers, self._device)
        with self._layers.switched_on(probe):
            bytes_per_token = max(1.0, measure_kept_bytes(self._model, nullcontext))
        usable = memory * _SHARE
        # Recomputing keeps the layers' inputs, an eighth of all at most, and one layer in full.
        recomputed_bytes = bytes_per_token / 8 + bytes_per_token / max(1, layers)
        return int(usable / bytes_per_token), int(usable / recomputed_bytes), enough

    def _find(self, model_id: str) -> Adapter:
        adapter = self._models.get(model_id)
        if adapter is None:
            raise refuse("model_not_found", f"there is no model {model_id!r} in training")
        return adapter

    def _check_rank(self, lora: LoraConfig) -> None:
        max_rank = self.facts.max_rank
        if isinstance(lora.rank, bool) or not isinstance(lora.rank, int):
            raise refuse("invalid_rank", f"rank is {lora.rank!r}, expected an integer")
        if not 1 <= lora.rank <= max_rank:
            raise refuse(
                "invalid_rank",
                f"rank is {lora.rank}, expected 1 to {max_rank}, the width of this model",
            )
        if not 0 < lora.alpha < float("inf"):
            raise refuse("invalid_alpha", f"alpha is {lora.alpha}, expected a number above 0")

    def _check_room(self, adapter: Adapter) -> None:
        needed = adapter.bytes_of()
        if self._device.type == "cuda":
            free = torch.cuda.mem_get_info(self._device)[0]
        else:
            free = free_bytes()
        if needed > free * _ROOM:
            raise ResidentError(
                "server",
                "out_of_memory",
                f"the model needs {needed / 1e6:.0f} MB with its gradients and optimizer, "
                f"{free / 1e6:.0f} MB are free: drop a model, or take a lower rank",
            )


def _recompute_in_training(model: Any) -> None:
    """Let a model in training mode compute activations again, if it can."""
    if model.supports_gradient_checkpointing:
        # Newer versions of transformers warn of the older name.
        usual = model.gradient_checkpointing_enable
        enable = getattr(model, "activation_checkpointing_enable", usual)
        enable({"use_reentrant": False})


def _tensor(parts: Sequence[Any], device: torch.device, dtype: Any) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(device, dtype)


def _wide_targets(members: Sequence[Checked]) -> Any:
    """The targets of all tokens, [T, K] with the largest K; smaller ones are filled with 0."""
    width = max(datum.targets.shape[1] for datum in members)
    return np.concatenate([_widen(datum.targets, width) for datum in members])


def _widen(values: Any, width: int) -> Any:
    return np.pad(values, ((0, 0), (0, width - values.shape[1])))


def _keep_logprobs(
    every: torch.Tensor, members: Sequence[Checked], group: Sequence[int], logprobs: list[Any]
) -> None:
    start, values = 0, every.cpu().numpy()
    for index, datum in zip(group, members, strict=True):
        rows = values[start : start + len(datum.tokens), : datum.targets.shape[1]]
        logprobs[index] = np.ascontiguousarray(rows).reshape(datum.shape)
        start += len(datum.tokens)


def _join_inputs(
    loss: Loss, members: Sequence[Checked], every: torch.Tensor, device: torch.device
) -> dict[str, torch.Tensor]:
    """The inputs of all tokens in float64; some are computed from the log-probabilities `every`."""
    names = (*loss.inputs, *loss.config)
    inputs = {}
    for name in names:
        parts = [datum.inputs[name] for datum in members]
        if name == "weights":
            parts = [_widen(part, every.shape[1]) for part in parts]
        inputs[name] = _tensor(parts, device, torch.float64)
    if "sequence_ratio_mask" in inputs:
        sizes = [len(datum.tokens) for datum in members]
        distances = (every[:, 0].double() - inputs["logprobs"]).split(sizes)
        marks = (inputs["sequence_ratio_mask"] != 0).split(sizes)
        inputs[SEQUENCE_LOG_RATIO] = torch.cat(
            [
                distance[mark].mean().expand(len(mark))
                for distance, mark in zip(distances, marks, strict=True)
            ]
        )
    return inputs


def _check_terms(
    terms: torch.Tensor, is_learned: torch.Tensor, members: Sequence[Checked], group: Sequence[int]
) -> None:
    """Raise ResidentError for the first token whose loss is not finite, naming its datum."""
    wrong = ~terms.detach().isfinite()
    if not bool(wrong.any()):
        return
    place = int(is_learned.nonzero()[:, 0][wrong][0])
    for index, datum in zip(group, members, strict=True):
        if place < len(datum.tokens):
            raise refuse(
                "loss_not_finite",
                f"datum {index}: the loss of token {place} is not finite; its log-probability by "
                "the model and the one given are too far apart, or the model's weights have broken",
            )
        place -= len(datum.tokens)
