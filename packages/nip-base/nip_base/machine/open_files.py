"""File descriptors, of which each connection takes one."""

import contextlib
import resource

MAX_OPEN_FILES = 65_536


def raise_open_files() -> None:
    """Let this process and its children open as many files as the system allows, within reason."""
    # Every process may raise its soft limit as far as to the hard one.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
