"""Devices and their names: "cpu", "cuda" (all of them) or "cuda:0,1". Standard library only."""

from collections.abc import Mapping
from pathlib import Path


def has_cuda(environment: Mapping[str, str]) -> bool:
    """Find out if a process of this environment has a CUDA device, without loading torch."""
    return Path("/dev/nvidiactl").exists() and environment.get("CUDA_VISIBLE_DEVICES") != ""


def overlap(a: str, b: str) -> bool:
    """Tell if both name a common CUDA device; processors can always be shared."""
    if not (a.startswith("cuda") and b.startswith("cuda")):
        return False
    numbers = [set(device.partition(":")[2].split(",")) - {""} for device in (a, b)]
    return not numbers[0] or not numbers[1] or bool(numbers[0] & numbers[1])


def one_queue(a: str, b: str) -> bool:
    """Tell if trainings on the two wait for each other."""
    return a == b or overlap(a, b)
