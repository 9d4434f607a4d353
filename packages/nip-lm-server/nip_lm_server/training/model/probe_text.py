"""The tokens of a training's probe: tokens that the model has learned, in their context.

An adapter differs most from its base and from other adapters at these, and they are likely tokens.
Random tokens have log-probabilities of -10 and less, which are noisy where logits are rounded.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from nip_base import formats
from nip_lm_server.training.job import TrainingJob
from nip_lm_server.training.methods.encoding import EncodedSequence, EncodedTurn, join
from nip_lm_server.training.model import loading

EXAMPLES = 64
"""Lines of the training file that the probe is taken from."""
CONTEXT = 16
"""Tokens before the first learned one of a sequence."""
_FEWEST = 16


def probe_text(job: TrainingJob, text: loading.Text) -> list[int]:
    """At most `prove_weights.LONGEST` tokens of the training file: learned ones, and their context.

    If the data has fewer than 16, the tokens of `prove_weights.probe_tokens`.
    """
    from nip_lm_server.lora.prove_weights import LONGEST, probe_tokens

    max_tokens = min(LONGEST, text.context or LONGEST)
    tokens: list[int] = []
    for sequence in _sequences(job, text):
        places = [place for place, action in enumerate(sequence.actions) if action]
        if places:
            begin = max(0, places[0] - CONTEXT)
            tokens += sequence.input_ids[begin : places[-1] + 1]
        if len(tokens) >= max_tokens:
            return tokens[:max_tokens]
    if len(tokens) < _FEWEST:
        return probe_tokens(text.tokenizer, text.context or 2**31)
    return tokens


def _sequences(job: TrainingJob, text: loading.Text) -> Iterator[EncodedSequence]:
    """The sequences of the first lines, encoded by the job's method."""
    for line, example in islice(formats.parse_checked(job.method, job.training_file), EXAMPLES):
        yield from _encode(job.method, line, example, text)


def _encode(method: str, line: int, example: Any, text: loading.Text) -> list[EncodedSequence]:
    from nip_lm_server.training.methods import dpo, rl, sft

    if method == "dpo":
        pair = dpo.encode_pair(example, text, line)
        return join([EncodedTurn(pair.prompt, pair.preferred)])
    if method == "trajectories":
        return list(rl.encode_episode(line, example, text).sequences)
    return sft.encode_conversation(line, example, text)
