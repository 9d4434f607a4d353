"""Files that a kill leaves as they were or as they are to be.

write_whole    a text
replace_whole  a path to write to; it takes the file's place when the block ends
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text as UTF-8 in the place of a file."""
    with replace_whole(path) as part:
        part.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replace_whole(path: Path) -> Iterator[Path]:
    """Give a path beside `path`, which takes its place on the disk when the block ends."""
    part = path.with_name(f"{path.name}.part")
    yield part
    descriptor = os.open(part, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    part.replace(path)
