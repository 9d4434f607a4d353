"""The control groups of this process: where a container's limits are written.

find_groups   the directories of a controller, from the process's own group up to the mount's root
read_number   the number in a file of a group; None where there is none, or no limit

Version 1 has a tree for each controller, version 2 one for all, and a machine may have both. A
limit of any group on the way up holds for all below it. In a container the path of the own group
may be that of the host: it counts from the root of the mount. Standard library only.
"""

import contextlib
from pathlib import Path, PurePosixPath

PROC = Path("/proc")


def find_groups(controller: str, proc: Path = PROC) -> list[Path]:
    """Return the groups whose limits of a `controller` hold for this process, its own first."""
    try:
        own = (proc / "self/cgroup").read_text().splitlines()
        mounts = (proc / "self/mountinfo").read_text().splitlines()
    except (OSError, ValueError):
        return []
    paths = {}
    for line in own:
        _, names, path = line.split(":", 2)
        if not names or controller in names.split(","):
            paths["cgroup" if names else "cgroup2"] = PurePosixPath(path)
    groups: dict[Path, None] = {}
    for line in mounts:
        head, _, tail = line.partition(" - ")
        kind, _, options = [*tail.split(" ", 2), "", ""][:3]
        place = head.split(" ")
        is_tree = kind == "cgroup2" or (kind == "cgroup" and controller in options.split(","))
        if is_tree and kind in paths and len(place) > 4:
            groups |= dict.fromkeys(_climb(paths[kind], place[3], place[4]))
    return [*groups]


def _climb(own: PurePosixPath, root: str, mount: str) -> list[Path]:
    """Return the directories from the own group up to the mount, which shows the group `root`."""
    top = Path(mount.replace("\\040", " "))
    if not own.is_relative_to(root) or ".." in own.parts:
        return [top]  # a group outside of the mount: the mount's root is the nearest one seen
    subgroup = own.relative_to(root)
    return [top / part for part in (subgroup, *subgroup.parents)]


def read_number(path: Path, name: str | None = None) -> int | None:
    """Read the number in a file, or behind a `name` in one with a name in each line."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
        text = path.read_text()
        if name is None:
            return int(text)
        for line in text.splitlines():
            key, _, number = line.partition(" ")
            if key == name:
                return int(number)
    return None
