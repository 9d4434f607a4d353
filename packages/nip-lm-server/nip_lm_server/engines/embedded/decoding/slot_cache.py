"""Keys and values of a batch whose rows each begin at position 0 of a slot of their own.

SlotCache   the buffers; rows come and go without a copy of the others

Position p of a row lies at place p of its slot, at any lengths of its neighbours. Places that are
not written are zeros, which a mask leaves out.
"""

import math

import torch

from nip_lm_server.engines.embedded.decoding.kv_cache import ROOM
from nip_lm_server.engines.embedded.decoding.plain_llama import PlainLlama

_SLOTS = 8
"""So many slots are added at once, since each growth copies all. A rule of thumb."""


class SlotCache:
    """`layers` has for each layer its keys and values [2, slots, key heads, places, size]."""

    def __init__(self, plain: PlainLlama, dtype: torch.dtype, device: torch.device):
        self._count, self._heads, self._width = plain.layers, plain.key_heads, plain.size
        self.dtype, self._device = dtype, device
        self.slots = self.places = 0
        self.layers = [self._zeros(0, 0) for _ in range(self._count)]

    @property
    def bytes(self) -> int:
        """Bytes of the buffers."""
        return sum(layer.nbytes for layer in self.layers)

    def bytes_with(self, slots: int, places: int) -> int:
        """The bytes of the buffers after `reserve`."""
        slots, places = self._find_size(slots, places)
        size = 2 * slots * self._heads * places * self._width
        return math.prod((self._count, size, self.dtype.itemsize))

    def reserve(self, slots: int, places: int, used_slots: int) -> None:
        """Make room for `slots` of so many `places`; the first `used_slots` keep their contents."""
        slots, places = self._find_size(slots, places)
        if (slots, places) == (self.slots, self.places):
            return
        kept_places = min(self.places, places)
        # One layer after the other: all layers in both sizes might exceed the memory.
        for number, layer in enumerate(self.layers):
            buffer = self._zeros(slots, places)
            if used_slots and kept_places:
                buffer[:, :used_slots, :, :kept_places] = layer[:, :used_slots, :, :kept_places]
            self.layers[number] = buffer
            del layer
        self.slots, self.places = slots, places

    def drop(self) -> None:
        """Give the memory back."""
        self.slots = self.places = 0
        self.layers = [self._zeros(0, 0) for _ in range(self._count)]

    def clear(self, slot: int) -> None:
        """Write zeros into a slot, whose contents a later row must not see."""
        for layer in self.layers:
            layer[:, slot] = 0

    def put(self, slot: int, start: int, states: torch.Tensor) -> None:
        """Write keys and values [layers, 2, heads, tokens, size] into a slot."""
        for layer, part in zip(self.layers, states, strict=True):
            layer[:, slot, :, start : start + part.shape[2]] = part

    def take(self, slot: int, start: int, end: int) -> torch.Tensor:
        """Copy the keys and values of a slot."""
        return torch.stack([layer[:, slot, :, start:end] for layer in self.layers])

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy a slot's beginning into another one."""
        for layer in self.layers:
            layer[:, target, :, :length] = layer[:, source, :, :length]

    def _find_size(self, slots: int, places: int) -> tuple[int, int]:
        """The slots and places of the buffers, or larger ones if these are too few."""
        if slots <= self.slots and places <= self.places:
            return self.slots, self.places
        # Only the present need: the slots of a time with many rows, times the places of a time with
        # a long row, might exceed the memory.
        return -(-slots // _SLOTS) * _SLOTS if slots > 1 else 1, -(-places // ROOM) * ROOM + ROOM

    def _zeros(self, slots: int, places: int) -> torch.Tensor:
        # Zeros, and no uninitialised memory: a mask gives it no weight, but zero times a NaN is a
        # NaN.
        shape = (2, slots, self._heads, places, self._width)
        return torch.zeros(shape, dtype=self.dtype, device=self._device)
