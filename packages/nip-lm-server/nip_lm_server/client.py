"""The server's face: all other packages import this module of it alone.

launching    start_or_attach, is_running, stop, of a ServerHandle
engines      find_capabilities of any, a user's own too
a server's files   StateDirectory: the places and the contents of its parts (State, Examined);
             lay_out_adapter, for an adapter from elsewhere
models       public_probe, of an adapter
secrets      is_secret_name, of environment variables
Tinker       make and parse its messages; training_text, the tokens of training examples
vLLM         describe_vllm, find_vllm, vllm_build_script; served_lora_rank, DEFAULT_LORA_RANK,
             LARGEST_LORA_RANK

The specification of a server, its wire and its formats are `nip_base`'s; its commands, `serve` and
`prove`, come by entry points.

A contract of `make check` holds that no other package imports anything else. The libraries that a
server runs on (torch, vllm, an HTTP framework) are imported at its start, and each name of this
module at its first use.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nip_lm_server.auth import is_secret_name
    from nip_lm_server.engines.own_engines import find_capabilities
    from nip_lm_server.engines.vllm.options import (
        DEFAULT_LORA_RANK,
        LARGEST_LORA_RANK,
        served_lora_rank,
    )
    from nip_lm_server.errors import ModelError
    from nip_lm_server.launch import (
        OwnerError,
        ServerHandle,
        is_running,
        start_or_attach,
        stop,
    )
    from nip_lm_server.serving.lay_out_adapter import LaidOut, lay_out_adapter
    from nip_lm_server.state.at_rest.examine import Examined
    from nip_lm_server.state.at_rest.garbage import State
    from nip_lm_server.state.at_rest.state_directory import StateDirectory
    from nip_lm_server.state.directory import StateError
    from nip_lm_server.tinker.schema import make, parse
    from nip_lm_server.training.methods import training_text

__all__ = [
    "DEFAULT_LORA_RANK",
    "LARGEST_LORA_RANK",
    "Examined",
    "LaidOut",
    "ModelError",
    "OwnerError",
    "ServerHandle",
    "State",
    "StateDirectory",
    "StateError",
    "VllmMissingError",
    "describe_vllm",
    "find_capabilities",
    "find_vllm",
    "is_running",
    "is_secret_name",
    "lay_out_adapter",
    "make",
    "parse",
    "public_probe",
    "served_lora_rank",
    "start_or_attach",
    "stop",
    "training_text",
    "vllm_build_script",
]

_MODULE_NAMES: dict[str, tuple[str, ...]] = {
    "nip_lm_server.auth": ("is_secret_name",),
    "nip_lm_server.engines.own_engines": ("find_capabilities",),
    "nip_lm_server.engines.vllm.options": (
        "DEFAULT_LORA_RANK",
        "LARGEST_LORA_RANK",
        "served_lora_rank",
    ),
    "nip_lm_server.errors": ("ModelError",),
    "nip_lm_server.launch": (
        "OwnerError",
        "ServerHandle",
        "is_running",
        "start_or_attach",
        "stop",
    ),
    "nip_lm_server.serving.lay_out_adapter": ("LaidOut", "lay_out_adapter"),
    "nip_lm_server.state.at_rest.examine": ("Examined",),
    "nip_lm_server.state.at_rest.garbage": ("State",),
    "nip_lm_server.state.at_rest.state_directory": ("StateDirectory",),
    "nip_lm_server.state.directory": ("StateError",),
    "nip_lm_server.tinker.schema": ("make", "parse"),
    "nip_lm_server.training.methods.training_text": ("training_text",),
}
"""The names in each module. A module is imported at the first use of a name: a reader of a run's
document needs a tenth of the code that launches a server, and would wait for all of it."""
_MODULES = {name: module for module, names in _MODULE_NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name of this module, at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: Any = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def describe_vllm(environment: Mapping[str, str]) -> str:
    """Return version, build and place of the vLLM in `environment`.

    Raises VllmMissingError, which says how to get one.
    """
    import asyncio

    from nip_lm_server.engines.base import EngineError
    from nip_lm_server.engines.vllm.installation import find_executable, inspect

    try:
        python = find_executable(None, environment)
        installation = asyncio.run(inspect(python, environment))
        warnings = installation.check()
    except EngineError as error:
        raise VllmMissingError(str(error)) from error
    build = "CPU build" if installation.cpu_build else f"built for CUDA {installation.torch_cuda}"
    return "; ".join([f"{installation.versions['vllm']}, {build}, {python.parent}", *warnings])


def find_vllm(executable: str | None, environment: Mapping[str, str]) -> Path:
    """Find the Python of vLLM's environment, without asking it anything.

    `executable` is the engine's option of that name. Raises VllmMissingError, which says how to get
    one.
    """
    from nip_lm_server.engines.base import EngineError
    from nip_lm_server.engines.vllm.installation import find_executable

    try:
        return find_executable(executable, environment)
    except EngineError as error:
        raise VllmMissingError(str(error)) from error


def vllm_build_script(is_for_cuda: bool) -> Path:
    """Return the script that builds an environment with vLLM, for CUDA or for the CPU."""
    from nip_lm_server.engines.vllm.installation import find_build_script

    return find_build_script(is_for_cuda)


class VllmMissingError(Exception):
    """No vLLM can run here; the message names the remedy."""


def public_probe(base_model: str, adapter: Path) -> dict[str, Any]:
    """Compute the log-probabilities of an adapter and of its base on a fixed text.

    `base_model` is a directory or a name on the Hub. Raises ModuleNotFoundError where a package
    for that is missing, ModelError if one of them can't be read.
    """
    from nip_lm_server.errors import ModelError

    try:
        from nip_lm_server.lora.public_probe import PublicProbes

        return PublicProbes(base_model).compute(adapter)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # safetensors and tokenizers have exception classes of their own
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"{base_model}: the probe can't be computed: {reason}") from error
