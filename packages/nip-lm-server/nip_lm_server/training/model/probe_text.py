"""The tokens of a training's probe: what its model has learned to write, each in some context.

There an adapter differs most from its base and from other adapters, and the tokens are likely:
log-probabilities of -10 and less, as of tokens drawn at random, are noisy where logits are rounded.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from nip_base import formats
from nip_lm_server.training.job import TrainingJob
from nip_lm_server.training.methods.encoding import EncodedSequence, EncodedTurn, join
from nip_lm_server.training.model import loading

EXAMPLES = 64
"""Lines of the training file that are looked at."""
CONTEXT = 16
"""Tokens before the first one that is learned in a sequence."""
_FEWEST = 16


def probe_text(job: TrainingJob, text: loading.Text) -> list[int]:
    """At most `prove_weights.LONGEST` tokens of the training file, learned ones and those before.

    Of data with hardly any, the tokens of `prove_weights.probe_tokens`.
    """
    from nip_lm_server.lora.prove_weights import LONGEST, probe_tokens

    most = min(LONGEST, text.context or LONGEST)
    tokens: list[int] = []
    for sequence in _sequences(job, text):
        learned = [place for place, action in enumerate(sequence.actions) if action]
        if learned:
            begin = max(0, learned[0] - CONTEXT)
            tokens += sequence.input_ids[begin : learned[-1] + 1]
        if len(tokens) >= most:
            return tokens[:most]
    if len(tokens) < _FEWEST:
        return probe_tokens(text.tokenizer, text.context or 2**31)
    return tokens


def _sequences(job: TrainingJob, text: loading.Text) -> Iterator[EncodedSequence]:
    """The sequences of the first lines, as the job's method trains them."""
    for line, example in islice(formats.parse_checked(job.method, job.training_file), EXAMPLES):
        yield from _encode(job.method, line, example, text)


def _encode(method: str, line: int, example: Any, text: loading.Text) -> list[EncodedSequence]:
    from nip_lm_server.training.methods import dpo, encoding, rl

    if method == "dpo":
        pair = dpo.encode_pair(example, text, line)
        return join([EncodedTurn(pair.prompt, pair.preferred)])
    if method == "trajectories":
        return list(rl.encode_episode(line, example, text).sequences)
    return encoding.encode_example(
        text.tokenizer,
        [message.to_dict() for message in example.messages],
        stop_tokens=text.stop_tokens,
        max_length=text.max_length,
        line=line,
    )
