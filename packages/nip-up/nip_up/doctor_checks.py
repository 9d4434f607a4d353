"""The installed parts, the engines that can run, the missing parts and how to get them."""

import asyncio
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from nip_base.machine.allowed_memory import describe_memory
from nip_base.machine.devices import OLDEST_DRIVERS, driver_version, has_cuda
from nip_base.published.added_models import look_at
from nip_base.spec import ENGINES
from nip_core import how_to_install
from nip_core.errors import SettingsError
from nip_core.models import BUNDLED, KNOWN, ONLY_IN_REPOSITORY
from nip_core.parameters.services.providers import PROVIDERS
from nip_core.proxies import proxy_for
from nip_core.redaction import check_address, show_address
from nip_lm_server.client import VllmMissingError, describe_vllm, vllm_build_script
from nip_sandbox import sandbox

_PREFECT_S = 2.0  # for a server that is there; one of this machine answers in milliseconds
_CORE = ("prefect", "fastapi", "pydantic", "openai", "aiohttp", "pyarrow", "numpy")
_SMALL_TORCH = "--extra-index-url https://download.pytorch.org/whl/cpu"
_LOCAL = ("torch", "transformers", "peft", "trl", "accelerate", "datasets", "safetensors")


@dataclass(frozen=True)
class Finding:
    """One line of the report. `needed` ones decide the exit code."""

    what: str
    ok: bool
    detail: str
    needed: bool = False
    remedy: str = ""
    """A command that gets what is missing; "" where nothing is, or where no command does."""


def examine() -> list[Finding]:
    """Look at this machine; nothing is changed, and every process started for a look has ended."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    findings = [
        Finding(
            "python",
            (3, 11) <= sys.version_info[:2] <= (3, 13),
            f"{version}; 3.11 to 3.13 are supported",
            needed=True,
        )
    ]
    findings += [_package(name, how_to_install(), needed=True) for name in _CORE]
    local = [_package(name, how_to_install("local")) for name in _LOCAL]
    findings += local
    findings.append(_package("gguf", how_to_install("local")))
    findings.append(_package("matplotlib", how_to_install("figures")))
    findings.append(Finding("engine deterministic", True, "needs nothing more"))
    findings.append(_embedded(all(f.ok for f in local)))
    findings.append(_vllm())
    findings += _for_gpus(has_cuda(os.environ))
    findings.append(_sandbox())
    findings += map(_model, BUNDLED)
    findings += map(_published, KNOWN)
    findings.append(_prefect(os.environ.get("PREFECT_API_URL")))
    findings.append(Finding("memory", True, describe_memory()))
    free_gb = shutil.disk_usage(Path.cwd()).free / 1e9
    findings.append(Finding("disk", free_gb > 1, f"{free_gb:.1f} GB free here"))
    variables = (provider.key_variable for provider in PROVIDERS.values())
    for variable in filter(None, variables):
        is_set = bool(os.environ.get(variable))
        findings.append(
            Finding(variable, True, "set" if is_set else "not set; only needed for that provider")
        )
    return findings


def _prefect(api: str | None) -> Finding:
    """Ask the named Prefect server once whether it answers."""
    name = "prefect server"
    if not api:
        return Finding(
            name,
            True,
            "PREFECT_API_URL is not set: each command starts a temporary server (adds seconds); "
            "run `prefect server start` and set it to keep one",
        )
    try:
        check_address("PREFECT_API_URL", api)
        is_one, answer = asyncio.run(_asked(f"{api.rstrip('/')}/health", proxy_for(api)))
    except SettingsError as error:
        return Finding(name, False, str(error))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        reason = type(error).__name__
        is_one, answer = False, f"no Prefect server answers ({reason}); start it, or unset it"
    return Finding(name, is_one, f"PREFECT_API_URL={show_address(api)}: {answer}")


async def _asked(url: str, proxy: str | None) -> tuple[bool, str]:
    """Return whether a Prefect server answers, and its answer in words."""
    timeout = aiohttp.ClientTimeout(total=_PREFECT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout, proxy=proxy) as session,
        session.get(url, allow_redirects=False) as answer,
    ):
        if answer.status in (401, 403):
            return True, "answers, and asks for a key"
        if answer.status == 200 and (await answer.content.read(16)).strip() == b"true":
            return True, "answers"
    return False, f"what answers there is no Prefect server (HTTP {answer.status})"


def _package(name: str, remedy: str, needed: bool = False) -> Finding:
    try:
        return Finding(name, True, importlib.metadata.version(name), needed)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, "missing", needed, remedy)


def _model(name: str) -> Finding:
    path = BUNDLED[name]
    if (path / "config.json").exists():
        return Finding(f"model {name}", True, "bundled")
    if name in ONLY_IN_REPOSITORY:
        return Finding(f"model {name}", True, "not installed: only in nip's repository")
    return Finding(f"model {name}", False, f"missing: {path}", needed=True)


def _published(name: str) -> Finding:
    subject, command = f"model {name}", KNOWN[name].command
    try:
        looked = look_at(KNOWN[name])
    except SettingsError as error:
        return Finding(subject, False, str(error))
    if looked.flaw is not None:
        return Finding(subject, False, f"damaged: {looked.flaw}", remedy=command)
    size = f"{KNOWN[name].wheel_bytes / 1e6:.0f} MB"
    return Finding(
        subject, True, f"{looked.path}" if looked.is_there else f"not here: {command} ({size})"
    )


def _vllm() -> Finding:
    try:
        return Finding("engine vllm", True, describe_vllm(os.environ))
    except VllmMissingError as error:
        return Finding("engine vllm", False, str(error), remedy="nip doctor --vllm")


def vllm_commands(is_for_cuda: bool) -> list[str]:
    """Return the lines, for a shell, that build an environment with vLLM and have nip use it.

    Raises SettingsError for an installation without the script, such as an image of a checkout.
    """
    place = ".vllm-cuda" if is_for_cuda else ".vllm"
    found = vllm_build_script(is_for_cuda)
    if not found.is_file():
        raise SettingsError(
            f"--vllm: there is no {found}; take scripts/{found.name} of nip's repository"
        )
    script, python = shlex.quote(str(found)), shlex.quote(sys.executable)
    return [
        f"PYTHON={python} bash {script} {place}",
        f'export NIP_VLLM="$PWD/{place}/bin/vllm"',
        # The environment of this nip need not be on the PATH.
        f"{python} -m nip_cli.cli doctor",
    ]


def _for_gpus(has_gpu: bool) -> list[Finding]:
    """Return what a GPU needs. Kernels of vLLM and TRL are compiled when they are first used."""
    compiler = next(
        filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None
    )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    findings = []
    for subject, place, remedy in (
        ("C compiler", compiler, "apt-get install gcc"),
        ("Python.h", str(header) if header.is_file() else None, "apt-get install python3-dev"),
    ):
        absence = f"missing ({remedy}): kernels are compiled on a GPU when they are first used"
        without = "" if has_gpu else "; not needed without a GPU"
        findings.append(Finding(subject, bool(place) or not has_gpu, (place or absence) + without))
    return [*findings, _cuda(has_gpu)]


def _cuda(has_gpu: bool) -> Finding:
    """Return whether models are trained and served on the GPU, or why not."""
    if not has_gpu:
        return Finding("CUDA", True, "no device here: models are trained and served on the CPU")
    driver = driver_version()
    try:
        import torch

        built_for, works = torch.version.cuda, torch.cuda.is_available()
    except Exception as error:  # a broken build or driver raises what it likes
        reason = " ".join(str(error).split())[:200]
        return Finding("CUDA", False, f"driver {driver}; torch can't be imported ({reason})")
    facts = f"driver {driver or 'unknown'}, torch {torch.__version__} for CUDA {built_for or '-'}"
    if built_for is None:
        return Finding("CUDA", False, f"{facts}: a CPU build, install one for CUDA")
    oldest = OLDEST_DRIVERS.get(built_for.partition(".")[0])
    if driver is not None and oldest is not None and int(driver.partition(".")[0]) < oldest:
        return Finding("CUDA", False, f"{facts}, which needs driver {oldest} or newer")
    return Finding("CUDA", works, facts if works else f"{facts}: torch sees no device")


def _sandbox() -> Finding:
    """Return whether untrusted code can be kept in here, as those do who build problems."""
    try:
        layers, why_not = sandbox.examine()
    except sandbox.SandboxError as error:
        return Finding("sandbox", False, f"no untrusted code is run: {error}")
    holds = {
        "limits on time and memory": True,
        "shared memory refused": layers.system_calls,
        "no network": layers.network,
        "processes of its own": layers.processes,
        "a file system of its own": layers.filesystem,
        "Landlock": layers.landlock,
        "a user of its own": layers.user,
    }
    holding = ", ".join(name for name, is_held in holds.items() if is_held)
    if not why_not:
        return Finding("sandbox", True, f"keeps untrusted code in: {holding}")
    remedy = "allow user namespaces, or allow_without_namespaces=True to do with the rest"
    return Finding("sandbox", False, f"runs no untrusted code: {why_not}; {remedy}: {holding}")


def _embedded(is_installed: bool) -> Finding:
    name = "engine embedded"
    if not is_installed:
        small = "" if has_cuda(os.environ) else f"; for a torch without CUDA add {_SMALL_TORCH}"
        detail = f"needs the extra `local`{small}"
        return Finding(name, False, detail, remedy=how_to_install("local"))
    try:
        import torch

        on_gpu = torch.cuda.is_available()
        place = torch.cuda.get_device_name(0) if on_gpu else "the CPU"
    except Exception as error:  # a broken build or driver raises what it likes
        reason = " ".join(str(error).split())[:200]
        return Finding(name, False, f"torch can't be imported ({reason}); install it anew")
    return Finding(name, True, f"on {place}, {torch.get_num_threads()} threads")


def summary(findings: list[Finding]) -> str:
    """Return what can run here, in a line."""
    missing_parts = [f.what for f in findings if f.needed and not f.ok]
    if missing_parts:
        return f"nip can't run here: {', '.join(missing_parts)}"
    engines = [f for f in findings if f.what.startswith("engine ")]
    can = [f.what.removeprefix("engine ") for f in engines if f.ok]
    cannot = [f.what.removeprefix("engine ") for f in engines if not f.ok]
    # Trainings run on that engine's device, whichever engine plays.
    has_torch = any(ENGINES[name].runs_on_torch for name in can)
    training = "local training" if has_torch else "no local training"
    lacking = f"; not {', '.join(cannot)}" if cannot else ""
    return f"can run: the engines {', '.join(can)}{lacking}; {training}"
