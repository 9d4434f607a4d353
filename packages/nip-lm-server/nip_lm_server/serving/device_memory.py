"""How engines share the memory of their CUDA devices, by arithmetic.

share_memory    gives each vLLM engine its part where none is set, and refuses impossible sums

vLLM takes the part of a device that `gpu_memory_utilization` says, by itself 0.92, and does not
start where that is not free: a second engine on a device, or a second base model of one engine,
never would. Engines that leave their device to trainings need not count with them; one that stays
(`share_device: no`) leaves half to them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from nip_base.machine.devices import device_numbers, overlap
from nip_lm_server.serving.served_base import Slot

USABLE = 0.9
"""The part of a device that engines fill together; the rest is for memory that they don't count,
such as each one's CUDA context. By a rule of thumb, and a little less than vLLM takes alone: with
much more a second engine does not start, with much less memory for keys and values lies idle."""
BESIDE_TRAININGS = 0.5
"""... of which they take so much where one of them stays while something trains there. A guess, as
the coming trainings are not known here: `gpu_memory_utilization` says it better."""
SMALLEST_PART = 0.05
"""A part below this holds no model that is worth a GPU."""


def share_memory(slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """Give each vLLM engine on CUDA its part of the memory, unless it is alone or has one set.

    The devices' parts are shared evenly by the engines, and by the base models that an engine
    serves at once. Raises ValueError with the sum if a device is given away more than once.
    """
    trainings = [slot.training_device for slot in slots]
    on_cuda = [slot for slot in slots if slot.engine_device.startswith("cuda")]
    devices = sorted({0}.union(*[device_numbers(slot.engine_device) or () for slot in on_cuda]))
    parts = {device: _compute_part(device, on_cuda, trainings) for device in devices}
    return tuple(
        _give_part(slot, [parts[device] for device in devices if _is_on(slot, device)])
        for slot in slots
    )


def _give_part(slot: Slot, parts: Sequence[float | None]) -> Slot:
    # A part that a user has set counts. On several devices the fullest one decides: an engine takes
    # the same part of each.
    free = [part for part in parts if part is not None]
    if slot.spec.engine != "vllm" or _read_set_part(slot) is not None or not free:
        return slot
    make: Any = slot.make_engine  # it takes the options of its engine, too
    return replace(slot, make_engine=partial(make, gpu_memory_utilization=round(min(free), 3)))


def _compute_part(device: int, on_cuda: Sequence[Slot], trainings: Sequence[str]) -> float | None:
    """Compute the part of a device for each base model without one; None: vLLM's own default."""
    # 1. The engines on it, and the parts that the configuration gives them.
    sharing = [slot for slot in on_cuda if _is_on(slot, device)]
    set_parts = [(slot, _read_set_part(slot)) for slot in sharing]
    total = sum(part * slot.spec.bases_at_once for slot, part in set_parts if part is not None)
    bases = sum(slot.spec.bases_at_once for slot, part in set_parts if part is None)
    # Refused here: vLLM would say so when the second engine starts, which may be much later.
    if total > 1:
        raise ValueError(
            f"the engines on cuda:{device} are given {total:g} times its memory "
            f"({_describe(sharing)}): lower gpu_memory_utilization, or leave it out to share it"
        )
    # 2. The rest for the others: less of it where an engine stays while a training runs.
    stays = any(
        overlap(f"cuda:{device}", training) and not slot.leaves_for(training)
        for slot in sharing
        for training in trainings
    )
    # No base model needs a part; or one has the device to itself, as vLLM expects.
    if not bases or (bases == 1 and not total and not stays):
        return None
    usable = USABLE * BESIDE_TRAININGS if stays else USABLE
    part = (usable - total) / bases
    if part < SMALLEST_PART:
        raise ValueError(
            f"no memory of cuda:{device} is left for {bases} base model(s) without a "
            f"gpu_memory_utilization ({_describe(sharing)}; engines take {usable:g} of it together)"
        )
    return part


def _is_on(slot: Slot, device: int) -> bool:
    numbers = device_numbers(slot.engine_device)
    return slot.engine_device.startswith("cuda") and (numbers is None or device in numbers)


def _read_set_part(slot: Slot) -> float | None:
    """Return the part set for an engine; other engines than vLLM have no such option."""
    part = slot.spec.options.get("gpu_memory_utilization")
    return None if part is None else float(part)


def _describe(slots: Sequence[Slot]) -> str:
    words = []
    for slot in slots:
        part, bases = _read_set_part(slot), slot.spec.bases_at_once
        times = f" x {bases} bases at once" if bases > 1 else ""
        words.append(f"{slot.base_model} {'unset' if part is None else format(part, 'g')}{times}")
    return ", ".join(words)
