"""Method `trajectories`: reinforce what was rewarded, from recorded episodes.

`main` calls ``prepare(job, text, events)``. The data comes from `episodes`, the loss is
`policy_gradient.clipped_loss`:

build_trainer    a subclass of transformers' Trainer with this loss
fill_in          one pass with the starting weights, before training: the log-probabilities that the
                 data lacks, and those of the reference for `kl_penalty`

The old log-probabilities, those of the policy that acted, are the data's where it has them (the
sampler's own), else those of the weights that the training starts from. They stay the same for all
epochs and when a killed training continues. The reference of `kl_penalty` is what the training
starts from; as the episodes are fixed, its log-probabilities are computed once, and no second model
is kept. Where no episode has an advantage other than 0 nothing is trained, and the result says
``unchanged``.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from nip_lm_server.training import loading
from nip_lm_server.training.episodes import (
    Episode,
    check_known,
    read_episodes,
    with_advantages,
)
from nip_lm_server.training.job import Events, TrainingJob


def prepare(job: TrainingJob, text: loading.Text, events: Events) -> loading.Prepared:
    """Read the data, load the model and build the trainer. Raises TrainingError.

    There is no trainer where no episode has an advantage other than 0.
    """
    mode = job.hyperparameters.advantage
    training = read_episodes(job.training_file, text, mode, "training_file")
    validation = (
        read_episodes(job.validation_file, text, mode, "validation_file")
        if job.validation_file
        else []
    )
    model = loading.load_start(job)
    vocabulary = model.get_input_embeddings().weight.shape[0]  # it may be more than the tokenizer's
    check_known(training, vocabulary, "training_file")
    check_known(validation, vocabulary, "validation_file")
    training, skipped = with_advantages(training, mode)
    validation, _ = with_advantages(validation, mode)
    _tell(events, training, skipped)
    if not any(episode.advantage for episode in training):
        events.message("no episode has an advantage other than 0: nothing is trained", level="warn")
        return loading.Prepared(unchanged=model)
    trainer = build_trainer(job, model, text, training, validation)
    fill_in(trainer, events)
    tokens = sum(len(s.input_ids) for episode in training for s in episode.sequences)
    return loading.Prepared(trainer, tokens)


def build_trainer(
    job: TrainingJob,
    model: Any,
    text: loading.Text,
    training: Sequence[Episode],
    validation: Sequence[Episode],
) -> Any:
    """A trainer over the episodes' sequences; call `fill_in` before training."""
    import torch
    from transformers import Trainer, TrainingArguments

    from nip_lm_server.training.arguments import common_arguments
    from nip_lm_server.training.checkpoints import CheckpointedTrainer
    from nip_lm_server.training.policy_gradient import clipped_loss, token_logprobs

    settings = job.hyperparameters
    bounds = settings.model_dump(include={"clip_low", "clip_high", "kl_penalty"})

    class PolicyTrainer(CheckpointedTrainer, Trainer):  # type: ignore[misc]
        """`needs_reference`: whether batches must have ``reference_logprobs``."""

        loss_is_scaled_for_ga = True  # divided by the tokens of the whole batch
        needs_reference = bounds["kl_penalty"] > 0
        _total_train_tokens = 0  # kept in checkpoints

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            actions = inputs["actions"]
            divisor = self.accelerator.gather(actions.sum()).sum().clamp(min=1)
            loss, figures = clipped_loss(
                self.action_logprobs(model, inputs),
                inputs["logprobs"],
                inputs["advantages"],
                actions,
                **bounds,
                reference_logprobs=inputs.get("reference_logprobs"),
                divisor=divisor / self.accelerator.num_processes,  # gradients are averaged
            )
            if model.training:
                seen = self.accelerator.gather(inputs["attention_mask"].sum()).sum()
                self._total_train_tokens += int(seen)
            self._figures = figures
            return loss

        def action_logprobs(self, model: Any, inputs: Any) -> torch.Tensor:
            """Log-probability of each action, [batch, tokens]."""
            ids, mask = inputs["input_ids"], inputs["attention_mask"]
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            return torch.as_tensor(token_logprobs(logits, ids, inputs["actions"]))

        def prediction_step(
            self, model: Any, inputs: Any, *_: Any, **__: Any
        ) -> tuple[torch.Tensor, None, None]:
            inputs = self._prepare_inputs(inputs)
            with torch.no_grad(), self.compute_loss_context_manager():
                return self.compute_loss(model, inputs).detach(), None, None

        def log(self, logs: dict[str, float], *rest: Any) -> None:
            if "loss" in logs:
                logs["policy/ratio"] = self._figures.ratio
                logs["policy/clipped"] = self._figures.clipped
                logs["num_tokens"] = self._total_train_tokens
                if self.needs_reference:
                    logs["kl"] = self._figures.kl
            super().log(logs, *rest)

    return PolicyTrainer(
        model=model,
        args=TrainingArguments(**common_arguments(job), remove_unused_columns=False),
        train_dataset=_rows(training),
        eval_dataset=_rows(validation) if validation else None,
        data_collator=_Collator(text.tokenizer.pad_token_id),
        processing_class=text.tokenizer,
    )


def fill_in(trainer: Any, events: Events) -> None:
    """Compute with the starting weights what the rows lack; call it before training.

    That are old log-probabilities where the data has none, and those of the reference where the
    trainer needs them. Every process computes all of them.
    """
    rows = [*trainer.train_dataset, *(trainer.eval_dataset or [])]
    lacking = sum(any(map(math.isnan, row["logprobs"])) for row in rows)
    if lacking:
        events.message(
            f"the log-probabilities of {lacking} of {len(rows)} sequences are not in the data: "
            "computed from the weights that the training starts from"
        )
    if not trainer.needs_reference:
        rows = [row for row in rows if any(map(math.isnan, row["logprobs"]))]
    rows.sort(key=lambda row: len(row["input_ids"]))  # like lengths together
    size = trainer.args.per_device_eval_batch_size
    for begin in range(0, len(rows), size):
        batch = rows[begin : begin + size]
        for row, found in zip(batch, _start_logprobs(trainer, batch), strict=True):
            if trainer.needs_reference:
                row["reference_logprobs"] = found
            row["logprobs"] = [
                new if math.isnan(old) else old
                for old, new in zip(row["logprobs"], found, strict=True)
            ]


def _start_logprobs(trainer: Any, rows: Sequence[dict[str, Any]]) -> list[list[float]]:
    import torch

    model = trainer.model.to(trainer.args.device)
    model.eval()
    inputs = {k: v.to(trainer.args.device) for k, v in trainer.data_collator(rows).items()}
    with torch.no_grad(), trainer.compute_loss_context_manager():
        found = trainer.action_logprobs(model, inputs).float().tolist()
    return [line[: len(row["input_ids"])] for line, row in zip(found, rows, strict=True)]


def _rows(episodes: Iterable[Episode]) -> list[dict[str, Any]]:
    return [
        {
            "input_ids": list(sequence.input_ids),
            "actions": list(sequence.actions),
            "logprobs": list(sequence.logprobs),
            "advantage": episode.advantage,
        }
        for episode in episodes
        for sequence in episode.sequences
    ]


class _Collator:
    """Rows -> tensors [batch, tokens], padded on the right, and ``advantages`` [batch]."""

    def __init__(self, pad_token: int):
        self._pad_token = pad_token

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        import torch
        from torch.nn.utils.rnn import pad_sequence

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


def _tell(events: Events, training: Sequence[Episode], skipped: int) -> None:
    sequences = [sequence for episode in training for sequence in episode.sequences]
    tokens = sum(len(sequence.input_ids) for sequence in sequences)
    actions = sum(sum(sequence.actions) for sequence in sequences)
    events.message(
        f"{len(training)} episodes, {len(sequences)} sequences, {tokens} tokens, "
        f"{actions} of them actions"
    )
    if skipped:
        events.message(f"{skipped} groups left out, because all rewards in each of them are equal")
