"""The keys and values of a running batch, in buffers with room to grow.

RoomyLayer        one layer's keys and values; a step writes in place instead of copying everything
new_cache         an empty cache to hand to a model
find_cache_room   the bytes that keys and values may take
ScarceMemory      the bytes that may be kept while the machine's memory is short
assemble          rows of several caches -> one new cache, right-aligned, padding trimmed

Rows are aligned at their ends (left padding): row r of length l occupies the last l positions.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from nip_base.machine.allowed_memory import allowed_bytes, free_bytes

ROOM = 64
"""Positions by which a buffer grows: one copy of the cache per so many tokens. A rule of thumb:
more room is memory that short answers never fill, less room means more copies."""

_CPU_CACHE_BYTES = 4 << 30
"""A rule of thumb: with less, requests wait for room sooner, and their beginnings are read again;
with more, the cache takes memory that trainings on the same machine need. Memory is taken as the
cache fills."""
_CPU_CACHE_SHARE = 0.25
"""The largest share of the memory that this process may have, for the same reason."""
_LEFT_FREE = 0.125
"""The share of that memory that stays free on CPUs, for other programs and for the passes, which
take their memory all at once. A rule of thumb."""
_MOST_LEFT_FREE = 1 << 30
_LITTLE = 1.0
"""With less than so many times that share to spare, freed memory is returned, and counted again."""
_LOOK_S = 0.5
"""Seconds between two looks: to read the free memory takes some tenths of a millisecond."""
_CUDA_CACHE_SHARE = 0.6
"""The rest of the free memory is for the passes themselves, which grow with prompts and rows. Their
size depends on the model, so this is a rule of thumb too."""


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of shape [rows, heads, length, size], views of larger buffers."""

    is_initialized: bool

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append and return all keys and values so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = (key_states, value_states)
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        old_length = self.keys.shape[2]
        new_length = old_length + key_states.shape[2]
        # With room to spare, a step writes in place; growth by one would copy the cache at every
        # token.
        if new_length > self._buffers[0].shape[2]:
            self._grow(new_length + ROOM)
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, old_length:new_length] = states
        self.keys, self.values = (buffer[:, :, :new_length] for buffer in self._buffers)
        return self.keys, self.values

    def adopt(self, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
        """Take over buffers whose first `length` positions are filled."""
        self.dtype, self.device = keys.dtype, keys.device
        self._buffers = (keys, values)
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]
        self.is_initialized = True

    def _grow(self, capacity: int) -> None:
        buffers = []
        for states in (self.keys, self.values):
            rows, heads, length, size = states.shape
            buffer = states.new_zeros(rows, heads, capacity, size)
            buffer[:, :, :length] = states
            buffers.append(buffer)
        self._buffers = (buffers[0], buffers[1])


def new_cache() -> Any:
    """Make an empty cache with layers of `RoomyLayer`, for any kind of attention.

    Sliding windows are then applied by the model's masks alone.
    """
    cache = DynamicCache()
    cache.layer_class_to_replicate = RoomyLayer
    return cache


@dataclass(frozen=True)
class Part:
    """Rows to take from `cache`: row `sources[i]` becomes row `targets[i]` of a new cache."""

    cache: Any
    sources: Sequence[int]
    targets: Sequence[int]


def assemble(parts: Sequence[Part], length: int) -> Any:
    """A new cache of all `parts`' rows, cut or padded on the left to `length` positions."""
    rows = sum(len(part.targets) for part in parts)
    cache = new_cache()
    for layers in zip(*(part.cache.layers for part in parts), strict=True):
        buffers = []
        for kind in ("keys", "values"):
            first = getattr(layers[0], kind)
            buffer = first.new_zeros(rows, first.shape[1], length + ROOM, first.shape[3])
            for part, layer in zip(parts, layers, strict=True):
                states = getattr(layer, kind)
                width = min(length, states.shape[2])
                sources = torch.tensor(part.sources, device=states.device)
                targets = torch.tensor(part.targets, device=states.device)
                copied = states[:, :, states.shape[2] - width :].index_select(0, sources)
                buffer[:, :, length - width : length].index_copy_(0, targets, copied)
            buffers.append(buffer)
        layer = RoomyLayer()
        layer.adopt(buffers[0], buffers[1], length)
        cache.layers.append(layer)
    return cache


def find_cache_room(setting: int | None, device: str) -> int:
    """The bytes for keys and values: `setting`, or a share of the memory.

    A card's free memory, once the weights are on it, stays about the same. A machine's does not, as
    other programs come and go: see `ScarceMemory`.
    """
    if setting is not None:
        return setting
    if device != "cpu":
        return int(_CUDA_CACHE_SHARE * torch.cuda.mem_get_info(device)[0])
    return min(_CPU_CACHE_BYTES, int(_CPU_CACHE_SHARE * allowed_bytes()))


class ScarceMemory:
    """Says how many bytes may be kept beside other programs, so that some memory stays free."""

    def __init__(
        self,
        allowed: Callable[[], int] = allowed_bytes,
        free: Callable[[], int] = free_bytes,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._free, self._clock = free, clock
        self._left_free = min(_MOST_LEFT_FREE, int(_LEFT_FREE * allowed()))
        self._looked_s: float | None = None
        self._most = 0

    def limit(self, kept_bytes: int) -> int:
        """The limit of kept bytes; `kept_bytes` are kept now."""
        now_s = self._clock()
        if self._looked_s is not None and now_s - self._looked_s < _LOOK_S:
            return self._most
        spare_bytes = self._free() - self._left_free
        if spare_bytes < _LITTLE * self._left_free:
            # Freed memory that the allocator holds looks used, and would lower the limit further.
            _return_freed()
            spare_bytes = self._free() - self._left_free
        self._looked_s, self._most = now_s, max(0, kept_bytes + spare_bytes)
        return self._most


def _return_freed() -> None:
    """Give back the freed memory still held by the C library, if this is glibc."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
