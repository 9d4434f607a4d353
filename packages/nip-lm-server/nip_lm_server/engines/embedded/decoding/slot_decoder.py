"""Decoding of many requests at once on a `PlainLlama`; no prompt's beginning is read twice.

SlotDecoder    a `Decoder` with a slot for each row, kept prefixes, and prompts read in pieces
make_decoder   one for a model that computes as `PlainLlama` does; a `Decoder` for any other

The first slots belong to the rows that are decoded, the slots after them to the prompts that are
being read. A prompt is read from the place where it differs from all kept ones. If its next tokens
are also the next ones of another prompt in the same pass, it waits for the next pass, and reuses
them. So the common beginning of many prompts is computed once, even if they come at the same time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nip_base.machine.allowed_memory import allowed_bytes
from nip_lm_server.chats import chat_template
from nip_lm_server.engines.base import EngineError
from nip_lm_server.engines.embedded.decoding.batching import (
    PREFILL_TOKENS,
    Decoder,
    Row,
    adapter_key,
    is_live,
)
from nip_lm_server.engines.embedded.decoding.kept_prefixes import Found, KeptPrefixes
from nip_lm_server.engines.embedded.decoding.kv_cache import ScarceMemory
from nip_lm_server.engines.embedded.decoding.loaded_model import LoadedModel
from nip_lm_server.engines.embedded.decoding.plain_llama import (
    PlainLlama,
    attend_grouped,
    computes_the_same,
    find_copies,
    read_plain_llama,
    score_causally,
    spread,
)
from nip_lm_server.engines.embedded.decoding.sampling import widen_scores
from nip_lm_server.engines.embedded.decoding.slot_cache import SlotCache
from nip_lm_server.lora.rowwise_lora import LoraAdapter, RowwiseLora

BESIDE_TOKENS = 512
"""Prompt tokens per pass while answers are decoded, which wait for it. A rule of thumb: with far
fewer, a pass over all weights has little to do; with far more, streams stand still."""
_PATIENCE = 4
"""So often longer prompts are read before the prompt that has waited longest."""
_WORTH_WAITING = 32
"""A prompt waits for another one if the two share so many unread tokens. A rule of thumb: a pass of
its own takes about as long as so many tokens."""


@dataclass
class _Reading:
    """Prompts that are read together; `progress[i]` tokens of row i are in its slot."""

    groups: list[Sequence[Row]]
    progress: list[int]

    @property
    def leaders(self) -> list[Row]:
        return [group[0] for group in self.groups]


class SlotDecoder(Decoder):
    """The batch takes its part of `most_bytes` first; kept prefixes take the rest."""

    def __init__(
        self, model: Any, lora: RowwiseLora, stop_tokens: frozenset[int], plain: PlainLlama
    ):
        super().__init__(model, lora, stop_tokens)
        self.plain: PlainLlama | None = plain
        self._copies = plain.copies
        self.kept = KeptPrefixes(0)
        self._scarce = ScarceMemory() if self._device.type == "cpu" else None
        self._slots = SlotCache(plain, model.dtype, self._device)
        self._group = plain.heads // plain.key_heads
        self._queue: list[Sequence[Row]] = []
        self._reading: _Reading | None = None
        self._order: list[int] = []  # slots by adapter
        self._passed_over = 0  # times that the oldest prompt was not read

    def _all_rows(self) -> list[Row]:
        waiting = [*(self._reading.groups if self._reading else ()), *self._queue]
        rows = [*(row for group in waiting for row in group), *self._rows]
        # Other threads call this: a row that has just been read may be in both.
        return [*{id(row): row for row in rows}.values()]

    def clear(self) -> None:
        """Forget all rows and all kept prefixes, as after an error."""
        super().clear()
        self._queue, self._reading, self._order = [], None, []
        self._slots.drop()
        self.kept.clear()

    def leave_model(self) -> None:
        self.plain = None

    def return_to_model(self) -> None:
        self.plain = PlainLlama(self._model, self._lora, self._copies)

    def heed_memory(self) -> None:
        self._make_room(self._slots.bytes)

    def forget(self, adapter: LoraAdapter) -> None:
        """Drop the prefixes kept for an adapter."""
        if not adapter.unchanged:
            self.kept.forget(_name_weights(adapter))

    def admit(self, groups: Sequence[Sequence[Row]]) -> list[Row]:
        """Queue rows; `step` reads their prompts. No row is finished here."""
        self._queue += groups
        self.prompt_tokens_asked += sum(len(group[0].prompt) for group in groups)
        return []

    def step(self) -> list[Row]:
        """Read a piece of the waiting prompts, and add one token to every row."""
        finished = self._read()
        running = [row for row in self._rows if is_live(row)]
        if running:
            self._decode(running)
            finished += [row for row in running if row.finish_reason]
        if self._reading is None:
            self._leave_out_finished()
        return finished

    def score(
        self, sequences: Sequence[Sequence[int]], adapters: Sequence[LoraAdapter | None]
    ) -> list[list[float]]:
        """Log-probability of each token but the first, computed as for answers."""
        assert self.plain is not None
        order = sorted(range(len(sequences)), key=lambda i: adapter_key(adapters[i]))
        with self._lora.rows([adapters[i] for i in order]):
            logits = score_causally(self.plain, [sequences[i] for i in order], self._device)
        results: list[list[float]] = [[] for _ in sequences]
        for row, index in enumerate(order):
            ids = torch.tensor([*sequences[index]][1:], device=self._device)
            scores = widen_scores(logits[row, : len(ids)]).log_softmax(-1)
            results[index] = scores.gather(1, ids[:, None])[:, 0].float().tolist()
        return results

    def logits_after(self, tokens: Sequence[int], adapter: LoraAdapter | None) -> torch.Tensor:
        """The logits [tokens, vocabulary] after each of some tokens, computed as for answers."""
        assert self.plain is not None
        with self._lora.rows([adapter]):
            logits: torch.Tensor = score_causally(self.plain, [tokens], self._device)[0]
        return logits

    # Prompts

    def _read(self) -> list[Row]:
        """Run one pass over waiting prompts; returns the rows finished by their first token."""
        # With more waiting than running, a large pass holds up few, and small ones would many.
        running = sum(map(is_live, self._rows))
        budget = BESIDE_TOKENS if running and len(self._queue) <= running else PREFILL_TOKENS
        if self._reading is not None and not any(
            is_live(row) for group in self._reading.groups for row in group
        ):
            self._reading = None
        if self._reading is None:
            self._begin_reading(budget)
        reading = self._reading
        if reading is None:
            return []
        # 1. The next tokens of each prompt, as many as fit into the pass. A shorter prompt repeats
        #    its last token: that writes the same keys and values again, and gives its last logits.
        leaders, first = reading.leaders, len(self._rows)
        unread = [len(r.prompt) - start for r, start in zip(leaders, reading.progress, strict=True)]
        width = min(max(unread), max(1, budget // len(leaders)))
        places = [
            [min(start + i, len(row.prompt) - 1) for i in range(width)]
            for row, start in zip(leaders, reading.progress, strict=True)
        ]
        ids = [
            [row.prompt[p] for p in row_places]
            for row, row_places in zip(leaders, places, strict=True)
        ]
        logits = self._pass(ids, places, [*range(first, first + len(leaders))], leaders)
        # 2. Count the tokens now, so that a long prompt is seen to advance.
        for i, count in enumerate(unread):
            reading.progress[i] += min(width, count)
            self.prompt_tokens_done += min(width, count)
        if width < max(unread):
            return []
        # 3. All is read: keep it, choose first tokens, and decode these rows from here on.
        finished = self._finish_reading(reading, first, logits)
        self._reading = None
        return finished

    def _begin_reading(self, budget: int) -> None:
        # 1. Choose prompts, the longest first: prompts of like length are read together.
        self._queue = [group for group in self._queue if any(map(is_live, group))]
        if not self._queue:
            return
        groups = self._choose_groups(budget)
        groups.sort(key=lambda group: adapter_key(group[0].adapter))
        identities = set(map(id, groups))
        self._passed_over = 0 if id(self._queue[0]) in identities else self._passed_over + 1
        self._queue = [group for group in self._queue if id(group) not in identities]
        # 2. Fill their slots with the kept beginnings of their prompts, at most all tokens but the
        #    last: the pass needs one token for its logits.
        prefixes = [self._find(group[0]) for group in groups]
        first = len(self._rows)
        self._reserve(first + len(groups), max(len(group[0].prompt) for group in groups), first)
        for i, prefix in enumerate(prefixes):
            start = 0
            for part in prefix.parts:
                self._slots.put(first + i, start, part)
                start += part.shape[3]
            self.prompt_tokens_reused += prefix.length
        self._reading = _Reading(groups, [prefix.length for prefix in prefixes])

    def _choose_groups(self, budget: int) -> list[Sequence[Row]]:
        """Choose prompts to read together, few enough tokens, none waiting for another.

        The longest go first; after _PATIENCE passes without the oldest, the oldest does.
        """
        candidates = [(self._measure(group[0]), group) for group in self._queue]
        oldest = candidates[0][1]
        candidates.sort(key=lambda candidate: candidate[0] - len(candidate[1][0].prompt))
        if self._passed_over >= _PATIENCE:
            candidates.sort(key=lambda candidate: candidate[1] is not oldest)
        groups: list[Sequence[Row]] = []
        beginnings: set[tuple[str, tuple[int, ...]]] = set()
        width = 0
        for kept_tokens, group in candidates:
            row = group[0]
            width = width or len(row.prompt) - kept_tokens
            if len(row.prompt) - kept_tokens > width:  # longer than the oldest, which leads
                continue
            if groups and (len(groups) + 1) * width > budget:
                break
            # The whole beginning: equal tokens after different ones have other keys and values.
            if len(row.prompt) >= kept_tokens + _WORTH_WAITING:
                beginning = (
                    _name_weights(row.adapter),
                    tuple(row.prompt[: kept_tokens + _WORTH_WAITING]),
                )
                if beginning in beginnings:
                    continue
                beginnings.add(beginning)
            groups.append(group)
        return groups

    def _measure(self, row: Row) -> int:
        return self.kept.measure(_name_weights(row.adapter), row.prompt[:-1])

    def _find(self, row: Row) -> Found:
        return self.kept.find(_name_weights(row.adapter), row.prompt[:-1])

    def _finish_reading(self, reading: _Reading, first: int, logits: torch.Tensor) -> list[Row]:
        leaders = reading.leaders
        # Further choices of a request share the first one's prompt.
        rows, sources = list(leaders), [*range(len(leaders))]
        for i, group in enumerate(reading.groups):
            rows += group[1:]
            sources += [i] * (len(group) - 1)
        if len(rows) > len(leaders):
            self._reserve(first + len(rows), 0, first + len(leaders))
            for slot in range(len(leaders), len(rows)):
                length = len(rows[slot].prompt)
                self._slots.copy(first + sources[slot], first + slot, length)
        self._choose(rows, self._sampler_for(rows), logits[sources])
        for i, row in enumerate(leaders):
            if not row.broken:
                self._keep(first + i, row, row.prompt)
        self._rows += rows
        self._arrange()
        return [row for row in rows if row.finish_reason]

    # Answers

    def _decode(self, running: Sequence[Row]) -> None:
        assert self._sampler is not None
        ordered = [self._rows[slot] for slot in self._order]
        longest = max(row.cached for row in running) + 1
        reading = len(self._reading.groups) if self._reading else 0
        self._reserve(len(self._rows), longest, len(self._rows) + reading)
        # A finished row keeps its slot until it is left out. Each step computes its last token
        # again, behind the tokens that are kept of it.
        ids = [[(row.generated or row.prompt)[-1]] for row in ordered]
        places = [[row.cached] for row in ordered]
        logits = self._pass(ids, places, self._order, ordered, longest)
        self._choose(ordered, self._sampler, logits)

    def _leave_out_finished(self) -> None:
        """Keep the tokens of finished rows, and give their slots to the last rows."""
        if all(map(is_live, self._rows)):
            return
        for slot, row in enumerate(self._rows):
            # Abandoned rows too: the same request may come again.
            if row.broken:
                self._slots.clear(slot)
            elif not is_live(row) and row.generated:
                self._keep(slot, row, row.history[: row.cached])
        slot = 0
        while slot < len(self._rows):
            if is_live(self._rows[slot]):
                slot += 1
                continue
            last = self._rows.pop()
            if slot < len(self._rows):
                if is_live(last):
                    self._slots.copy(len(self._rows), slot, last.cached)
                self._rows[slot] = last
        self._arrange()

    def _arrange(self) -> None:
        """Set the order of the rows in a pass: rows of an adapter next to each other."""
        if not self._rows:
            self._slots.drop()
            self._order, self._sampler = [], None
            return
        keys = [adapter_key(row.adapter) for row in self._rows]
        self._order = sorted(range(len(keys)), key=lambda slot: keys[slot])
        self._sampler = self._sampler_for([self._rows[slot] for slot in self._order])

    # Both

    def _pass(
        self,
        ids: list[list[int]],
        places: list[list[int]],
        slots: list[int],
        rows: Sequence[Row],
        longest: int | None = None,
    ) -> torch.Tensor:
        """The logits [rows, vocabulary] after `ids`; writes their states to their slots' places.

        The slots are consecutive numbers, in any order.
        """
        assert self.plain is not None
        longest = longest or max(map(max, places)) + 1
        positions = torch.tensor(places, device=self._device)
        first_slot = min(slots)
        slot_indices = torch.tensor([slot - first_slot for slot in slots], device=self._device)
        is_sorted = slots == sorted(slots)
        slot_order = slot_indices.argsort()
        last_visible = (positions if is_sorted else positions[slot_order])[..., None]
        visible = torch.arange(longest, device=self._device) <= last_visible
        mask = spread(visible, self._group, self._slots.dtype)
        states = [layer[:, first_slot : first_slot + len(slots)] for layer in self._slots.layers]
        write = (slot_indices[:, None], slice(None), positions)

        def attend(
            layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
        ) -> torch.Tensor:
            # Read in the order of the slots, so that a pass copies nothing of the cache.
            layer_states = states[layer]
            layer_states[0][write], layer_states[1][write] = keys, values
            slot_keys, slot_values = layer_states[:, :, :, :longest].unbind()
            ordered = queries if is_sorted else queries[slot_order]
            output = attend_grouped(ordered, slot_keys, slot_values, mask)
            return output if is_sorted else output[slot_indices]

        with self._lora.rows([row.adapter for row in rows]):
            tokens = torch.tensor(ids, device=self._device)
            table = self._slots.places
            return self.plain.run(tokens, positions, table, attend, last=True)[:, -1]

    def _reserve(self, slots: int, places: int, used_slots: int) -> None:
        """Make room for `slots` of so many `places`; `used_slots` keep their contents."""
        places = max([places, *(row.cached + 1 for row in self._rows)])
        if self._reading is not None:
            places = max([places, *(len(row.prompt) for row in self._reading.leaders)])
        # First the kept prefixes make room for the batch.
        self._make_room(self._slots.bytes_with(max(slots, used_slots), places))
        self._slots.reserve(max(slots, used_slots), places, used_slots)

    def _make_room(self, slot_bytes: int) -> None:
        """Limit the prefixes to the bytes beside the slots, and to fewer while memory is short."""
        limit = max(0, self.most_bytes - slot_bytes)
        if self._scarce is not None:
            limit = min(limit, self._scarce.limit(self.kept.bytes))
        self.kept.most_bytes = limit
        self.kept.make_room(limit)

    def _keep(self, slot: int, row: Row, tokens: Sequence[int]) -> None:
        self.kept.keep(
            _name_weights(row.adapter),
            tokens,
            lambda start, end: self._slots.take(slot, start, end),
        )


def make_decoder(loaded: LoadedModel, lora: RowwiseLora) -> Decoder:
    """Make the fastest decoder with the model's own logits.

    Raises EngineError for float64 where that is not a `SlotDecoder`.
    """
    model, stop_tokens = loaded.model, loaded.stop_tokens
    plain = read_plain_llama(model, lora, find_copies(model, allowed_bytes()))
    if plain is not None:
        user = ({"role": "user", "content": "Is the code right?"},)
        ids = chat_template.encode_prompt(loaded.tokenizer, user)
        if computes_the_same(plain, model, ids):
            return SlotDecoder(model, lora, stop_tokens, plain)
    # Float64 would be in vain there: a library's norms round to float32 on the way.
    if loaded.dtype == "float64":
        raise EngineError(
            f"dtype is 'float64', which needs a forward pass of ours, and this "
            f"{type(model).__name__} computes something else than it, so it runs through "
            "transformers: leave dtype out"
        )
    return Decoder(model, lora, stop_tokens)


def _name_weights(adapter: LoraAdapter | None) -> str:
    """The name of the weights behind a row. An adapter of zeros has the base's."""
    return "" if adapter is None or adapter.unchanged else adapter.digest
