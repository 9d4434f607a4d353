"""Method `supervised`: learn the assistant messages of conversations, by TRL's SFTTrainer.

`main` calls ``prepare(job, text, events)``. Sequences and labels come from `encoding`, so TRL
prepares nothing. With `packing` the sequences of a pass stand one after the other in one row,
without padding, and don't see each other (TRL's padding-free batches). Every step learns from the
same sequences, with the same loss, as without packing.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nip_base.formats import SupervisedExample
from nip_lm_server.training.job import Events, TrainingError, TrainingJob
from nip_lm_server.training.methods import encoding
from nip_lm_server.training.methods.encoding import EncodedSequence, encode_example
from nip_lm_server.training.methods.micro_batches import MicroBatched
from nip_lm_server.training.model import loading
from nip_lm_server.training.model.device import choose_device


def prepare(job: TrainingJob, text: loading.Text, events: Events) -> loading.Prepared:
    """Read the data, load the model and build the trainer. Raises TrainingError."""
    training = encode_file(job.training_file, text, "training_file")
    validation = encode_file(job.validation_file, text, "validation_file")
    tokens = sum(len(example.input_ids) for example in training)
    events.message(
        f"{len(training)} sequences, {tokens} tokens, "
        f"{sum(example.learned for example in training)} of them learned"
    )
    trainer = build_trainer(job, loading.load_start(job), text, training, validation)
    return loading.Prepared(trainer, tokens)


def encode_file(path: Path | None, text: loading.Text, param: str) -> list[EncodedSequence]:
    """Encode every line of a JSONL file; none for None. Raises TrainingError, naming the line."""
    encode = partial(encode_conversation, text=text)
    encoded = encoding.encode_file("supervised", path, param, encode)
    return [sequence for sequences in encoded for sequence in sequences]


def encode_conversation(
    line: int, example: SupervisedExample, text: loading.Text
) -> list[EncodedSequence]:
    """Encode one line. Raises ExampleError."""
    return encode_example(
        text.tokenizer,
        [message.to_dict() for message in example.messages],
        stop_tokens=text.stop_tokens,
        max_length=text.max_length,
        line=line,
    )


def build_trainer(
    job: TrainingJob,
    model: Any,
    text: loading.Text,
    training: Sequence[EncodedSequence],
    validation: Sequence[EncodedSequence],
) -> Any:
    """Build TRL's trainer over encoded sequences."""
    from trl import SFTConfig, SFTTrainer

    from nip_lm_server.training.methods.arguments import common_arguments
    from nip_lm_server.training.methods.checkpoints import CheckpointedTrainer
    from nip_lm_server.training.methods.head import score_labelled_alone
    from nip_lm_server.training.model.memory import plan_passes

    class Trainer(MicroBatched, CheckpointedTrainer, SFTTrainer):  # type: ignore[misc]
        pass

    packing = job.settings.packing
    if packing is None:
        packing = choose_device(job) == "cuda" and gains_by_packing(model) and keeps_apart(model)
    elif packing and not keeps_apart(model):
        raise TrainingError(
            "packing_unsupported",
            f"the attention {model.config._attn_implementation!r} of this model lets sequences in "
            "one row see each other: train without packing",
            "packing",
        )
    lengths, validated = ([len(e.input_ids) for e in part] for part in (training, validation))
    passes = plan_passes(job, model, lengths, validated)
    trainer = Trainer(
        model=model,
        args=SFTConfig(
            **common_arguments(job, passes),
            max_length=None,  # longer examples were refused, and none is ever cut
            packing=False,
            padding_free=packing,
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=_dataset(training),
        eval_dataset=_dataset(validation) if validation else None,
        processing_class=text.tokenizer,
    )
    trainer.tokens_per_pass = passes.tokens_per_pass
    if choose_device(job) == "cpu":
        score_labelled_alone(getattr(model, "get_base_model", lambda: model)())
    # The loss is TRL's own, over the tokens of the step, for any arguments of the model's forward.
    trainer.model_accepts_loss_kwargs = True
    return trainer


def gains_by_packing(model: Any) -> bool:
    """Return whether the attention doesn't compute the pairs of tokens of different sequences.

    Other attentions compute and mask them: their work grows with the square of the row, so a packed
    row costs more than the padding that it saves.
    """
    name = str(model.config._attn_implementation)
    return name == "flex_attention" or "flash" in name


def keeps_apart(model: Any) -> bool:
    """Return whether a sequence has the same logits alone and after another one in the same row.

    The model itself is tried, because it depends on its code and on its attention: positions that
    begin anew must begin a new sequence.
    """
    import torch

    first, second = list(range(8)), list(range(8, 16))

    def logits(ids: list[int], positions: list[int]) -> Any:
        inputs = {"input_ids": ids, "position_ids": positions}
        rows = {name: torch.tensor([row], device=model.device) for name, row in inputs.items()}
        return model(**rows, use_cache=False).logits[0, -len(second) :].float()

    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            alone_logits = logits(second, first)
            row = logits(first + second, first + first)
            joined = logits(first + second, first + second)
    except TypeError:  # a model that takes no positions
        return False
    finally:
        model.train(training)
    difference, joined_difference = (
        (both_logits - alone_logits).abs().max() for both_logits in (row, joined)
    )
    return bool(difference <= 0.1 * joined_difference)  # a smaller difference is rounding


def _dataset(examples: Sequence[EncodedSequence]) -> Any:
    from datasets import Dataset

    return Dataset.from_dict(
        {
            "input_ids": [list(example.input_ids) for example in examples],
            "labels": [example.labels for example in examples],
        }
    )
