"""The server's face: everybody outside of the server imports this module of it alone.

launching    ServerSpec, EngineSpec; start_or_attach, is_running, stop, stop_state_dir;
             serve_command
engines      ENGINES, Capabilities, check_engine_name, find_capabilities of any, one's own too;
             import_object, find_file, find_line: what a setting names in a Python file
models, devices   base_served_name, has_cuda, driver_version, OLDEST_DRIVERS, compile_caches
version      SERVER_VERSION, compatible
the wire     NipSettings, METHOD_HYPERPARAMETERS; ACTIVE_STATUSES, ENDED_STATUSES of a
             job; JOIN_HEADER of a call
strangers' files  read_text, parse_json, parse_yaml, ReadError: within limits
training data   formats: what a line of each method holds, and its checks; group_advantages;
             count_tokens
a server's files, while it does not run   examine, stored_ids, collectable files (State,
             read_state, remove), import_models, find_model, lay_out_adapter, and names in a
             state directory
published adapters   public_probe
models at any server   prove_served, of a ProofRequest: what answers under a name (Verdict)
published models   convert_gguf, ConvertedModel, GgufError; publish, of a whole directory
room on a disk   want_of_space, is_full, MIN_FREE_BYTES
memory       allowed_bytes, describe_memory
secrets      is_secret_name, of environment variables
processes    identities of processes, ending with a parent, the end of a log
vLLM         describe_vllm, find_vllm, vllm_build_script; served_lora_rank, DEFAULT_LORA_RANK,
             LARGEST_LORA_RANK

A contract of `make check` holds that nobody imports anything else. What a server runs on (torch,
vllm, an HTTP framework) is imported when it is started, and each name of this module when somebody
asks for it.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nip_lm_server import formats
    from nip_lm_server.auth import is_secret_name
    from nip_lm_server.engines.own_engines import find_capabilities
    from nip_lm_server.engines.vllm.options import (
        DEFAULT_LORA_RANK,
        LARGEST_LORA_RANK,
        served_lora_rank,
    )
    from nip_lm_server.formats import (
        MIN_EXAMPLES,
        AdvantageMode,
        JsonlError,
        Problem,
        describe_problems,
        to_jsonl,
        validate,
    )
    from nip_lm_server.formats.advantages import Deviation, group_advantages
    from nip_lm_server.formats.bounds import ReadError, parse_json
    from nip_lm_server.formats.gguf_model import ConvertedModel, convert_gguf
    from nip_lm_server.formats.gguf_tokenizer import GgufError
    from nip_lm_server.formats.token_counts import count_tokens
    from nip_lm_server.formats.untrusted import parse_yaml, read_text
    from nip_lm_server.importing import find_file, find_line, import_object
    from nip_lm_server.launch import (
        OwnerError,
        ServerHandle,
        is_running,
        start_or_attach,
        stop,
        stop_state_dir,
    )
    from nip_lm_server.machine.allowed_memory import allowed_bytes, describe_memory
    from nip_lm_server.machine.devices import (
        OLDEST_DRIVERS,
        compile_caches,
        driver_version,
        has_cuda,
    )
    from nip_lm_server.machine.processes import (
        die_with_parent_process,
        process_identity,
        read_tail,
        watch_parent,
    )
    from nip_lm_server.proving.request import ProofRequest, prove_served
    from nip_lm_server.proving.stranger import InputError, NoAnswerError
    from nip_lm_server.proving.verdict import Verdict, exit_status
    from nip_lm_server.serving.lay_out_adapter import LaidOut, lay_out_adapter
    from nip_lm_server.spec import (
        ENGINES,
        Capabilities,
        EngineSpec,
        ServerSpec,
        base_served_name,
        check_engine_name,
    )
    from nip_lm_server.state.at_rest.examine import Examined, examine, stored_ids
    from nip_lm_server.state.at_rest.garbage import State, StateInUseError, read_state, remove
    from nip_lm_server.state.at_rest.import_models import find_model, import_models
    from nip_lm_server.state.directory import DATABASE, FILES, KEY_FILE, MODELS, StateError
    from nip_lm_server.state.disk import MANIFEST, MIN_FREE_BYTES, is_full, publish, want_of_space
    from nip_lm_server.state.manifest import CHECKSUM, checksum_of, content_digest
    from nip_lm_server.state.models import AdapterError
    from nip_lm_server.version import SERVER_VERSION, compatible
    from nip_lm_server.wire import (
        ACTIVE_STATUSES,
        ENDED_STATUSES,
        JOIN_HEADER,
        METHOD_HYPERPARAMETERS,
        NipSettings,
    )

__all__ = [
    "ACTIVE_STATUSES",
    "CHECKSUM",
    "DATABASE",
    "DEFAULT_LORA_RANK",
    "ENDED_STATUSES",
    "ENGINES",
    "FILES",
    "JOIN_HEADER",
    "KEY_FILE",
    "LARGEST_LORA_RANK",
    "MANIFEST",
    "METHOD_HYPERPARAMETERS",
    "MIN_EXAMPLES",
    "MIN_FREE_BYTES",
    "MODELS",
    "OLDEST_DRIVERS",
    "SERVER_VERSION",
    "AdapterError",
    "AdvantageMode",
    "Capabilities",
    "ConvertedModel",
    "Deviation",
    "EngineSpec",
    "Examined",
    "GgufError",
    "InputError",
    "JsonlError",
    "LaidOut",
    "NipSettings",
    "NoAnswerError",
    "OwnerError",
    "Problem",
    "ProofRequest",
    "ReadError",
    "ServerHandle",
    "ServerSpec",
    "State",
    "StateError",
    "StateInUseError",
    "TorchMissingError",
    "Verdict",
    "VllmMissingError",
    "allowed_bytes",
    "base_served_name",
    "check_engine_name",
    "checksum_of",
    "compatible",
    "compile_caches",
    "content_digest",
    "convert_gguf",
    "count_tokens",
    "describe_memory",
    "describe_problems",
    "describe_vllm",
    "die_with_parent_process",
    "driver_version",
    "examine",
    "exit_status",
    "find_capabilities",
    "find_file",
    "find_line",
    "find_model",
    "find_vllm",
    "formats",
    "group_advantages",
    "has_cuda",
    "import_models",
    "import_object",
    "is_full",
    "is_running",
    "is_secret_name",
    "lay_out_adapter",
    "parse_json",
    "parse_yaml",
    "process_identity",
    "prove_served",
    "public_probe",
    "publish",
    "read_state",
    "read_tail",
    "read_text",
    "remove",
    "serve_command",
    "served_lora_rank",
    "start_or_attach",
    "stop",
    "stop_state_dir",
    "stored_ids",
    "to_jsonl",
    "validate",
    "vllm_build_script",
    "want_of_space",
    "watch_parent",
]

_WHERE: dict[str, tuple[str, ...]] = {
    "nip_lm_server.machine.allowed_memory": ("allowed_bytes", "describe_memory"),
    "nip_lm_server.auth": ("is_secret_name",),
    "nip_lm_server.machine.devices": (
        "OLDEST_DRIVERS",
        "compile_caches",
        "driver_version",
        "has_cuda",
    ),
    "nip_lm_server.engines.vllm.options": (
        "DEFAULT_LORA_RANK",
        "LARGEST_LORA_RANK",
        "served_lora_rank",
    ),
    "nip_lm_server.formats": (
        "MIN_EXAMPLES",
        "AdvantageMode",
        "JsonlError",
        "Problem",
        "describe_problems",
        "to_jsonl",
        "validate",
    ),
    "nip_lm_server.formats.advantages": (
        "Deviation",
        "group_advantages",
    ),
    "nip_lm_server.formats.bounds": (
        "ReadError",
        "parse_json",
    ),
    "nip_lm_server.formats.gguf_model": ("ConvertedModel", "convert_gguf"),
    "nip_lm_server.formats.gguf_tokenizer": ("GgufError",),
    "nip_lm_server.formats.token_counts": ("count_tokens",),
    "nip_lm_server.formats.untrusted": (
        "parse_yaml",
        "read_text",
    ),
    "nip_lm_server.engines.own_engines": ("find_capabilities",),
    "nip_lm_server.importing": ("find_file", "find_line", "import_object"),
    "nip_lm_server.launch": (
        "OwnerError",
        "ServerHandle",
        "is_running",
        "start_or_attach",
        "stop",
        "stop_state_dir",
    ),
    "nip_lm_server.machine.processes": (
        "die_with_parent_process",
        "process_identity",
        "read_tail",
        "watch_parent",
    ),
    "nip_lm_server.proving.request": ("ProofRequest", "prove_served"),
    "nip_lm_server.proving.stranger": ("InputError", "NoAnswerError"),
    "nip_lm_server.proving.verdict": ("Verdict", "exit_status"),
    "nip_lm_server.serving.lay_out_adapter": (
        "LaidOut",
        "lay_out_adapter",
    ),
    "nip_lm_server.spec": (
        "ENGINES",
        "Capabilities",
        "EngineSpec",
        "ServerSpec",
        "base_served_name",
        "check_engine_name",
    ),
    "nip_lm_server.state.directory": (
        "DATABASE",
        "FILES",
        "KEY_FILE",
        "MODELS",
        "StateError",
    ),
    "nip_lm_server.state.disk": (
        "MANIFEST",
        "MIN_FREE_BYTES",
        "is_full",
        "publish",
        "want_of_space",
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
    "nip_lm_server.state.manifest": (
        "CHECKSUM",
        "checksum_of",
        "content_digest",
    ),
    "nip_lm_server.state.models": ("AdapterError",),
    "nip_lm_server.version": (
        "SERVER_VERSION",
        "compatible",
    ),
    "nip_lm_server.wire": (
        "ACTIVE_STATUSES",
        "ENDED_STATUSES",
        "JOIN_HEADER",
        "METHOD_HYPERPARAMETERS",
        "NipSettings",
    ),
}
"""Which names stand in which module. One is imported when somebody asks for the name: who reads a
document of a run needs a tenth of what launches a server, and would wait for all of it."""
_MODULES = {name: module for module, names in _WHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what this module offers, at its first use."""
    if name == "formats":
        value: Any = import_module("nip_lm_server.formats")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
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
