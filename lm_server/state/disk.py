"""What makes a file durable, and what says that it is the same."""

import hashlib
import os
from pathlib import Path


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a directory, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
