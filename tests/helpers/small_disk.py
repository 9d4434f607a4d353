"""A small disk of one's own, where root may mount one: `mounted`, and `needs_mount` for its tests."""

import ctypes
import os
import sys
from pathlib import Path

import pytest


def _can_mount() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0


@pytest.fixture
def mounted(tmp_path):
    """Mounts a small tmpfs on a directory; unmounts it afterwards."""
    libc = ctypes.CDLL(None, use_errno=True)
    places = []

    def mount(disk: Path, size: str, read_only: bool = False) -> None:
        disk.mkdir(exist_ok=True)
        options = f"size={size}".encode()
        if libc.mount(b"tmpfs", str(disk).encode(), b"tmpfs", int(read_only), options) != 0:
            pytest.skip(f"mounting is not allowed here: {os.strerror(ctypes.get_errno())}")
        places.append(disk)

    yield mount
    for place in places:
        libc.umount2(str(place).encode(), 2)


needs_mount = pytest.mark.skipif(not _can_mount(), reason="only root on Linux may mount a disk")
