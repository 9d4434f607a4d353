"""Method `dpo`: prefer one answer over another (Rafailov et al., 2023), by TRL's DPOTrainer.

`main` calls ``prepare(job, text, events)``. Prompts and answers are encoded as they are served, and
the stop token is learned, too (`encoding`); TRL prepares nothing. A batch is `batch_size` pairs.

`dpo_reference` chooses the reference:

start    the start of the training: the base model, the parent for "continue", base and parent for
         "stack". The loss begins at ln 2.
base     the base model in any case; over an existing adapter the loss begins at another value

`dpo_sft_weight` is the factor of a second term, the mean negative log-likelihood of the preferred
answers' tokens (Pang et al., "Iterative Reasoning Preference Optimization", 2024). DPO alone
depends only on the distance of the two answers, and may make both of them unlikely.

`dpo_label_smoothing` is the supposed share of pairs that are the wrong way round. Their part is
taken out of the loss, so that it is right on average (Chowdhury et al., "Provably Robust DPO",
2024). TRL calls that loss "robust"; its plain loss ignores the share.

The trained adapter, switched off, gives most references without a second model. But "continue"
against "start" needs a frozen copy of the adapter, and "stack" against "base", or training every
weight, needs a second model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_base.formats import PreferenceExample
from nip_lm_server.training.job import Events, TrainingJob
from nip_lm_server.training.methods import encoding
from nip_lm_server.training.methods.encoding import ExampleError, check_length, encode_turn
from nip_lm_server.training.methods.micro_batches import MicroBatched
from nip_lm_server.training.model import loading
from nip_lm_server.training.model.device import choose_device


@dataclass(frozen=True)
class EncodedPair:
    """Token ids of a prompt and of both answers to it, each with its stop token."""

    prompt: tuple[int, ...]
    preferred: tuple[int, ...]
    rejected: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Count the tokens of one epoch."""
        return 2 * len(self.prompt) + len(self.preferred) + len(self.rejected)

    @property
    def longest(self) -> int:
        """Tokens of the prompt with the longer answer."""
        return len(self.prompt) + max(len(self.preferred), len(self.rejected))


def prepare(job: TrainingJob, text: loading.Text, events: Events) -> loading.Prepared:
    """Read the data, load the models and build the trainer. Raises TrainingError."""
    training = encode_file(job.training_file, text, "training_file")
    validation = encode_file(job.validation_file, text, "validation_file")
    tokens = sum(pair.tokens for pair in training)
    events.message(f"{len(training)} pairs, {tokens} tokens")
    trainer = build_trainer(job, loading.load_start(job), text, training, validation)
    return loading.Prepared(trainer, tokens)


def encode_file(path: Path | None, text: loading.Text, param: str) -> list[EncodedPair]:
    """Encode every pair of a JSONL file; none for None. Raises TrainingError, naming the line."""
    return encoding.encode_file(
        "dpo", path, param, lambda line, example: encode_pair(example, text, line)
    )


def encode_pair(example: PreferenceExample, text: loading.Text, line: int) -> EncodedPair:
    """Encode both answers.

    Raises ExampleError if one is too long, the template refuses it, or both give the same tokens.
    """
    context = [message.to_dict() for message in example.input]
    turns = [
        encode_turn(text.tokenizer, [*context, answer.to_dict()], text.stop_tokens, line)
        for answer in (example.preferred, example.rejected)
    ]
    for turn in turns:
        size = len(turn.prompt) + len(turn.answer)
        check_length(size, text.max_length, line, "prompt and answer have")
    if turns[0].answer == turns[1].answer:
        raise ExampleError(
            "nothing_to_learn", line, "both answers are the same, so neither can be preferred"
        )
    return EncodedPair(tuple(turns[0].prompt), tuple(turns[0].answer), tuple(turns[1].answer))


def build_trainer(
    job: TrainingJob,
    model: Any,
    text: loading.Text,
    training: Sequence[EncodedPair],
    validation: Sequence[EncodedPair],
) -> Any:
    """Build TRL's trainer over encoded pairs, with the job's reference."""
    from trl import DPOConfig, DPOTrainer

    from nip_lm_server.training.methods.arguments import common_arguments
    from nip_lm_server.training.methods.checkpoints import CheckpointedTrainer
    from nip_lm_server.training.methods.head import score_labelled_alone
    from nip_lm_server.training.model.memory import plan_passes

    class Trainer(PairPasses, CheckpointedTrainer, DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset  # encoded already

    settings = job.settings
    reference = reference_model(job)
    preference = "robust" if settings.dpo_label_smoothing else "sigmoid"
    lengths, validated = ([pair.longest for pair in part] for part in (training, validation))
    passes = plan_passes(job, model, lengths, validated, rows_per_example=2)
    trainer = Trainer(
        model=model,
        ref_model=reference,
        args=DPOConfig(
            **common_arguments(job, passes),
            beta=settings.beta,
            loss_type=[preference, "sft"] if settings.dpo_sft_weight else [preference],
            label_smoothing=settings.dpo_label_smoothing or 0.0,
            loss_weights=[1.0, settings.dpo_sft_weight] if settings.dpo_sft_weight else None,
            max_length=None,  # longer examples were refused, and none is ever cut
            precompute_ref_log_probs=False,
            disable_dropout=not settings.lora_dropout,
        ),
        train_dataset=_dataset(training),
        eval_dataset=_dataset(validation) if validation else None,
        processing_class=text.tokenizer,
    )
    # TRL keeps a copy of any given adapter as the reference.
    copied = "ref" in getattr(trainer.model, "peft_config", {})
    if copied and not _needs_copy(job):
        trainer.model.delete_adapter("ref")  # without it TRL switches the adapter off
    trainer.tokens_per_pass = passes.tokens_per_pass
    if choose_device(job) == "cpu":
        score_labelled_alone(getattr(model, "get_base_model", lambda: model)())
        if reference is not None:
            score_labelled_alone(reference)
    return trainer


class PairPasses(MicroBatched):
    """Weighs the passes of a step by their shares of it; put it before TRL's DPOTrainer.

    TRL takes the mean over the pairs of a pass, and for imitation the mean over the tokens of its
    preferred answers. Weighed by the pass's shares of the step's pairs and tokens, they add up to
    the means over the step. Gradients are averaged over processes, so shares are of their mean.
    """

    rows_per_example = 2

    def _get_num_items_in_batch(self: Any, batch_samples: Any, device: Any) -> Any:
        """Count a step's pairs and its preferred answers' tokens, the mean over processes: [2]."""
        if not batch_samples:
            return None
        counts = sum(_count_tokens(batch) for batch in batch_samples).to(self.args.device)
        processes = self.accelerator.num_processes
        return self.accelerator.gather(counts[None]).sum(0) / processes

    def compute_loss(
        self: Any,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Compute TRL's loss with the weights of this pass; without a count the pass is a step."""
        if num_items_in_batch is None:
            return super().compute_loss(model, inputs, return_outputs)  # type: ignore[misc]
        pairs, tokens = (_count_tokens(inputs).to(num_items_in_batch) / num_items_in_batch).tolist()
        weights, balance = self.loss_weights, self.router_aux_loss_coef
        shares = [tokens if name == "sft" else pairs for name in self.loss_types]
        self.loss_weights = [w * share for w, share in zip(weights, shares, strict=True)]
        self.router_aux_loss_coef = balance * pairs  # for mixtures of experts: a mean per pass
        try:
            return super().compute_loss(model, inputs, return_outputs)  # type: ignore[misc]
        finally:
            self.loss_weights, self.router_aux_loss_coef = weights, balance


def _count_tokens(inputs: Any) -> Any:
    """Count the pairs of a pass and the tokens of its preferred answers, as a tensor."""
    import torch

    rows = inputs["completion_mask"]
    preferred = rows[: len(rows) // 2, 1:]
    return torch.stack([preferred.new_tensor(len(preferred)), preferred.sum()]).double()


def reference_model(job: TrainingJob) -> Any:
    """Load a frozen model, if switching the adapter off doesn't give the reference; else None."""
    settings = job.settings
    parent = loading.read_parent(job)
    from_base = settings.dpo_reference == "base"
    if settings.use_lora and not (from_base and settings.start_from == "stack" and parent):
        return None
    model = loading.load_base(job, trains_all=not settings.use_lora)  # as precise as the policy
    if parent is not None and not from_base:
        loading.merge(model, parent)
    return model.requires_grad_(False).eval()


def _needs_copy(job: TrainingJob) -> bool:
    settings = job.settings
    return settings.start_from == "continue" and settings.dpo_reference != "base"


def _dataset(pairs: Sequence[EncodedPair]) -> Any:
    from datasets import Dataset

    return Dataset.from_dict(
        {
            "prompt_ids": [list(pair.prompt) for pair in pairs],
            "chosen_ids": [list(pair.preferred) for pair in pairs],
            "rejected_ids": [list(pair.rejected) for pair in pairs],
        }
    )
