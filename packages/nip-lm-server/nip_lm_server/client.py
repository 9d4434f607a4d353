"""The server's face: everybody outside of the server imports this module of it alone.

launching    start_or_attach, is_running, stop, stop_state_dir; serve_command
engines      find_capabilities of any, one's own too
a server's files, while it does not run   examine, stored_ids, collectable files (State,
             read_state, remove), import_models, find_model, lay_out_adapter, and names in a
             state directory
published adapters   public_probe
models at any server   prove_served, of a ProofRequest: what answers under a name (Verdict)
published models   convert_gguf, ConvertedModel, GgufError
secrets      is_secret_name, of environment variables
vLLM         describe_vllm, find_vllm, vllm_build_script; served_lora_rank, DEFAULT_LORA_RANK,
             LARGEST_LORA_RANK

The specification of a server, its wire and its formats are `nip_base`'s.

A contract of `make check` holds that nobody imports anything else. What a server runs on (torch,
vllm, an HTTP framework) is imported when it is started, and each name of this module when somebody
asks for it.
"""

from collections.abc import Callable, Mapping
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
    from nip_lm_server.gguf.gguf_model import ConvertedModel, convert_gguf
    from nip_lm_server.gguf.gguf_tokenizer import GgufError
    from nip_lm_server.launch import (
        OwnerError,
        ServerHandle,
        is_running,
        start_or_attach,
        stop,
        stop_state_dir,
    )
    from nip_lm_server.proving.request import ProofRequest, prove_served
    from nip_lm_server.proving.stranger import InputError, NoAnswerError
    from nip_lm_server.proving.verdict import Verdict, exit_status
    from nip_lm_server.serving.lay_out_adapter import LaidOut, lay_out_adapter
    from nip_lm_server.state.at_rest.examine import Examined, examine, stored_ids
    from nip_lm_server.state.at_rest.garbage import State, StateInUseError, read_state, remove
    from nip_lm_server.state.at_rest.import_models import find_model, import_models
    from nip_lm_server.state.directory import DATABASE, FILES, KEY_FILE, MODELS, StateError
    from nip_lm_server.state.models import AdapterError

__all__ = [
    "DATABASE",
    "DEFAULT_LORA_RANK",
    "FILES",
    "KEY_FILE",
    "LARGEST_LORA_RANK",
    "MODELS",
    "AdapterError",
    "ConvertedModel",
    "Examined",
    "GgufError",
    "InputError",
    "LaidOut",
    "NoAnswerError",
    "OwnerError",
    "ProofRequest",
    "ServerHandle",
    "State",
    "StateError",
    "StateInUseError",
    "TorchMissingError",
    "Verdict",
    "VllmMissingError",
    "convert_gguf",
    "describe_vllm",
    "examine",
    "exit_status",
    "find_capabilities",
    "find_model",
    "find_vllm",
    "import_models",
    "is_running",
    "is_secret_name",
    "lay_out_adapter",
    "prove_served",
    "public_probe",
    "read_state",
    "remove",
    "serve_command",
    "served_lora_rank",
    "start_or_attach",
    "stop",
    "stop_state_dir",
    "stored_ids",
    "vllm_build_script",
]

_WHERE: dict[str, tuple[str, ...]] = {
    "nip_lm_server.auth": ("is_secret_name",),
    "nip_lm_server.engines.vllm.options": (
        "DEFAULT_LORA_RANK",
        "LARGEST_LORA_RANK",
        "served_lora_rank",
    ),
    "nip_lm_server.gguf.gguf_model": ("ConvertedModel", "convert_gguf"),
    "nip_lm_server.gguf.gguf_tokenizer": ("GgufError",),
    "nip_lm_server.engines.own_engines": ("find_capabilities",),
    "nip_lm_server.launch": (
        "OwnerError",
        "ServerHandle",
        "is_running",
        "start_or_attach",
        "stop",
        "stop_state_dir",
    ),
    "nip_lm_server.proving.request": ("ProofRequest", "prove_served"),
    "nip_lm_server.proving.stranger": ("InputError", "NoAnswerError"),
    "nip_lm_server.proving.verdict": ("Verdict", "exit_status"),
    "nip_lm_server.serving.lay_out_adapter": (
        "LaidOut",
        "lay_out_adapter",
    ),
    "nip_lm_server.state.directory": (
        "DATABASE",
        "FILES",
        "KEY_FILE",
        "MODELS",
        "StateError",
    ),
    "nip_lm_server.state.at_rest.examine": (
        "Examined",
        "examine",
        "stored_ids",
    ),
    "nip_lm_server.state.at_rest.garbage": (
        "State",
        "StateInUseError",
        "read_state",
        "remove",
    ),
    "nip_lm_server.state.at_rest.import_models": (
        "find_model",
        "import_models",
    ),
    "nip_lm_server.state.models": ("AdapterError",),
}
"""Which names stand in which module. One is imported when somebody asks for the name: who reads a
document of a run needs a tenth of what launches a server, and would wait for all of it."""
_MODULES = {name: module for module, names in _WHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what this module offers, at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: Any = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def serve_command() -> Callable[..., None]:
    """Return the server's command, for Typer.

    The context's `obj` says where a model lies that it has another name for.
    """
    from nip_lm_server.command import serve

    return serve


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
    """No vLLM can run here; the message says what to do."""


def public_probe(base_model: str, adapter: Path) -> dict[str, Any]:
    """Compute the log-probabilities of an adapter and of its base on a fixed text.

    `base_model` is a directory or a name on the Hub. Raises TorchMissingError where that can't be
    computed, AdapterError if one of them can't be read.
    """
    from nip_lm_server.state.models import AdapterError

    try:
        from nip_lm_server.lora.public_probe import compute_public_probe

        return compute_public_probe(base_model, adapter)
    except ModuleNotFoundError as error:
        raise TorchMissingError(f"it is computed with the package {error.name}") from None
    except Exception as error:  # safetensors and tokenizers have exception classes of their own
        reason = f"{type(error).__name__}: {error}"
        raise AdapterError(f"{base_model}: the probe can't be computed: {reason}") from error


class TorchMissingError(Exception):
    """A package for training and running models is missing; the message names it."""
