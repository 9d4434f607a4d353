"""Devices and their names: "cpu", "cuda" (all of them) or "cuda:0,1". Standard library only.

has_cuda, count_cuda   the devices that a process of an environment has
device_numbers         the numbers in a name; overlap, one_queue: two names compared
only_on                the environment of a process that is to see one device alone
compile_caches         where what is compiled for them is kept
training_memory        how a training takes a card's memory
driver_version         NVIDIA's driver, and OLDEST_DRIVERS what CUDA needs
"""

import re
from collections.abc import Mapping
from pathlib import Path

DEVICE = r"auto|cpu|cuda(:\d+(,\d+)*)?"
"""The names of devices in settings, as a regular expression."""
OLDEST_DRIVERS = {"13": 580, "12": 525}
"""The oldest driver by the CUDA release that a program was built for (NVIDIA, "CUDA Compatibility",
2025, table "CUDA Toolkit 11.x, 12.x, and 13.x Driver Version Ranges")."""
_DEVICES = Path("/dev")
_DRIVER = Path("/proc/driver/nvidia/version")
_WINDOWS_DRIVER = Path("/usr/lib/wsl/lib/libcuda.so.1")
"""The driver of Windows in its subsystem for Linux, which has no device files of NVIDIA's."""


def has_cuda(environment: Mapping[str, str]) -> bool:
    """Find out if a process of this environment has a CUDA device, without loading torch."""
    if environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return (_DEVICES / "nvidiactl").exists() or _WINDOWS_DRIVER.exists()


def count_cuda(environment: Mapping[str, str]) -> int | None:
    """Count the CUDA devices a process of this environment would have; None if nothing tells.

    A device that the variable names is counted even if it is not there.
    """
    if not has_cuda(environment):
        return 0
    visible = _visible(environment)
    if visible:
        return len(visible)
    files = [path.name for path in _DEVICES.glob("nvidia*")]
    return len([name for name in files if re.fullmatch(r"nvidia\d+", name)]) or None


def device_numbers(device: str) -> frozenset[int] | None:
    """Return the device numbers in a name like "cuda:0,1". None: all devices; "cpu" has none."""
    kind, _, numbers = device.partition(":")
    if kind == "cuda" and not numbers:
        return None
    return frozenset(int(number) for number in numbers.split(",") if number)


def overlap(a: str, b: str) -> bool:
    """Tell if both name a common CUDA device; processors can always be shared."""
    if not (a.startswith("cuda") and b.startswith("cuda")):
        return False
    first, second = device_numbers(a), device_numbers(b)
    return first is None or second is None or bool(first & second)


def one_queue(a: str, b: str) -> bool:
    """Tell if trainings on the two wait for each other."""
    return a == b or overlap(a, b)


def only_on(environment: Mapping[str, str], device: str, setting: str) -> dict[str, str]:
    """Return the environment of a process restricted to this device.

    Numbers count the devices that `environment` shows. Raises ValueError that names `setting` if it
    hasn't so many.
    """
    if device == "cpu":
        return {**environment, "CUDA_VISIBLE_DEVICES": ""}
    if device_numbers(device) is None:
        return dict(environment)
    numbers = [int(number) for number in device.partition(":")[2].split(",")]
    visible = _visible(environment)
    count = len(visible) or count_cuda(environment)
    if count and max(numbers) >= count:
        devices_words = f" (CUDA_VISIBLE_DEVICES={','.join(visible)})" if visible else ""
        raise ValueError(
            f"{setting} is {device!r}, counted from 0, but only {count} are visible{devices_words}"
        )
    names = [visible[number] if visible else str(number) for number in numbers]
    return {**environment, "CUDA_VISIBLE_DEVICES": ",".join(names)}


def compile_caches(directory: Path) -> dict[str, str]:
    """Return the variables to make vLLM, Triton and torch keep compiled code in `directory`.

    By themselves they use the home directory and /tmp, which a container loses.
    """
    return {
        "VLLM_CACHE_ROOT": str(directory / "vllm"),
        "TRITON_CACHE_DIR": str(directory / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
    }


def training_memory(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to make torch take a card's memory in segments that grow.

    Passes of many lengths leave gaps otherwise. The environment's own setting goes first, and
    where there is no card of Linux's own nothing is said.
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the second is the older one
    if any(name in environment for name in names) or not (_DEVICES / "nvidiactl").exists():
        return {}
    return {names[0]: "expandable_segments:True"}


def driver_version() -> str | None:
    """The version of NVIDIA's driver, such as 580.65.06; None if there is none or it is hidden."""
    try:
        text = _DRIVER.read_text()
    except OSError:
        return None
    version = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return None if version is None else version[0]


def _visible(environment: Mapping[str, str]) -> list[str]:
    return [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
