"""P(accept): how likely a model was to accept rather than reject, where it decided."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.game.answers.parsing import AnswerForm
from nip_core.protocols import ACCEPT, REJECT, TokenChoice
from nip_core.protocols.scales import DecisionScale
from nip_core.rollouts.trees import for_each_episode

LIKELIEST = 5
"""Both words are among so many where a model decides; if one is not, its probability is at most
that of the last."""
_WORDS = {ACCEPT: "accept", REJECT: "reject"}
PLACES = {"top_logprobs_at": [*_WORDS.values()]}
"""Of a request to the run's own server: no other place is looked at, and the embedded engine, to
which each has its cost, lists alternatives only where one of the words may begin."""
ONLY_PLACES = {"logprobs_at": [*_WORDS.values()]}
"""The same where no log-probability is recorded: it computes none for other tokens."""
_BEFORE_WORD = re.compile(r"^[^a-z]+")
_LABEL = re.compile(
    r"(?m)^\W*(?:my |the )?(?:final )?(?:decision|verdict|answer)\b[^\w\n]*?(?:[:=–—-]|$)"
)
"""The label before a verdict, as in "Decision:"; "Decision criteria: ..." is none."""
GENERATIONS_OF_ACCEPTANCE = (
    *("episode", "branch_path", "round", "agent"),
    *("decision", "invalid_reason", "p_accept"),
)
"""The columns of `generations` that `find_acceptance` reads."""


def has_two_answers(scale: DecisionScale) -> bool:
    """Tell whether a verifier answers "accept" or "reject" and nothing between."""
    return set(scale.values) == set(_WORDS.values())


def can_be_estimated(form: AnswerForm) -> bool:
    """Tell whether an answer of this form may have a verdict of which P(accept) is known."""
    return form.scale is not None and has_two_answers(form.scale)


def estimate_acceptance(
    tokens: Sequence[TokenChoice], decision: int, temperature: float | None = None
) -> float | None:
    """Estimate the probability of "accept" against "reject" where the word of `decision` begins.

    The text before that word is taken as written. `tokens` have the natural logarithms of the
    model's probabilities before `temperature`, with which it samples. A temperature of None or 0
    counts as 1, which keeps the order. A word that is not among the likeliest counts as likely as
    the least likely of them, which is an upper bound. Returns None where the answer decided
    nothing, or in other words, and where the token has no alternatives or begins with other text.
    """
    place = _find_token(tokens, decision)
    if place is None or not {*place.top} - {place.token}:
        return None
    # 1. How likely each of the words was there.
    top = {**place.top, place.token: place.logprob}
    floor = math.exp(min(top.values()))
    masses = dict.fromkeys(_WORDS.values(), 0.0)
    for alternative, logprob in top.items():
        letters = _BEFORE_WORD.sub("", alternative.lower())
        for word in masses:
            if letters and (word.startswith(letters) or letters.startswith(word)):
                masses[word] += math.exp(logprob)
    if not masses[_WORDS[decision]]:
        return None
    # 2. At the temperature of play, of these two alone. A probability too small for a number is 0.
    accept, reject = (_log(mass or floor) for mass in masses.values())
    if max(accept, reject) == -math.inf:
        return None
    odds = (accept - reject) / (temperature or 1.0)
    return 1.0 / (1.0 + math.exp(-max(-700.0, min(700.0, odds))))


def _log(mass: float) -> float:
    return math.log(mass) if mass > 0 else -math.inf


def _find_token(tokens: Sequence[TokenChoice], decision: int) -> TokenChoice | None:
    """Find the token with the first letter of the deciding word.

    The deciding word is the first one behind the last label such as "Decision:". Without a label
    it is the last one of the text.
    """
    word = _WORDS.get(decision)
    if word is None:
        return None
    parts = [token.token.lower() for token in tokens]
    text = "".join(parts)
    # Not within another word, as in "unacceptable".
    starts = [match.start() for match in re.finditer(rf"(?<![a-z]){word}", text)]
    if not starts:
        return None
    labels = [match.end() for match in _LABEL.finditer(text)]
    labelled_starts = [start for start in starts if labels and start >= labels[-1]]
    place = labelled_starts[0] if labelled_starts else starts[-1]
    end = 0
    for token, part in zip(tokens, parts, strict=True):
        end += len(part)
        if end > place:
            return token
    return None


def find_acceptance(episodes: pa.Table, generations: pa.Table) -> pa.Array:
    """Find P(accept) of each episode, as the verifier's last answer with the verdict has it.

    It is null where the episode failed or has no verdict, where the verdict came from elsewhere
    than an answer of the verifier, and where the answer has no P(accept). `generations` need
    `GENERATIONS_OF_ACCEPTANCE`. An answer shared by a tree's leaves counts for each of them.
    """
    spoken = generations.select(GENERATIONS_OF_ACCEPTANCE)
    if spoken["p_accept"].null_count == spoken.num_rows:  # as in most tables of earlier versions
        return pa.nulls(episodes.num_rows, pa.float64())
    # 1. The answers that may have decided an episode.
    decided = pc.and_(
        pc.and_(pc.equal(spoken["agent"], "verifier"), pc.is_null(spoken["invalid_reason"])),
        pc.is_in(spoken["decision"], value_set=pa.array([*_WORDS], spoken["decision"].type)),
    )
    answers = for_each_episode(episodes, spoken.filter(decided))
    owner = pc.index_in(answers["episode"], value_set=episodes["key"].combine_chunks())
    answers = answers.filter(pc.is_valid(owner))
    owners = owner.drop_null().to_numpy()
    # 2. The last one of each: a later one overwrites it. In numpy, as there may be many shards.
    order = np.argsort(answers["round"].to_numpy(), kind="stable")
    decision = np.full(episodes.num_rows, -1)
    likely = np.full(episodes.num_rows, np.nan)
    decision[owners[order]] = answers["decision"].to_numpy()[order]
    likely[owners[order]] = answers["p_accept"].to_numpy()[order]  # null is NaN
    # 3. It counts where the episode went by it.
    failed = pc.equal(episodes["outcome"], "failed").to_numpy()
    counts = (decision == episodes["decision"].to_numpy()) & ~failed
    return pa.array(np.where(counts, likely, np.nan), pa.float64(), from_pandas=True)
