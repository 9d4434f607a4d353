"""Micro-batches: a step's sequences go through the model a few at a time; gradients add up.

split          lengths and a budget -> groups of sequences that go through together
MicroBatched   mixed into a trainer class, before it

A step always is `batch_size` sequences. A pass takes as many of them as have at most
`tokens_per_pass` tokens, with their padding, and at least one. Sequences of like length go
together, so there is little padding. The loss of each pass is divided by the count of the whole
step, so the sum of the passes' gradients is the gradient of the step, up to rounding: no figure of
the training depends on the budget. A step that fits is one pass, in the order of its batch.

The trainer class counts the items of a step in ``_get_num_items_in_batch``, and transformers gives
the count to its ``compute_loss`` as ``num_items_in_batch``. transformers' own
``gradient_accumulation_steps`` stays 1: it wants equally many sequences in every pass, so a single
long one would decide for all.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from nip_base.machine.processors import Threads


def split(
    lengths: Sequence[int], budget: int, *, packed: bool = False, min_groups: int = 1
) -> list[list[int]]:
    """Group the indices of `lengths` into at most `budget` tokens, the longest sequences first.

    A group costs its longest length for every sequence, or their sum where they are `packed` into
    one row. A sequence that is longer than the budget is a group by itself. There are at least
    `min_groups` groups, if there are as many sequences.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    groups: list[list[int]] = []
    tokens = budget
    for index in order:
        cost = lengths[index] if packed or not groups else lengths[groups[-1][0]]
        if not groups or tokens + cost > budget:
            groups.append([])
            tokens, cost = 0, lengths[index]
        groups[-1].append(index)
        tokens += cost
    while len(groups) < min(min_groups, len(lengths)):
        largest = max(groups, key=len)
        half = len(largest) // 2
        groups.append(largest[half:])
        del largest[half:]
    return groups if len(groups) > 1 else [list(range(len(lengths)))]


class MicroBatched:
    """Splits the steps of a subclass of transformers' Trainer; put it first among the bases.

    Set `tokens_per_pass` before training; None: every step is one pass. Batches are padded on the
    right and have an ``attention_mask`` [rows, tokens], or are one packed row with
    ``cu_seq_lens_q``. `rows_per_example` rows belong together, one block of rows after the other.
    """

    tokens_per_pass: int | None = None
    rows_per_example = 1
    threads: Threads | None = None
    """The number of computing threads, on the processors; adapted before every pass."""
    passes = 0
    """Passes of the last step."""

    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Go through the model once per micro-batch; returns the loss of the step."""
        # transformers' own step does all that a pass needs, so it is called for each.
        usual = super().training_step  # type: ignore[misc]

        def step(model: Any, part: Any, count: Any) -> Any:
            if self.threads is not None:
                self.threads.look()
            return usual(model, part, count)

        parts = self._parts(inputs)
        self.passes = len(parts)
        loss = None
        # Processes exchange their gradients once, after the last pass.
        for part in parts[:-1]:
            with self.accelerator.no_sync(model=model):
                term = step(model, part, num_items_in_batch)
            loss = term if loss is None else loss + term
        term = step(model, parts[-1], num_items_in_batch)
        return term if loss is None else loss + term

    def _parts(self: Any, inputs: Any) -> list[Any]:
        if self.tokens_per_pass is None:
            return [inputs]
        packed = "cu_seq_lens_q" in inputs
        lengths = _lengths(inputs, self.rows_per_example)
        budget = self.tokens_per_pass // self.rows_per_example
        groups = split(lengths, budget, packed=packed)
        pass_count = _largest_count(
            len(groups), self.accelerator
        )  # all processes wait for each other in a pass
        if pass_count == 1:
            return [inputs]
        if pass_count > len(groups):
            groups = split(lengths, budget, packed=packed, min_groups=pass_count)
        if packed:
            return [_take_packed(inputs, group) for group in groups]
        return [
            _take_padded(inputs, group, len(lengths), max(lengths[i] for i in group))
            for group in groups
        ]


def _lengths(inputs: Any, rows_per_example: int) -> list[int]:
    """Tokens of each example's longest row."""
    if "cu_seq_lens_q" in inputs:
        return list(inputs["cu_seq_lens_q"].diff().tolist())
    sizes = inputs["attention_mask"].sum(1).reshape(rows_per_example, -1)
    return list(sizes.amax(0).tolist())


def _largest_count(count: int, accelerator: Any) -> int:
    """Return the largest need of all processes."""
    if accelerator.num_processes == 1:
        return count
    import torch

    return int(accelerator.gather(torch.tensor([count], device=accelerator.device)).max())


def _take_padded(inputs: Any, group: Sequence[int], examples: int, width: int) -> dict[str, Any]:
    """Take some examples of a padded batch, without the columns that only others need."""

    def take(value: Any) -> Any:
        rows = [block + index for block in range(0, value.shape[0], examples) for index in group]
        return value[rows][:, :width] if value.dim() > 1 else value[rows]

    return {name: take(value) for name, value in inputs.items()}


def _take_packed(inputs: Any, group: Sequence[int]) -> dict[str, Any]:
    """Take some sequences of a packed row, as a row."""
    import torch

    bounds, device = inputs["cu_seq_lens_q"].tolist(), inputs["input_ids"].device
    sizes = [bounds[index + 1] - bounds[index] for index in group]
    columns = torch.cat([torch.arange(bounds[i], bounds[i + 1], device=device) for i in group])
    begins = torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device)
    numbers = torch.arange(len(group), dtype=torch.int32, device=device)
    return {
        **{name: inputs[name][:, columns] for name in ("input_ids", "labels", "position_ids")},
        "cu_seq_lens_q": begins,
        "cu_seq_lens_k": begins,
        "max_length_q": max(sizes),
        "max_length_k": max(sizes),
        "seq_idx": torch.repeat_interleave(numbers, torch.tensor(sizes, device=device))[None],
    }
