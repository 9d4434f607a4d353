"""The settings of the vLLM engine, and the arguments of `vllm serve` reserved for it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nip_base.formats.bounds import parse_json
from nip_base.machine.devices import DEVICE, device_numbers

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM allows for its largest rank."""
LARGEST_LORA_RANK = LORA_RANKS[-1]
DEFAULT_LORA_RANK = 64
"""A rule of thumb: adapters of higher ranks are refused, and vLLM computes every adapter at this
rank, so a higher one makes all answers slower."""
WIDEST_VOCABULARY = 258_048
"""vLLM refuses adapters over a larger vocabulary (0.33, lora/layers/logits_processor.py)."""
_OUR_ARGUMENTS = frozenset(
    {
        *("model", "model-tag", "config", "host", "port", "uds", "api-key", "middleware"),
        *("served-model-name", "dtype", "quantization", "max-model-len", "max-num-seqs"),
        *("gpu-memory-utilization", "tensor-parallel-size", "generation-config"),
        *("enable-lora", "no-enable-lora", "lora-modules", "max-lora-rank", "max-loras"),
        *("max-cpu-loras", "enable-sleep-mode", "no-enable-sleep-mode", "enforce-eager"),
        *("trust-remote-code", "no-trust-remote-code", "trust-request-chat-template"),
        *("enable-prompt-embeds", "allowed-local-media-path", "root-path", "headless", "grpc"),
        *("ssl-keyfile", "ssl-certfile", "api-server-count", "allow-credentials"),
        *("disable-fastapi-docs", "model-config", "lora-config"),
        *("enable-chunked-prefill", "no-enable-chunked-prefill"),
        *("chat-template", "default-chat-template-kwargs"),
    }
)
"""Arguments that we set, or that would make the child unsafe or its models unprovable."""
_SHORT_ARGUMENTS = frozenset({"-h", "-q", "-tp", "-asc"})
"""Short forms of some of these arguments, and of --help, with which vLLM would end at once."""
_MORE_DEVICES = ("--pipeline-", "-pp", "--data-parallel", "-dp", "--prefill-context", "-pcp")
"""Beginnings of a user's arguments by which a model takes more devices. Their number is vLLM's
rule, and not repeated here."""


@dataclass(frozen=True)
class VllmOptions:
    """Settings of the engine. Raises ValueError for senseless ones.

    `executable` is the `vllm` command or the Python of its environment; None: NIP_VLLM, or the
    PATH's `vllm`. `dtype` "auto" is float32 on CPU, bfloat16 on CUDA (float16 where the device has
    none). `device` is "cpu", "cuda" or "cuda:0,1", as many as `tensor_parallel_size`; "auto": the
    first ones. `quantization` and the numbers are vLLM's own settings, None its defaults, but for
    `gpu_memory_utilization` where engines or trainings share a device (see `device_memory`).
    `max_lora_rank` is rounded up to a value that vLLM takes; `max_loras` adapters run in one
    batch, `max_cpu_loras` are kept in memory, others are read from disk again when asked for.
    `enable_sleep_mode` "auto": where CUDA is. With `rehearse_sleep` it sleeps and wakes once at its
    start: the first time takes longest, as the host's memory for it is reserved.
    `start_timeout_s` is long, since a first start may load a model from the Hub and compiles.
    `enforce_eager` starts faster and runs slower.
    `cpu_kv_cache_gib` is the memory for keys and values without a GPU.
    `chat_template_kwargs` are variables of the model's chat template, the same in training.
    `extra_arguments` go to `vllm serve`, unless they would override ours.
    """

    executable: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    tensor_parallel_size: int = 1
    max_num_seqs: int | None = None
    max_lora_rank: int = DEFAULT_LORA_RANK
    max_loras: int = 4
    max_cpu_loras: int = 32
    enable_sleep_mode: bool | str = "auto"
    rehearse_sleep: bool = False
    enforce_eager: bool = False
    cpu_kv_cache_gib: int = 1
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    extra_arguments: Sequence[str] = ()
    start_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        # Values that would fail a start after minutes of loading are refused here.
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ValueError(
                f"dtype is {self.dtype!r}, expected auto, float32, bfloat16 or float16"
            )
        if self.enable_sleep_mode not in ("auto", True, False):
            raise ValueError(
                f"enable_sleep_mode is {self.enable_sleep_mode!r}: true, false or auto"
            )
        if not 1 <= self.max_lora_rank <= LARGEST_LORA_RANK:
            raise ValueError(
                f"max_lora_rank is {self.max_lora_rank}, expected 1 to {LARGEST_LORA_RANK}"
            )
        if self.max_cpu_loras < self.max_loras or self.max_loras < 1:
            raise ValueError(
                f"max_cpu_loras ({self.max_cpu_loras}) must be at least max_loras "
                f"({self.max_loras}), and that at least 1"
            )
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"gpu_memory_utilization is {share}, expected 0 to 1")
        _refuse_ours(self.extra_arguments)
        self._check_device()

    def _check_device(self) -> None:
        if not re.fullmatch(DEVICE, self.device):
            raise ValueError(f"device is {self.device!r}, expected auto, cpu, cuda or cuda:0,1")
        numbers, count = device_numbers(self.device) or (), self.device_count
        if self.device.startswith("cuda:") and count not in (None, len(numbers)):
            raise ValueError(
                f"device is {self.device!r}, but the model takes {count} device(s) "
                "(tensor_parallel_size)"
            )

    @property
    def device_count(self) -> int | None:
        """The number of a model's CUDA devices; None: a user's arguments ask for more."""
        names = [argument.replace("_", "-") for argument in self.extra_arguments]
        asks_for_more = any(name.startswith(_MORE_DEVICES) for name in names)
        return None if asks_for_more else self.tensor_parallel_size

    @property
    def cuda_device(self) -> str:
        """The engine's devices where there is CUDA; "cuda": vLLM decides."""
        if self.device not in ("auto", "cuda"):
            return self.device
        # With arguments for more devices, all visible ones are used.
        if self.device_count is None:
            return "cuda"
        return "cuda:" + ",".join(map(str, range(self.device_count)))

    @property
    def served_lora_rank(self) -> int:
        """The largest rank, rounded up to a value of `LORA_RANKS`."""
        return served_lora_rank(self.max_lora_rank)

    def arguments(self) -> list[str]:
        """Write the arguments of `vllm serve` for the options alone."""
        parallel = self.tensor_parallel_size if self.tensor_parallel_size > 1 else None
        arguments = []
        for name, value in {
            "quantization": self.quantization,
            "max-model-len": self.max_model_len,
            "max-num-seqs": self.max_num_seqs,
            "gpu-memory-utilization": self.gpu_memory_utilization,
            "tensor-parallel-size": parallel,
            "max-lora-rank": self.served_lora_rank,
            "max-loras": self.max_loras,
            "max-cpu-loras": self.max_cpu_loras,
        }.items():
            if value is not None:
                arguments += [f"--{name}", str(value)]
        if self.chat_template_kwargs:
            variables = json.dumps(dict(self.chat_template_kwargs))
            arguments += ["--default-chat-template-kwargs", variables]
        if self.enforce_eager:
            arguments.append("--enforce-eager")
        return [*arguments, *self.extra_arguments]


def served_lora_rank(rank: int) -> int:
    """Return the smallest rank of vLLM's list with room for `rank`, 1 to LARGEST_LORA_RANK."""
    return next(larger for larger in LORA_RANKS if larger >= rank)


def find_wide_vocabulary(model: str) -> str | None:
    """Say that vLLM may have refused a model for its vocabulary; None: its size is no reason.

    A model whose output layer is its embedding may be served all the same.
    """
    try:
        config = parse_json((Path(model).expanduser() / "config.json").read_text())
        size = int(config.get("vocab_size") or config["text_config"]["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # a model on the Hub has no file here, and this is only a hint
    if size <= WIDEST_VOCABULARY:
        return None
    return (
        f"The model {model} has a vocabulary of {size} tokens, and vLLM takes LoRA adapters for an "
        f"output layer of {WIDEST_VOCABULARY} at most: take another model, another engine, "
        "or extra_arguments --lora-target-modules without lm_head"
    )


def _refuse_ours(extra: Sequence[str]) -> None:
    """Raise ValueError for a user's arguments in conflict with ours."""
    for argument in extra:
        if not isinstance(argument, str):
            raise ValueError(f"extra_arguments must be texts, got {argument!r}")
        # vLLM reads _ as -, JSON fields behind a dot, and any beginning that is unambiguous.
        name = argument.split("=")[0].split(".")[0].replace("_", "-")
        is_short = any(name.startswith(s) for s in _SHORT_ARGUMENTS) and not name.startswith("--")
        is_long = name.startswith("--") and any(
            ours.startswith(name[2:]) for ours in _OUR_ARGUMENTS
        )
        if is_short or is_long:
            raise ValueError(
                f"{argument!r} can't be given to vLLM by extra_arguments: the engine sets it, has "
                "an option for it, or it would weaken the server"
            )
