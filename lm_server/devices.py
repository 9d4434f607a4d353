"""Device names: "cpu", "cuda" (all of them) or "cuda:0,1"."""


def overlap(a: str, b: str) -> bool:
    """Whether both name a common CUDA device; processors can always be shared."""
    if not (a.startswith("cuda") and b.startswith("cuda")):
        return False
    numbers = [set(device.partition(":")[2].split(",")) - {""} for device in (a, b)]
    return not numbers[0] or not numbers[1] or bool(numbers[0] & numbers[1])


def one_queue(a: str, b: str) -> bool:
    """Whether trainings on the two wait for each other."""
    return a == b or overlap(a, b)
