"""Method `trajectories`: reinforce what was rewarded, from recorded episodes.

`main` calls ``prepare(job, text, events)``. The data comes from `episodes`, the loss is
`policy_gradient.clipped_loss`, in a `policy_trainer.PolicyTrainer`.

The old log-probabilities, those of the policy that acted, are the data's where it has them (the
sampler's own), else those of the weights that the training starts from. They stay the same for all
epochs and when a killed training continues. The reference of `kl_penalty` is what the training
starts from; as the episodes are fixed, its log-probabilities are computed once, and no second model
is kept. Where no episode has an advantage other than 0 nothing is trained, and the result says
``unchanged``.
"""

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
    settings = job.settings
    mode = settings.advantage
    training = read_episodes(job.training_file, text, mode, "training_file")
    validation = read_episodes(job.validation_file, text, mode, "validation_file")
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
    from transformers import TrainingArguments

    from nip_lm_server.training.arguments import common_arguments
    from nip_lm_server.training.policy_trainer import PolicyTrainer

    trainer = PolicyTrainer(
        settings.model_dump(include={"clip_low", "clip_high", "kl_penalty"}),
        text.tokenizer.pad_token_id,
        model=model,
        args=TrainingArguments(**common_arguments(job), remove_unused_columns=False),
        train_dataset=_rows(training),
        eval_dataset=_rows(validation) if validation else None,
        processing_class=text.tokenizer,
    )
    trainer.fill_in(events)
    tokens = sum(len(s.input_ids) for episode in training for s in episode.sequences)
    return loading.Prepared(trainer, tokens)


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
