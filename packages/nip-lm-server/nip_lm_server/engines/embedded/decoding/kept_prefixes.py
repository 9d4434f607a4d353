"""Keys and values of earlier prompts and answers, for prompts that begin with them.

KeptPrefixes   a tree of token ids for each set of weights; `find`, `keep`, within so many bytes

A turn's prompt is the last prompt, its answer and new messages, and all episodes begin with one
system prompt. A prompt is compared with the kept ones token by token. Where a template writes an
answer otherwise than it was generated, only the tokens from that place on are read again. The
branches used longest ago are dropped first, from their ends.

Keys and values depend on all tokens before them and on the weights. So a branch is only found from
its first token on, and the trees of two adapters share nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

_KEPT_SHARE = 0.9
"""Where there is no room, a tenth is freed at once: the search for the oldest looks at all
branches."""

States = Callable[[int, int], torch.Tensor]
"""(from, to) -> keys and values [layers, 2, heads, tokens, size] of these positions: a copy, since
another row will soon overwrite them."""


@dataclass(eq=False)
class _Branch:
    """Consecutive tokens, their keys and values, and the branches after them by first token."""

    tokens: list[int]
    states: torch.Tensor | None  # None: the root of a tree
    parent: "_Branch | None"
    used: int = 0
    children: dict[int, "_Branch"] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return 0 if self.states is None else self.states.nbytes


@dataclass(frozen=True)
class Found:
    """The longest kept beginning of some tokens: its length, and its parts in order."""

    length: int
    parts: tuple[torch.Tensor, ...]


class KeptPrefixes:
    """Keeps at most `most_bytes`, which may change at any time; `make_room` applies a limit."""

    def __init__(self, most_bytes: int):
        self.most_bytes = most_bytes
        self.bytes = 0
        self._trees: dict[str, _Branch] = {}
        self._clock = 0

    def find(self, weights: str, tokens: Sequence[int]) -> Found:
        """Find the longest kept beginning of `tokens` for the weights of this name."""
        length, path, inside = self._walk(weights, tokens)
        parts = [branch.states for branch in path if branch.states is not None]
        if inside and parts:
            parts[-1] = parts[-1][:, :, :, :inside]
        return Found(length, tuple(parts))

    def measure(self, weights: str, tokens: Sequence[int]) -> int:
        """Count the kept tokens at the beginning."""
        return self._walk(weights, tokens)[0]

    def keep(self, weights: str, tokens: Sequence[int], states: States) -> None:
        """Keep the keys and values of `tokens`, except the kept ones."""
        length, path, inside = self._walk(weights, tokens)
        if length == len(tokens):
            return
        new_states = states(length, len(tokens))
        if not self._has_room_for(new_states.nbytes, path):
            return
        branch = path[-1]
        if inside:
            branch = self._split(branch, inside)
        new_branch = _Branch([*tokens[length:]], new_states, branch, self._clock)
        branch.children[new_branch.tokens[0]] = new_branch
        self.bytes += new_branch.bytes

    def forget(self, weights: str) -> None:
        """Drop all keys and values computed with the weights of this name."""
        tree = self._trees.pop(weights, None)
        if tree is not None:
            self.bytes -= sum(branch.bytes for branch in _list_branches(tree))

    def clear(self) -> None:
        """Drop everything."""
        self._trees.clear()
        self.bytes = 0

    def make_room(self, most_bytes: int, kept_branches: Sequence[_Branch] = ()) -> None:
        """Drop the branches used longest ago, until at most `most_bytes` remain."""
        if self.bytes <= most_bytes:
            return
        most_bytes = int(most_bytes * _KEPT_SHARE)
        kept_ids = set(map(id, kept_branches))
        while self.bytes > most_bytes:
            ends = [
                branch
                for tree in self._trees.values()
                for branch in _list_branches(tree)
                if not branch.children and branch.parent is not None and id(branch) not in kept_ids
            ]
            if not ends:
                return
            for branch in sorted(ends, key=lambda end: end.used):
                assert branch.parent is not None
                del branch.parent.children[branch.tokens[0]]
                self.bytes -= branch.bytes
                if self.bytes <= most_bytes:
                    return

    def _has_room_for(self, size: int, kept_branches: Sequence[_Branch]) -> bool:
        """Make room for so many bytes; False if there can't be."""
        # In vain nothing is dropped.
        if size + sum(branch.bytes for branch in kept_branches) > self.most_bytes:
            return False
        if self.bytes + size > self.most_bytes:
            self.make_room(max(0, self.most_bytes - size), kept_branches)
        return self.bytes + size <= self.most_bytes

    def _walk(self, weights: str, tokens: Sequence[int]) -> tuple[int, list[_Branch], int]:
        """(tokens found, the branches on the way, tokens of the last one if not all, else 0)."""
        self._clock += 1
        branch = self._trees.setdefault(weights, _Branch([], None, None))
        path, length = [branch], 0
        while length < len(tokens):
            child = branch.children.get(tokens[length])
            if child is None:
                break
            child.used = self._clock
            path.append(child)
            shared_tokens = _count_shared(child.tokens, tokens, length)
            length += shared_tokens
            if shared_tokens < len(child.tokens):
                return length, path, shared_tokens
            branch = child
        return length, path, 0

    def _split(self, branch: _Branch, length: int) -> _Branch:
        """Cut a branch in two; returns the first half."""
        assert branch.states is not None and branch.parent is not None
        # Copies: a view would hold the memory of both halves when one is dropped.
        head = _Branch(
            branch.tokens[:length],
            branch.states[:, :, :, :length].clone(),
            branch.parent,
            branch.used,
        )
        branch.parent.children[head.tokens[0]] = head
        branch.tokens = branch.tokens[length:]
        branch.states = branch.states[:, :, :, length:].clone()
        branch.parent = head
        head.children[branch.tokens[0]] = branch
        return head


def _count_shared(branch: list[int], tokens: Sequence[int], start: int) -> int:
    wanted_tokens = list(tokens[start : start + len(branch)])
    if wanted_tokens == branch:
        return len(branch)
    pairs = zip(branch, wanted_tokens, strict=False)
    return next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), len(wanted_tokens))


def _list_branches(tree: _Branch) -> list[_Branch]:
    branches = [tree]
    for branch in branches:  # the list grows meanwhile
        branches += branch.children.values()
    return branches
