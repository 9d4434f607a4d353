"""The memory that this process may have, and how much of it is free.

allowed_bytes   the machine's memory, or the least limit of a container around this process
limit_bytes     that limit alone
free_bytes      bytes that can be taken before the machine, or a container, is full
describe_memory all three in words

All that divide memory ask here: the embedded engine's cache, trainings, `nip sweep --jobs` and
`nip doctor`. Limits are those of control groups, version 1 and 2, of every group above this process
(`control_groups`). Not covered: limits on addresses (`ulimit -v`), which are no limits on memory,
and those of systems other than Linux. Standard library only.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from nip_base.machine.control_groups import PROC, find_groups, read_number

_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
"""Above `high` a process is slowed down until it gives memory back, so it is a limit, too."""
_USED = ("memory.current", "memory.usage_in_bytes")
_FILES = ("inactive_file", "total_inactive_file")
"""Bytes of files that were read and are not in use: the kernel drops them for whoever asks."""
_UNKNOWN = 1 << 40
"""A system that does not tell is taken to have plenty."""


def allowed_bytes(proc: Path = PROC) -> int:
    """Return the most bytes of memory that this process and all beside it in a container have."""
    return min(_machine_bytes(proc), limit_bytes(proc) or _UNKNOWN)


def limit_bytes(proc: Path = PROC) -> int | None:
    """Return the least limit of a control group around this process; None without one."""
    machine = _machine_bytes(proc)
    # Version 1 writes a number beyond all memory where there is no limit.
    return min((limit for _, limit in _limited_groups(proc) if limit < machine), default=None)


def free_bytes(proc: Path = PROC) -> int:
    """Return the bytes that can be taken before the machine or a container has no more."""
    free = [_machine_free(proc)]
    for group, limit in _limited_groups(proc):
        used = _first_number(group / name for name in _USED)
        if used is not None:
            files = max(read_number(group / "memory.stat", name) or 0 for name in _FILES)
            free.append(limit - max(0, used - files))
    return max(0, min(free))


def describe_memory(proc: Path = PROC) -> str:
    """Say in words how much memory this process may have, by which limit, and how much is free."""
    machine, limit, free = _machine_bytes(proc), limit_bytes(proc), free_bytes(proc)
    whole = f"{machine / 1e9:.1f} GB on this machine"
    if limit is not None:
        whole = f"{limit / 1e9:.1f} GB by a control group, of {whole}"
    return f"{whole}; {free / 1e9:.1f} GB free"


def _limited_groups(proc: Path) -> Iterator[tuple[Path, int]]:
    """Give each group with a limit, once for each of its limits."""
    groups = find_groups("memory", proc)
    for group in groups:
        for name in _LIMITS:
            if (limit := read_number(group / name)) is not None:
                yield group, limit
    # Version 1 tells here of limits above a container, whose groups are not to be seen in it.
    for group in groups[:1]:
        parent_limit = read_number(group / "memory.stat", "hierarchical_memory_limit")
        if parent_limit is not None:
            yield group, parent_limit


def _first_number(paths: Iterator[Path]) -> int | None:
    return next((n for path in paths if (n := read_number(path)) is not None), None)


def _machine_bytes(proc: Path) -> int:
    if (total := _read_meminfo("MemTotal", proc)) is not None:
        return total
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return _UNKNOWN


def _machine_free(proc: Path) -> int:
    if (available := _read_meminfo("MemAvailable", proc)) is not None:
        return available
    return _machine_bytes(proc)


def _read_meminfo(name: str, proc: Path) -> int | None:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
