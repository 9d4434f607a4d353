"""Whether the kernel ended processes for want of memory. Linux; elsewhere it never says so."""

from pathlib import Path


def count_oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Processes that the kernel has killed for want of memory so far; 0 if it doesn't tell.

    Those of this process's control group where that is counted, otherwise of the machine. A
    child that died of SIGKILL while this grew was, most likely, one of them.
    """
    try:
        own = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return 0
    group = next((line[3:] for line in own if line.startswith("0::")), None)
    sources = [proc / "vmstat"]
    if group is not None:
        # In a container the group's path may be that of the host; the mount's root is ours then.
        sources = [
            cgroups / group.lstrip("/") / "memory.events",
            cgroups / "memory.events",
            *sources,
        ]
    for source in sources:
        try:
            for line in source.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
        except (OSError, ValueError):
            continue
    return 0
