"""Choosing the next token of every row of a batch, each by its own settings and generator.

Settings             the sampling of one row
row_random           a row's own stream of uniform numbers, from its seed alone
Allowed              the tokens that may come next in some rows
BatchSampler         the settings of a whole batch as tensors; `choose` picks one token per row
Chosen               the picked tokens
widen_scores         logits in the precision in which probabilities are computed

A row's tokens depend on its logits, its settings and its seed, not on its neighbours: each row
draws one uniform number per token from its own generator and inverts its own distribution.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

MIN_TEMPERATURE = 1e-5
"""Below this, sampling is greedy: the likeliest token has nearly all of the probability anyway, and
a division by ever smaller numbers overflows."""

MAX_TOP_LOGPROBS = 20  # as in OpenAI's API

_BLOCK = 256
"""Tokens that are summed up together before one of them is drawn."""


@dataclass(frozen=True)
class Settings:
    """The sampling of one row. Temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    top_k: int = 0  # of the likeliest tokens; 0: all

    @property
    def greedy(self) -> bool:
        """Say whether no number is drawn for this row."""
        return self.temperature < MIN_TEMPERATURE


def row_random(seed: int, choice: int = 0) -> random.Random:
    """A row's own stream of numbers. The i-th choice of a request draws from `seed` + i.

    So the i-th of n answers is the answer that ``seed + i`` alone gives.
    """
    # Hashed, so that streams of neighbouring seeds have nothing to do with each other.
    raw = hashlib.sha256(f"row {seed + choice}".encode()).digest()
    return random.Random(int.from_bytes(raw[:16], "big"))


@dataclass(frozen=True)
class Chosen:
    """One token per row; its log-probability and the likeliest tokens for the `rows` that ask."""

    ids: list[int]
    rows: Sequence[int] = ()
    logprobs: list[float] | None = None
    top: list[list[tuple[int, float]]] | None = None  # id, log-probability; likeliest first


@dataclass(frozen=True)
class Allowed:
    """The only tokens allowed in some rows: True in `tokens` [rows, vocabulary]."""

    rows: torch.Tensor
    tokens: torch.Tensor


def widen_scores(logits: torch.Tensor) -> torch.Tensor:
    """Logits in float32; float64 stays."""
    return logits if logits.dtype == torch.float64 else logits.float()


class BatchSampler:
    """Samples batches of `len(settings)` rows.

    `histories` are the token ids of each row so far, prompt included; they matter to rows with a
    repetition penalty. `vocabulary` is the number of logits per row.
    """

    def __init__(
        self,
        settings: Sequence[Settings],
        randoms: Sequence[random.Random],
        histories: Sequence[Sequence[int]],
        vocabulary: int,
        device: torch.device,
    ):
        self._randoms = randoms
        self._greedy = torch.tensor([s.greedy for s in settings], device=device)
        self._all_greedy = all(s.greedy for s in settings)
        self._drawing = [not s.greedy for s in settings]
        self._temperature = torch.tensor(
            [1.0 if s.greedy else s.temperature for s in settings], device=device
        )[:, None]
        self._is_tempered = any(s.temperature != 1.0 for s in settings if not s.greedy)
        nucleus_rows = [i for i, s in enumerate(settings) if s.top_p < 1.0 and not s.greedy]
        self._nucleus_rows = torch.tensor(nucleus_rows, dtype=torch.long, device=device)
        self._top_p = torch.tensor([settings[i].top_p for i in nucleus_rows], device=device)[
            :, None
        ]
        top_k_rows = [
            i for i, s in enumerate(settings) if 0 < s.top_k < vocabulary and not s.greedy
        ]
        self._top_k_rows = torch.tensor(top_k_rows, dtype=torch.long, device=device)
        self._top_k = torch.tensor([settings[i].top_k for i in top_k_rows], device=device)[:, None]
        penalised_rows = [i for i, s in enumerate(settings) if s.repetition_penalty != 1.0]
        self._penalised_rows = torch.tensor(penalised_rows, dtype=torch.long, device=device)
        self._penalty = torch.tensor(
            [settings[i].repetition_penalty for i in penalised_rows], device=device
        )[:, None]
        self._history_mask = torch.zeros(
            len(penalised_rows), vocabulary, dtype=torch.bool, device=device
        )
        for row, index in enumerate(penalised_rows):
            ids = torch.tensor(sorted(set(histories[index])), dtype=torch.long, device=device)
            self._history_mask[row, ids] = True

    def choose(
        self,
        logits: torch.Tensor,
        allowed: Allowed | None = None,
        *,
        logprobs: bool,
        top: int = 0,
        asking: Sequence[int] | None = None,
        top_at: Sequence[Callable[[int], bool] | None] = (),
        lists_some: Sequence[bool] = (),
    ) -> Chosen:
        """One token per row, from logits of shape [rows, vocabulary].

        Log-probabilities are the model's own among the allowed tokens: before temperature, penalty
        and top-p, rounded to float32. They are given for the rows `asking`, in that order; None:
        for all. The likeliest tokens of a row may include forbidden ones, with minus infinity.
        There are none where the row's `top_at`, in the order of `asking`, says no to the token; a
        row that `lists_some` does not ask there.
        """
        # 1. Apply the grammar and the settings to the model's scores. No penalty brings back a
        #    token at minus infinity.
        logits = widen_scores(logits)
        if allowed is not None:
            masked = logits[allowed.rows].masked_fill(~allowed.tokens, -torch.inf)
            logits = logits.index_copy(0, allowed.rows, masked)
        scores = self._apply_penalty(logits)
        # 2. Most batches are greedy in all rows or in none, and cost less. In a mixed batch one
        #    operation draws for all rows; a greedy row moves no generator.
        if self._all_greedy:
            tokens = scores.argmax(-1)
        else:
            tokens = self._sample(scores)
            if not all(self._drawing):
                tokens = torch.where(self._greedy, scores.argmax(-1), tokens)
        if len(self._penalised_rows):
            self._history_mask.scatter_(1, tokens[self._penalised_rows][:, None], True)
        # 3. Log-probabilities, where a row asks for them.
        # Most batches want none, and need no sum over the vocabulary.
        if not logprobs and not top:
            return Chosen(tokens.tolist())
        ids: list[int] = tokens.tolist()
        # Only for the rows that ask.
        asking = range(len(ids)) if asking is None else asking
        top_at = top_at or [None] * len(asking)
        if any(lists_some):
            places = [
                place
                for place, (row, at) in enumerate(zip(asking, top_at, strict=True))
                if at is None or not lists_some[place] or at(ids[row])
            ]
            asking, top_at = [asking[p] for p in places], [top_at[p] for p in places]
            if not asking:
                return Chosen(ids, (), [], [])
        if [*asking] != [*range(len(ids))]:
            indices = torch.tensor(asking, device=logits.device)
            logits, tokens = logits[indices], tokens[indices]
        total = logits.logsumexp(-1)
        # Rounded at the very end: so in float64 the other rows of a batch leave no trace.
        token_logprobs = (logits.gather(1, tokens[:, None])[:, 0] - total).float()
        if not top:
            return Chosen(ids, asking, token_logprobs.tolist())
        own_ids = [ids[i] for i in asking]
        wanted = zip(top_at, own_ids, strict=True)
        listed = [i for i, (at, token) in enumerate(wanted) if at is None or at(token)]
        alternatives: list[list[tuple[int, float]]] = [[] for _ in own_ids]
        if listed:
            logits, total = logits[listed], total[listed]
            # At least MAX_TOP_LOGPROBS, always: the order of two equal tokens depends on the number
            # of tokens taken, which would depend on the wishes of the other rows.
            best = logits.topk(min(max(top, MAX_TOP_LOGPROBS), logits.shape[1]))
            values = (best.values[:, :top] - total[:, None]).float()
            rows = zip(listed, best.indices[:, :top].tolist(), values.tolist(), strict=True)
            for place, top_ids, top_values in rows:
                alternatives[place] = list(zip(top_ids, top_values, strict=True))
        return Chosen(ids, asking, token_logprobs.tolist(), alternatives)

    def _apply_penalty(self, logits: torch.Tensor) -> torch.Tensor:
        if not len(self._penalised_rows):
            return logits
        rows = logits[self._penalised_rows]
        penalised = torch.where(rows > 0, rows / self._penalty, rows * self._penalty)
        return logits.index_copy(
            0, self._penalised_rows, torch.where(self._history_mask, penalised, rows)
        )

    def _sample(self, scores: torch.Tensor) -> torch.Tensor:
        if self._is_tempered:
            scores = scores / self._temperature
        probabilities = scores.softmax(-1)
        if len(self._top_k_rows):
            rows = probabilities[self._top_k_rows]
            probabilities = probabilities.index_copy(
                0, self._top_k_rows, self._keep_likeliest(rows)
            )
        # Only the rows that ask for it: each has its whole vocabulary sorted.
        if len(self._nucleus_rows):
            rows = probabilities[self._nucleus_rows]
            probabilities = probabilities.index_copy(
                0, self._nucleus_rows, self._keep_nucleus(rows)
            )
        numbers = [
            generator.random() if drawing else 0.0
            for generator, drawing in zip(self._randoms, self._drawing, strict=True)
        ]
        uniform = torch.tensor(numbers, dtype=torch.float64, device=scores.device)[:, None]
        return _invert(probabilities, uniform)

    def _keep_likeliest(self, rows: torch.Tensor) -> torch.Tensor:
        """Zero all but the top-k likeliest tokens, and scale these to a sum of 1."""
        ordered, order = torch.sort(rows, dim=-1, descending=True, stable=True)
        ranks = torch.arange(rows.shape[1], device=rows.device)[None]
        likeliest = ordered.masked_fill(ranks >= self._top_k, 0.0)
        likeliest = likeliest / likeliest.sum(-1, keepdim=True)
        return torch.zeros_like(rows).scatter_(1, order, likeliest)

    def _keep_nucleus(self, rows: torch.Tensor) -> torch.Tensor:
        """Zero all but the nucleus: the fewest likeliest tokens to reach top-p together."""
        ordered, order = torch.sort(rows, dim=-1, descending=True, stable=True)
        mass = ordered.cumsum(-1) - ordered
        nucleus = ordered.masked_fill(mass >= self._top_p, 0.0)
        # With top-p 0, too, one token stays.
        nucleus[:, 0] = ordered[:, 0]
        return torch.zeros_like(rows).scatter_(1, order, nucleus)


def _invert(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The token of each row at which the sum of probabilities reaches `uniform` [rows, 1].

    First the block of tokens is found, then the token in it: only that block is summed up in double
    precision. Tokens are in vocabulary order, which a near-tie can't swap.
    """
    rows, size = probabilities.shape
    padding = -size % _BLOCK
    if padding:
        probabilities = functional.pad(probabilities, (0, padding))
    blocks = probabilities.view(rows, -1, _BLOCK)
    sums = blocks.sum(-1).double()
    ends = sums.cumsum(-1)
    target = _clamp_target(uniform * ends[:, -1:], ends[:, -1:])
    block = torch.searchsorted(ends, target, right=True)
    inside = blocks.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0].double().cumsum(-1)
    target = _clamp_target(target - (ends - sums).gather(1, block), inside[:, -1:])
    return (block * _BLOCK + torch.searchsorted(inside, target, right=True))[:, 0]


def _clamp_target(target: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Bring a target between 0 and the total: rounding may move it out, where no token is."""
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return target.clamp_min(0.0)
