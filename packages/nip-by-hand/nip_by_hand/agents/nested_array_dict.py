"""Arrays under nested keys that share their leading shape: a batch in memory.

A key is a tuple of names, ``("agents", "message")``; a single name may stand without its tuple.
The leading dimensions of every array are the batch size, the further ones are the key's own.
Indices, slices and masks apply to the batch dimensions of all arrays at once.

Strings have NumPy's variable-width type, in which None is a missing one (STRING). Other arrays
keep the type they come with; an array of objects keeps its objects.

Nothing here knows the meaning of a game's keys; `nip_by_hand.agents.batch` does.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np

STRING = np.dtypes.StringDType(na_object=None)

Array = np.ndarray[Any, Any]
Key = str | tuple[str, ...]
Path = tuple[str, ...]


class NestedArrayDict:
    """Arrays by nested key with a common leading shape, `batch_size`.

    ``d["a", "b"]`` is an array, ``d["a"]`` the part below "a", whose arrays are the same ones: to
    assign there is to assign here. ``d[0]``, ``d[1:, -1]``, ``d[mask]`` and every other index of
    NumPy give the batch of these places, as views where NumPy gives views.

    Raises ValueError, with key and shapes, for an array that does not begin with the batch size
    and for a key that is both an array and a node; KeyError for a key that isn't here; IndexError
    for an index that goes beyond the batch dimensions.
    """

    def __init__(self, source: Mapping[Any, Any], batch_size: Sequence[int]):
        self._batch_size = tuple(int(size) for size in batch_size)
        self._arrays: dict[Path, Array] = {}
        self._node: Path = ()  # of the arrays, the ones below it are this batch
        for key, value in source.items():
            self[key] = value

    @classmethod
    def _over(
        cls, arrays: dict[Path, Array], batch_size: tuple[int, ...], node: Path = ()
    ) -> "NestedArrayDict":
        part = cls({}, batch_size)
        part._arrays, part._node = arrays, node
        return part

    @property
    def batch_size(self) -> tuple[int, ...]:
        """The leading shape of every array."""
        return self._batch_size

    def __len__(self) -> int:
        """The first batch dimension."""
        if not self._batch_size:
            raise TypeError("a batch without dimensions has no length")
        return self._batch_size[0]

    def __iter__(self) -> Iterator["NestedArrayDict"]:
        """The parts along the first batch dimension; the keys are in `keys()`."""
        return (self[i] for i in range(len(self)))

    # Keys.

    def keys(self) -> list[Path]:
        """List the keys of all arrays, in the order of their arrival."""
        return [key for key, _ in self.items()]

    def items(self) -> list[tuple[Path, Array]]:
        """All arrays with their keys."""
        depth = len(self._node)
        return [(k[depth:], array) for k, array in self._arrays.items() if _is_below(k, self._node)]

    def __contains__(self, key: object) -> bool:
        path = _path(key)
        return path is not None and any(key == path or _is_below(key, path) for key in self.keys())

    def get(self, key: Key, default: Any = None) -> Any:
        """Give ``d[key]``, or `default` where there is nothing of this key."""
        if key not in self:
            return default
        return self[key]

    def __getitem__(self, key: Any) -> Any:
        """The array or the part under a key, or the batch at an index."""
        path = _path(key)
        if path is None:
            return self._at(key)
        place = self._node + path
        if place in self._arrays:
            return self._arrays[place]
        if path not in self:
            names = ", ".join(_shown(key) for key in self.keys())
            raise KeyError(f"{_shown(path)} is not in the batch; there are {names or 'no keys'}")
        return self._over(self._arrays, self._batch_size, place)

    def __setitem__(self, key: Key, value: Any) -> None:
        """Put an array, or a mapping of arrays, under a key. It may replace one of its kind."""
        path = _path(key)
        if path is None:
            raise TypeError(
                f"only keys can be assigned to, got the index {key!r}; assign to the arrays: "
                'd["key"][index] = value'
            )
        if isinstance(value, NestedArrayDict | Mapping):
            for inner, array in value.items():
                inner_path = _path(inner)
                if inner_path is None:
                    raise TypeError(f"{_shown(path)}: {inner!r} below it is no name")
                self[path + inner_path] = array
            return
        array = _array(value)
        if array.shape[: len(self._batch_size)] != self._batch_size:
            raise ValueError(
                f"{_shown(path)}: shape {array.shape} does not begin with the batch size "
                f"{self._batch_size}"
            )
        for depth in range(1, len(path)):
            if self._node + path[:depth] in self._arrays:
                raise ValueError(f"{_shown(path)}: {_shown(path[:depth])} is an array already")
        place = self._node + path
        if any(_is_below(existing, place) for existing in self._arrays):
            raise ValueError(f"{_shown(path)}: there are keys below it, so it can't be an array")
        self._arrays[place] = array

    # Places in the batch.

    def _at(self, index: Any) -> "NestedArrayDict":
        places = _explicit(index, len(self._batch_size))
        shape = np.broadcast_to(np.zeros((), bool), self._batch_size)
        try:
            size = shape[(*places, ...)].shape
        except IndexError as error:
            raise IndexError(
                f"index {index!r} does not fit the batch size {self._batch_size}: {error}"
            ) from None
        # The dots make an array of a single place too, and leave the dimensions after the batch.
        return self._over({key: array[(*places, ...)] for key, array in self.items()}, size)

    @classmethod
    def stack(cls, batches: Sequence["NestedArrayDict"], dim: int = 0) -> "NestedArrayDict":
        """Batches of one size along a new batch dimension. Raises ValueError if they differ."""
        size = _same_keys(batches, "stack")
        for batch in batches:
            if batch.batch_size != size:
                raise ValueError(f"stack: batch sizes {size} and {batch.batch_size} differ")
        axis = _dimension(dim, len(size) + 1, "stack")
        new = (*size[:axis], len(batches), *size[axis:])
        return cls(
            {key: _joined(np.stack, key, batches, axis) for key, _ in batches[0].items()}, new
        )

    @classmethod
    def cat(cls, batches: Sequence["NestedArrayDict"], dim: int = 0) -> "NestedArrayDict":
        """Batches end to end along a batch dimension. Raises ValueError if another one differs."""
        size = _same_keys(batches, "cat")
        axis = _dimension(dim, len(size), "cat")
        lengths = []
        for batch in batches:
            size_of_batch = batch.batch_size
            if (
                len(size_of_batch) != len(size)
                or (*size_of_batch[:axis], size[axis], *size_of_batch[axis + 1 :]) != size
            ):
                raise ValueError(
                    f"cat along {axis}: batch sizes {size} and {size_of_batch} differ elsewhere"
                )
            lengths.append(size_of_batch[axis])
        new = (*size[:axis], sum(lengths), *size[axis + 1 :])
        joined = {key: _joined(np.concatenate, key, batches, axis) for key, _ in batches[0].items()}
        return cls(joined, new)

    def equals(self, other: "NestedArrayDict") -> bool:
        """Compare batch size, keys, shapes, types and values; NaN is equal to NaN."""
        mine, theirs = dict(self.items()), dict(other.items())
        return (
            self._batch_size == other.batch_size
            and mine.keys() == theirs.keys()
            and all(_same(array, theirs[key]) for key, array in mine.items())
        )

    def __repr__(self) -> str:
        lines = [f"  {_shown(key)}: {array.dtype} {array.shape}" for key, array in self.items()]
        return "\n".join([f"NestedArrayDict, batch size {self._batch_size}", *lines])


def _path(key: object) -> Path | None:
    """The key as a tuple of names; None if it is no key, but perhaps an index."""
    if isinstance(key, str):
        return (key,)
    if isinstance(key, tuple) and key and all(isinstance(name, str) for name in key):
        return key
    return None


def _is_below(path: Path, node: Path) -> bool:
    return len(path) > len(node) and path[: len(node)] == node


def _shown(path: Path) -> str:
    return repr(path[0]) if len(path) == 1 else repr(path)


def _array(value: Any) -> Array:
    """Arrays as they are; fixed-width strings, and lists of strings and None, as STRING."""
    if isinstance(value, np.ndarray):
        return value.astype(STRING) if value.dtype.kind in "UT" and value.dtype != STRING else value
    array = np.asarray(value)
    listed = array.dtype == object and all(x is None or isinstance(x, str) for x in array.flat)
    return array.astype(STRING) if listed or array.dtype.kind in "UT" else array


def _explicit(index: Any, dimensions: int) -> tuple[Any, ...]:
    """Put slices for the dots of an index; dots stand for batch dimensions only."""
    parts = index if isinstance(index, tuple) else (index,)
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    if not dots:
        return parts
    used = sum(
        np.ndim(part) if np.asarray(part).dtype == bool else 1
        for part in parts
        if part is not None and part is not Ellipsis
    )
    filled = (slice(None),) * max(dimensions - used, 0)
    return (*parts[: dots[0]], *filled, *parts[dots[0] + 1 :])


def _same_keys(batches: Sequence[NestedArrayDict], function: str) -> tuple[int, ...]:
    """The batch size of the first."""
    if not batches:
        raise ValueError(f"{function}: there are no batches")
    for one, second in pairwise(batches):
        differing = set(one.keys()) ^ set(second.keys())
        if differing:
            names = ", ".join(_shown(key) for key in sorted(differing))
            raise ValueError(f"{function}: not all batches have {names}")
    return batches[0].batch_size


def _dimension(dim: int, dimensions: int, function: str) -> int:
    if not -dimensions <= dim < dimensions:
        raise ValueError(f"{function}: dim must be in [{-dimensions}, {dimensions}) (got {dim})")
    return dim % dimensions


def _joined(join: Any, key: Path, batches: Sequence[NestedArrayDict], axis: int) -> Array:
    arrays = [batch[key] for batch in batches]
    try:
        return cast(Array, join(arrays, axis=axis))
    except ValueError:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise ValueError(f"{_shown(key)}: shapes {shapes} can't be joined") from None


def _same(one: Array, other: Array) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
