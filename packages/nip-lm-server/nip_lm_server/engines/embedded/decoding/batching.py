"""Decoding many requests at once. Synchronous: no threads, no clock.

Row        one answer being generated, with everything that decides its tokens
Decoder    the running batch: `admit` rows, `step` all of them by one token, `score` given tokens

A row joins a running batch after its prompt was run in a batch of prompts of like length. Rows of
one adapter lie next to each other. A finished row is reported at once. It leaves the cache when a
quarter of the rows are finished or when others join, since that copies the cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from nip_lm_server.engines.embedded.decoding.answers import AnswerText
from nip_lm_server.engines.embedded.decoding.kv_cache import ROOM, Part, assemble, new_cache
from nip_lm_server.engines.embedded.decoding.sampling import (
    Allowed,
    BatchSampler,
    Settings,
    widen_scores,
)
from nip_lm_server.engines.guided import Guide
from nip_lm_server.lora.rowwise_lora import LoraAdapter, RowwiseLora

PREFILL_TOKENS = 2048
"""Padded prompt tokens per forward pass; bounds memory, and small passes stay in a CPU's cache. A
rule of thumb: with far more, one pass of prompts holds up all running rows; with far fewer, each
prompt is run alone."""


@dataclass(eq=False)
class Row:
    """One answer. `finish_reason` is None while it is being generated.

    Another thread may read it meanwhile: a token's log-probabilities are added before the token
    itself, and the finish reason after the last token.
    """

    prompt: Sequence[int]
    adapter: LoraAdapter | None
    max_tokens: int
    settings: Settings
    random: Random
    wants_logprobs: bool = False
    wants_top: int = 0  # alternatives per token, likeliest first
    top_at: Callable[[int], bool] | None = None  # the tokens that have some; None: all
    lists_some: bool = False  # only these have a log-probability
    generated: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)  # id, logprob
    text: AnswerText | None = None  # for rows with stop strings
    stop_tokens: frozenset[int] | None = None  # instead of the model's
    guide: Guide | None = None  # for rows with a grammar
    finish_reason: str | None = None
    cancelled: bool = False
    broken: bool = False
    """The model's scores for it were no finite numbers: it has no next token, and none of its keys
    and values are kept."""

    @property
    def history(self) -> list[int]:
        """Prompt and answer so far."""
        return [*self.prompt, *self.generated]

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are in the cache: all but the newest."""
        return len(self.prompt) + len(self.generated) - 1


def is_live(row: Row) -> bool:
    """Say whether a row is still being generated for a reader."""
    return row.finish_reason is None and not row.cancelled


class Decoder:
    """The running batch of one model.

    All methods must be called from one thread, under ``torch.inference_mode()``.
    """

    def __init__(
        self,
        model: Any,
        lora: RowwiseLora,
        stop_tokens: frozenset[int],
    ):
        self._model, self._lora = model, lora
        self._stop_tokens = stop_tokens
        self._device: torch.device = model.device
        self._rows: list[Row] = []
        self._cache: Any = None
        self._length = 0  # positions in the cache
        self._mask: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None
        self._sampler: BatchSampler | None = None
        # They only grow: a decoder whose counters stand still hangs.
        self.prompt_tokens_done = self.generated_tokens = 0
        self.prompt_tokens_asked = self.prompt_tokens_reused = 0
        self.most_bytes = 0
        """Memory for the keys and values of the batch, and for those that a decoder keeps."""

    def _all_rows(self) -> Sequence[Row]:
        """All rows, also the ones whose prompts are not read yet."""
        return self._rows

    @property
    def rows(self) -> int:
        """Rows still being generated."""
        return sum(map(is_live, self._all_rows()))

    @property
    def longest(self) -> int:
        """Return the largest number of positions a running row may come to need."""
        return max(
            (len(r.prompt) + r.max_tokens for r in self._all_rows() if is_live(r)), default=0
        )

    def forget(self, adapter: LoraAdapter) -> None:
        """Drop the keys and values kept for an unloaded adapter."""

    def heed_memory(self) -> None:
        """Keep less where other programs need the memory."""

    def leave_model(self) -> None:
        """Let go of the model's weights before they move."""

    def return_to_model(self) -> None:
        """Take the model's weights up again."""

    def clear(self) -> None:
        """Forget all rows, as after an error."""
        self._rows, self._cache, self._length = [], None, 0
        self._mask = self._positions = self._sampler = None

    def admit(self, groups: Sequence[Sequence[Row]]) -> list[Row]:
        """Run the prompts, choose every row's first token and let the rows join the batch.

        The rows of a group share one prompt and adapter, which is run once. Returns the rows that
        are finished already.
        """
        parts: list[tuple[Any, list[Row], list[int]]] = []
        finished: list[Row] = []
        for chunk in self._chunks(groups):
            # 1. One pass over the chunk's prompts, a row for each group.
            cache, logits = self.prefill([group[0] for group in chunk])
            # 2. The first token of every row of each group, from its group's logits.
            rows = [row for group in chunk for row in group]
            sources = [index for index, group in enumerate(chunk) for _ in group]
            self._choose(rows, self._sampler_for(rows), logits[sources])
            finished += [row for row in rows if row.finish_reason]
            parts.append((cache, rows, sources))
            self.prompt_tokens_asked += sum(len(group[0].prompt) for group in chunk)
        # 3. The others join the batch.
        self._assemble(parts)
        return finished

    def step(self) -> list[Row]:
        """Add one token to every row; returns the rows finished by it."""
        # 1. Leave finished rows out once they are a quarter. A rebuilding copies the cache; until
        #    then they cost a share of each pass. A quarter is a rule of thumb between the two.
        if 4 * sum(map(is_live, self._rows)) <= 3 * len(self._rows):
            self._assemble([])
        if not self._rows:
            return []
        assert self._mask is not None and self._positions is not None and self._sampler is not None
        running = [row for row in self._rows if is_live(row)]
        # 2. One more position for every row.
        self._length += 1
        # The mask grows in pieces, as the cache does: by one it would be copied at every token.
        if self._length > self._mask.shape[1]:
            columns = self._mask.new_ones(len(self._rows), ROOM)
            self._mask = torch.cat([self._mask, columns], 1)
        # 3. One pass over the last token of each row, through the row's own adapter.
        ids = torch.tensor([[row.generated[-1]] for row in self._rows], device=self._device)
        with self._lora.rows([row.adapter for row in self._rows]):
            logits = self._model(
                input_ids=ids,
                attention_mask=self._mask[:, : self._length],
                position_ids=self._positions[:, None],
                past_key_values=self._cache,
                use_cache=True,
            ).logits[:, -1]
        self._positions = self._positions + 1
        # 4. Choose.
        self._choose(self._rows, self._sampler, logits)
        return [row for row in running if row.finish_reason]

    def prefill(self, rows: Sequence[Row]) -> tuple[Any, torch.Tensor]:
        """Run the rows' prompts: their cache, and the logits [rows, vocabulary] after them."""
        ids, mask, positions = self._pad([row.prompt for row in rows])
        cache = new_cache()
        with self._lora.rows([row.adapter for row in rows]):
            # Only a prompt's last logits are read; all of them would take a vocabulary's width for
            # each token.
            output = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        self.prompt_tokens_done += sum(len(row.prompt) for row in rows)
        return cache, output.logits[:, -1]

    def score(
        self, sequences: Sequence[Sequence[int]], adapters: Sequence[LoraAdapter | None]
    ) -> list[list[float]]:
        """Log-probability of each token but the first, given the tokens before it, per sequence.

        It is computed as for answers; `score_by_library` may compute it another way.
        """
        return self.score_by_library(sequences, adapters)

    def score_by_library(
        self, sequences: Sequence[Sequence[int]], adapters: Sequence[LoraAdapter | None]
    ) -> list[list[float]]:
        """The same by the model's own modules, hooks included."""
        # As for answers, where the rows of one adapter are one slice.
        order = sorted(range(len(sequences)), key=lambda i: adapter_key(adapters[i]))
        ids, mask, positions = self._pad([sequences[i] for i in order])
        with self._lora.rows([adapters[i] for i in order]):
            logits = self._model(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
            ).logits
        # In float32: half precision would lose the digits that proofs compare.
        wide = widen_scores(logits[:, :-1])
        scores = wide.log_softmax(-1).gather(2, ids[:, 1:, None])[:, :, 0].float()
        results: list[list[float]] = [[] for _ in sequences]
        for row, index in enumerate(order):
            count = len(sequences[index]) - 1
            results[index] = scores[row, scores.shape[1] - count :].tolist()
        return results

    def logits_after(self, tokens: Sequence[int], adapter: LoraAdapter | None) -> torch.Tensor:
        """The logits [tokens, vocabulary] after each of some tokens."""
        ids = torch.tensor([[*tokens]], device=self._device)
        with self._lora.rows([adapter]):
            logits: torch.Tensor = self._model(input_ids=ids, use_cache=False).logits[0]
        return logits

    def _chunks(self, groups: Sequence[Sequence[Row]]) -> list[list[Sequence[Row]]]:
        """Chunks of groups: prompts of like length, few enough tokens, adapters together."""
        chunks: list[list[Sequence[Row]]] = []
        # By length, so that little of a pass is padding.
        for group in sorted(groups, key=lambda g: -len(g[0].prompt)):
            width = len(chunks[-1][0][0].prompt) if chunks else 0
            if not chunks or (len(chunks[-1]) + 1) * width > PREFILL_TOKENS:
                chunks.append([])
            chunks[-1].append(group)
        for chunk in chunks:
            chunk.sort(key=lambda g: adapter_key(g[0].adapter))
        return chunks

    def _pad(
        self, sequences: Sequence[Sequence[int]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Left-padded ids, mask and positions, each of shape [rows, longest]."""
        width = max(map(len, sequences))
        pads = [width - len(sequence) for sequence in sequences]
        ids = torch.tensor(
            [[0] * pad + [*sequence] for pad, sequence in zip(pads, sequences, strict=True)],
            device=self._device,
        )
        offsets = torch.arange(width, device=self._device)[None]
        starts = torch.tensor(pads, device=self._device)[:, None]
        # Left-padded, so that the newest token of every row is in the last place.
        return ids, (offsets >= starts).long(), (offsets - starts).clamp(min=0)

    def _assemble(self, joining: Sequence[tuple[Any, list[Row], list[int]]]) -> None:
        """Rebuild the batch from its running rows and the joining ones."""
        # 1. All rows with the cache that holds them: number 0 is the batch so far.
        members: list[tuple[Row, int, int]] = []  # row, its cache, its place there
        caches = []
        if self._rows:
            caches.append(self._cache)
            members += [(row, 0, i) for i, row in enumerate(self._rows)]
        for cache, rows, sources in joining:
            members += [(row, len(caches), i) for row, i in zip(rows, sources, strict=True)]
            caches.append(cache)
        # 2. Only live rows, those of an adapter next to each other.
        members = [member for member in members if is_live(member[0])]
        members.sort(key=lambda member: adapter_key(member[0].adapter))
        self.clear()
        if not members:
            return
        # 3. One new cache, as long as its longest row, right-aligned.
        self._rows = [row for row, _, _ in members]
        lengths = torch.tensor([row.cached for row in self._rows], device=self._device)
        self._length = max(row.cached for row in self._rows)
        parts = []
        for number, cache in enumerate(caches):
            places = [(t, source) for t, (_, part, source) in enumerate(members) if part == number]
            if places:
                parts.append(Part(cache, [s for _, s in places], [t for t, _ in places]))
        self._cache = assemble(parts, self._length)
        # 4. A row's empty positions are masked; the mask has room for tokens to come.
        offsets = torch.arange(self._length + ROOM, device=self._device)
        self._mask = (offsets[None] >= (self._length - lengths)[:, None]).long()
        self._positions = lengths
        self._sampler = self._sampler_for(self._rows)

    def _sampler_for(self, rows: Sequence[Row]) -> BatchSampler:
        return BatchSampler(
            [row.settings for row in rows],
            [row.random for row in rows],
            [row.history if row.settings.repetition_penalty != 1.0 else () for row in rows],
            self._model.config.get_text_config().vocab_size,
            self._device,
        )

    def _choose(self, rows: Sequence[Row], sampler: BatchSampler, logits: torch.Tensor) -> None:
        logits = self._break_off(rows, logits)
        asking = [i for i, row in enumerate(rows) if row.wants_logprobs or row.wants_top]
        choice = sampler.choose(
            logits,
            self._mask_allowed(rows, logits.shape[1]),
            logprobs=bool(asking),
            top=max((row.wants_top for row in rows), default=0),
            asking=asking,
            top_at=[rows[i].top_at for i in asking],
            lists_some=[rows[i].lists_some for i in asking],
        )
        positions = {index: place for place, index in enumerate(choice.rows)}
        for index, row in enumerate(rows):
            # Finished rows stay in the batch for a while: their tokens are dropped.
            if not is_live(row):
                continue
            # A reader on another thread counts tokens: the token comes after its other parts.
            place = positions.get(index)
            if choice.logprobs is not None and row.wants_logprobs:
                row.logprobs.append(0.0 if place is None else choice.logprobs[place])
            if choice.top is not None and row.wants_top:
                row.top_logprobs.append([] if place is None else choice.top[place][: row.wants_top])
            if row.guide is not None:
                row.guide.push(choice.ids[index])
            row.generated.append(choice.ids[index])
            self.generated_tokens += 1
            row.finish_reason = self._finish_reason(row)

    def _break_off(self, rows: Sequence[Row], logits: torch.Tensor) -> torch.Tensor:
        """End the rows whose scores are not finite, and replace these scores by zeros."""
        # The largest decides: a NaN or an infinity would be it, and others may be minus infinity.
        finite = logits.amax(-1).isfinite()
        if bool(finite.all()):
            return logits
        for row, is_finite in zip(rows, finite.tolist(), strict=True):
            if not is_finite and is_live(row):
                row.broken = True
                row.finish_reason = "length"  # the row's reader raises the error
        return torch.where(finite[:, None], logits, torch.zeros_like(logits))

    def _mask_allowed(self, rows: Sequence[Row], width: int) -> Allowed | None:
        """Mask the tokens allowed next, for the rows with a grammar."""
        guided_rows = [i for i, row in enumerate(rows) if row.guide is not None and is_live(row)]
        if not guided_rows:
            return None
        # llguidance writes a bit for each token of the vocabulary, 32 to a word.
        words = torch.full((len(guided_rows), -(-width // 32)), -1, dtype=torch.int32)
        for place, index in enumerate(guided_rows):
            guide = rows[index].guide
            assert guide is not None
            guide.fill(words[place])
        bits = words.to(self._device)[:, :, None] >> torch.arange(32, device=self._device)
        allowed = (bits & 1).bool().flatten(1)[:, :width]
        return Allowed(torch.tensor(guided_rows, device=self._device), allowed)

    def _finish_reason(self, row: Row) -> str | None:
        token, is_last = row.generated[-1], len(row.generated) >= row.max_tokens
        # Before the stop tokens: with any token, the answer is outside of its grammar.
        if row.guide is not None and row.guide.failure:
            return "length"  # the row's reader raises the error
        # Before the limit: an answer whose last token ends it is whole.
        if token in (self._stop_tokens if row.stop_tokens is None else row.stop_tokens):
            return "stop"
        if row.text is not None:
            row.text.push(token)
            if is_last:
                row.text.finish()
            if row.text.stopped:
                return "stop"
        return "length" if is_last else None


def adapter_key(adapter: LoraAdapter | None) -> str:
    """A key to sort rows by: it puts the rows of an adapter next to each other."""
    return "" if adapter is None else f"{adapter.name} {adapter.digest}"
