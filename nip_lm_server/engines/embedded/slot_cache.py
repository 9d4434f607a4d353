"""Keys and values of a batch whose rows each begin at position 0 of a slot of their own.

SlotCache   the buffers; rows come and go without a copy of the others

Position p of a row lies at place p of its slot, so what a row has is where its tokens say, whatever
its neighbours' lengths are. Places that are not written are zeros, which a mask leaves out.
"""

import math

import torch

from nip_lm_server.engines.embedded.kv_cache import ROOM
from nip_lm_server.engines.embedded.plain_llama import PlainLlama

_SLOTS = 8
"""Slots are added by so many: each growth copies all. A rule of thumb."""


class SlotCache:
    """`states` is [layers, 2, slots, key heads, places, size]."""

    def __init__(self, plain: PlainLlama, dtype: torch.dtype, device: torch.device):
        self._shape = (plain.layers, 2, 0, plain.key_heads, 0, plain.size)
        self._dtype, self._device = dtype, device
        self.states = self._zeros(0, 0)

    @property
    def bytes(self) -> int:
        """Bytes of the buffers."""
        return int(self.states.nbytes)

    def reserve(self, slots: int, places: int, used: int) -> None:
        """Have room for so many slots of so many places; the first `used` keep what they have."""
        old, size = self.states, self._find_size(slots, places)
        if size is None:
            return
        self.states = self._zeros(*size)
        filled = min(old.shape[4], self.states.shape[4])
        if used and filled:
            self.states[:, :, :used, :, :filled] = old[:, :, :used, :, :filled]

    def bytes_of(self, slots: int, places: int) -> int:
        """Return the bytes of the buffers that `reserve` would make beside these; 0 if none."""
        size = self._find_size(slots, places)
        layers, two, _, heads, _, width = self._shape
        return (
            0
            if size is None
            else math.prod((layers, two, heads, width, *size)) * (self._dtype.itemsize)
        )

    def clear(self, slot: int) -> None:
        """Write zeros into a slot, of which a later row must see nothing."""
        self.states[:, :, slot] = 0

    def drop(self) -> None:
        """Give the memory back."""
        self.states = self._zeros(0, 0)

    def put(self, slot: int, start: int, states: torch.Tensor) -> None:
        """Write keys and values [layers, 2, heads, tokens, size] into a slot."""
        self.states[:, :, slot, :, start : start + states.shape[3]] = states

    def take(self, slot: int, start: int, end: int) -> torch.Tensor:
        """Look at the keys and values of a slot: a view."""
        return self.states[:, :, slot, :, start:end]

    def copy(self, source: int, target: int, length: int) -> None:
        """Have a slot's beginning in another one."""
        self.put(target, 0, self.take(source, 0, length))

    def _find_size(self, slots: int, places: int) -> tuple[int, int] | None:
        """The slots and places of larger buffers; None if these suffice."""
        if slots <= self.states.shape[2] and places <= self.states.shape[4]:
            return None
        # What is asked for now and no more: slots of a time with many rows, times places of one
        # with a long row, might be more than there is memory.
        return -(-slots // _SLOTS) * _SLOTS if slots > 1 else 1, -(-places // ROOM) * ROOM + ROOM

    def _zeros(self, slots: int, places: int) -> torch.Tensor:
        layers, two, _, heads, _, size = self._shape
        # Zeros and not whatever there was: a mask gives them no weight, but no weight of a NaN is
        # a NaN.
        return torch.zeros(
            layers, two, slots, heads, places, size, dtype=self._dtype, device=self._device
        )
