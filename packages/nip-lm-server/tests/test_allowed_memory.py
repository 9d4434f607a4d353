"""The memory that a process may have: the machine's, or the least limit of a container around it."""

from pathlib import Path

import pytest

from nip_base.machine.allowed_memory import (
    allowed_bytes,
    describe_memory,
    free_bytes,
    limit_bytes,
)
from nip_base.machine.control_groups import find_groups
from nip_base.machine.processors import count_processors

GB = 10**9


def machine(tmp_path: Path, own: str, mounts: list[tuple[str, str, str, str]]) -> Path:
    """What the kernel shows of a machine with 16 GB, 12 of them free, and of its mounts."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(
        f"MemTotal: {16 * GB // 1024} kB\nMemFree: 5 kB\nMemAvailable: {12 * GB // 1024} kB\n"
    )
    (proc / "self/cgroup").write_text(own)
    (proc / "self/mountinfo").write_text(
        "21 1 0:19 / /proc rw - proc proc rw\n"
        + "".join(
            f"3{i} 30 0:2{i} {root} {place} rw,nosuid shared:1 - {kind} {kind} {options}\n"
            for i, (root, place, kind, options) in enumerate(mounts)
        )
    )
    return proc


def group(place: Path, **files: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(f"{text}\n")


def unified(tmp_path: Path, own: str, root: str = "/") -> tuple[Path, Path]:
    tree = tmp_path / "cgroup"
    tree.mkdir()
    return tree, machine(tmp_path, f"0::{own}\n", [(root, str(tree), "cgroup2", "rw")])


def test_without_a_container_it_is_the_machines(tmp_path: Path) -> None:
    tree, proc = unified(tmp_path, "/user.slice/session")
    group(tree / "user.slice/session", memory__max="max", memory__current=str(GB))
    assert (allowed_bytes(proc), limit_bytes(proc)) == (16 * GB, None)
    assert free_bytes(proc) == 12 * GB
    assert describe_memory(proc) == "16.0 GB on this machine; 12.0 GB free"


def test_of_nested_groups_the_least_limit_holds_wherever_it_stands(tmp_path: Path) -> None:
    tree, proc = unified(tmp_path, "/pod/box/own")
    group(tree / "pod/box/own", memory__max="max", memory__current=str(GB // 2))
    group(tree / "pod/box", memory__max=str(4 * GB), memory__current=str(GB))
    group(tree / "pod", memory__max=str(2 * GB), memory__current=str(GB))
    assert allowed_bytes(proc) == limit_bytes(proc) == 2 * GB
    assert free_bytes(proc) == GB
    # What the neighbours in the pod take is not free, and what it holds of files unused is.
    (tree / "pod/memory.current").write_text(f"{19 * GB // 10}\n")
    (tree / "pod/memory.stat").write_text(f"anon 5\ninactive_file {GB // 2}\n")
    assert free_bytes(proc) == GB // 10 + GB // 2
    assert describe_memory(proc).startswith("2.0 GB by a control group, of 16.0 GB on this machine")


def test_a_limit_that_slows_down_is_a_limit(tmp_path: Path) -> None:
    tree, proc = unified(tmp_path, "/unit")
    group(tree / "unit", memory__max="max", memory__high=str(3 * GB), memory__current="0")
    assert allowed_bytes(proc) == free_bytes(proc) == 3 * GB


@pytest.mark.parametrize("own", ["/", "/../../elsewhere"])
def test_in_a_container_with_names_of_its_own_the_mounts_root_counts(
    tmp_path: Path, own: str
) -> None:
    tree, proc = unified(tmp_path, own)
    group(tree, memory__max=str(GB), memory__current=str(2 * GB))
    assert allowed_bytes(proc) == GB
    assert free_bytes(proc) == 0


def test_version_1_is_read_by_its_mount_beside_an_empty_version_2(tmp_path: Path) -> None:
    memory, processors, other = (tmp_path / name for name in ("memory", "cpu", "unified"))
    mounts = [
        ("/docker/box", str(memory), "cgroup", "rw,memory"),
        ("/", str(processors), "cgroup", "rw,cpu,cpuacct"),
        ("/", str(other), "cgroup2", "rw"),
    ]
    own = "4:memory:/docker/box/own\n3:cpu,cpuacct:/a\n9:name=systemd:/x\n0::/\n"
    proc = machine(tmp_path, own, mounts)
    none = "9223372036854771712"
    group(memory / "own", memory__limit_in_bytes=none, memory__usage_in_bytes=str(GB))
    group(memory, memory__limit_in_bytes=str(5 * GB), memory__usage_in_bytes=str(2 * GB))
    assert find_groups("memory", proc) == [memory / "own", memory, other]
    assert (allowed_bytes(proc), free_bytes(proc)) == (5 * GB, 3 * GB)
    # A limit above the container, whose group is not to be seen in it.
    (memory / "own/memory.stat").write_text(f"cache 5\nhierarchical_memory_limit {GB}\n")
    assert (allowed_bytes(proc), free_bytes(proc)) == (GB, 0)
    # So are processors.
    group(processors / "a", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert count_processors(proc) == count_processors(tmp_path / "nothing")
    group(processors, cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    assert count_processors(proc) == 1


def test_a_system_that_tells_nothing_is_taken_to_have_its_machines_memory(tmp_path: Path) -> None:
    assert limit_bytes(tmp_path) is None
    assert allowed_bytes(tmp_path) == free_bytes(tmp_path) > 0


def test_this_machine_has_what_it_says() -> None:
    assert 0 < free_bytes() <= allowed_bytes()
