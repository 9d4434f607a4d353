"""The trainer of method `trajectories`: transformers' Trainer with the clipped policy gradient.

PolicyTrainer    over rows that `rl` makes; call `fill_in` before training

Importing this module loads torch and transformers.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer

from nip_lm_server.training.job import Events
from nip_lm_server.training.methods.checkpoints import CheckpointedTrainer
from nip_lm_server.training.methods.head import add_scoring, is_scored_alike
from nip_lm_server.training.methods.micro_batches import MicroBatched, split
from nip_lm_server.training.methods.policy_gradient import (
    DUAL_CLIP,
    Figures,
    clipped_loss,
    join_figures,
    token_logprobs,
)


class PolicyTrainer(MicroBatched, CheckpointedTrainer, Trainer):  # type: ignore[misc]
    """Trains with `bounds` (clip_low, clip_high, kl_penalty); `pad_token` pads rows on the right.

    `needs_reference`: whether batches must have ``reference_logprobs``. `has_scoring`: whether the
    model scores actions without the logits of all tokens (`head`).
    """

    loss_is_scaled_for_ga = True  # divided by the tokens of the whole step
    _total_train_tokens = 0  # kept in checkpoints

    def __init__(self, bounds: Mapping[str, float], pad_token: int, **arguments: Any):
        super().__init__(data_collator=_Collator(pad_token), **arguments)
        self._bounds = bounds
        self._figures: list[Figures] = []  # of the passes since the last step was logged
        self.needs_reference = bounds["kl_penalty"] > 0
        base = getattr(self.model, "get_base_model", lambda: self.model)()
        self.has_scoring = is_scored_alike(base)
        if self.has_scoring:
            add_scoring(base)

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Compute the loss of a pass; its figures are kept for `log`.

        `num_items_in_batch` is the number of actions in the whole step; None: the pass is a step.
        """
        actions = inputs["actions"]
        if num_items_in_batch is None:
            num_items_in_batch = self._count_actions([inputs])
        loss, figures = clipped_loss(
            self._action_logprobs(model, inputs),
            inputs["logprobs"],
            inputs["advantages"],
            actions,
            **self._bounds,
            reference_logprobs=inputs.get("reference_logprobs"),
            divisor=num_items_in_batch / self.accelerator.num_processes,  # gradients are averaged
            dual_clip=DUAL_CLIP,
        )
        if model.training:
            self._figures.append(figures)
            tokens = self.accelerator.gather(inputs["attention_mask"].sum()).sum()
            self._total_train_tokens += int(tokens)
        return loss

    def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
        """Count the actions of a step in all processes; at least 1."""
        return self._count_actions(batch_samples) if batch_samples else None

    def _count_actions(self, batches: Sequence[Any]) -> Any:
        count = sum(batch["actions"].sum() for batch in batches)
        return self.accelerator.gather(count.to(self.args.device)).sum().clamp(min=1)

    def prediction_step(
        self, model: Any, inputs: Any, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, None, None]:
        """Compute the loss alone, for evaluation."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, inputs).detach(), None, None

    def log(self, logs: dict[str, float], *rest: Any) -> None:
        """Add the figures of the first process's passes to the figures of a step."""
        if "loss" in logs and self._figures:
            figures = join_figures(self._figures)
            self._figures = []
            logs["policy/ratio"] = figures.ratio
            logs["policy/ratio_max"] = figures.ratio_max
            logs["policy/clipped"] = figures.clipped
            logs["num_tokens"] = self._total_train_tokens
            if self.needs_reference:
                logs["kl"] = figures.kl
        super().log(logs, *rest)

    def fill_in(self, events: Events) -> None:
        """Compute the missing log-probabilities of rows by the starting weights, before training.

        Old log-probabilities are missing where the data has none, and the reference's are needed
        for a penalty. Every process computes all of them.
        """
        # 1. Find the rows that lack some.
        rows = [*self.train_dataset, *(self.eval_dataset or [])]
        lacking = [row for row in rows if any(map(math.isnan, row["logprobs"]))]
        if lacking:
            events.message(
                f"the log-probabilities of {len(lacking)} of {len(rows)} sequences are not in the "
                "data: computed from the weights that the training starts from"
            )
        # 2. Put like lengths together, so that there is little padding.
        todo = rows if self.needs_reference else lacking
        lengths = [len(row["input_ids"]) for row in todo]
        step = self.args.per_device_eval_batch_size * max(lengths, default=1)
        groups = split(lengths, min(step, self.tokens_per_pass or step)) if todo else []
        # 3. Compute each row once, without gradients.
        for group in groups:
            batch = [todo[index] for index in group]
            for row, start in zip(batch, self._start_logprobs(batch), strict=True):
                if self.needs_reference:
                    row["reference_logprobs"] = start
                row["logprobs"] = [
                    new if math.isnan(old) else old
                    for old, new in zip(row["logprobs"], start, strict=True)
                ]

    def _start_logprobs(self, rows: Sequence[dict[str, Any]]) -> list[list[float]]:
        model = self.model.to(self.args.device)
        model.eval()
        inputs = {k: v.to(self.args.device) for k, v in self.data_collator(rows).items()}
        with torch.no_grad(), self.compute_loss_context_manager():
            lines = self._action_logprobs(model, inputs).float().tolist()
        return [line[: len(row["input_ids"])] for line, row in zip(lines, rows, strict=True)]

    def _action_logprobs(self, model: Any, inputs: Any) -> torch.Tensor:
        """Compute the log-probability of each action, [batch, tokens]; 0 elsewhere."""
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        if self.has_scoring:
            scored = inputs["actions"]
            return torch.as_tensor(
                model(input_ids=ids, attention_mask=mask, scored=scored, use_cache=False)
            )
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return torch.as_tensor(token_logprobs(logits, ids, inputs["actions"]))


class _Collator:
    """Rows -> tensors [batch, tokens], padded on the right, and ``advantages`` [batch]."""

    def __init__(self, pad_token: int):
        self._pad_token = pad_token

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        def padded(values: Iterable[Any], fill: float, dtype: Any) -> Any:
            tensors = [torch.tensor(value, dtype=dtype) for value in values]
            return pad_sequence(tensors, batch_first=True, padding_value=fill)

        ids = [row["input_ids"] for row in rows]
        batch = {
            "input_ids": padded(ids, self._pad_token, torch.long),
            "attention_mask": padded(([1] * len(line) for line in ids), 0, torch.long),
            "actions": padded((row["actions"] for row in rows), 0, torch.bool),
            "logprobs": padded((row["logprobs"] for row in rows), 0.0, torch.float32),
            "advantages": torch.tensor([row["advantage"] for row in rows], dtype=torch.float32),
        }
        if "reference_logprobs" in rows[0]:
            reference = (row["reference_logprobs"] for row in rows)
            batch["reference_logprobs"] = padded(reference, 0.0, torch.float32)
        return batch
