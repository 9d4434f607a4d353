"""File descriptors, of which each connection takes one."""

import resource

MAX_OPEN_FILES = 65_536


def raise_open_files() -> int:
    """Let this process and its children open as many files as the system allows, within reason.

    Returns how many that is.
    """
    # Every process may raise its soft limit as far as to the hard one.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return max(soft, limit)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):
        return soft
    return limit
