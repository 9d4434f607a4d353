"""The settings of the vLLM engine, and the arguments of `vllm serve` that may not be one."""

from collections.abc import Sequence
from dataclasses import dataclass

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM takes for its largest rank."""
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
    }
)
"""Arguments that are set by us or would undo what keeps the child safe and provable."""
_SHORT_ARGUMENTS = frozenset({"-h", "-q", "-tp", "-asc"})


@dataclass(frozen=True)
class VllmOptions:
    """Settings of the engine. Raises ValueError for those that make no sense.

    `executable` is the `vllm` command or the Python of its environment; None: NIP_VLLM, or what
    the PATH has. `dtype` "auto" is float32 on CPU, bfloat16 on CUDA (float16 where the device has
    none). `quantization` and the numbers are vLLM's own settings, None its defaults.
    `max_lora_rank` is rounded up to a value that vLLM takes; `max_loras` adapters run in one
    batch, `max_cpu_loras` are kept in memory, others are read from disk again when asked for.
    `enable_sleep_mode` "auto": where CUDA is. `enforce_eager` starts faster and runs slower.
    `cpu_kv_cache_gib` is the memory for keys and values without a GPU.
    `extra_arguments` go to `vllm serve`, unless they would override ours.
    """

    executable: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    tensor_parallel_size: int = 1
    max_num_seqs: int | None = None
    max_lora_rank: int = 64
    max_loras: int = 4
    max_cpu_loras: int = 32
    enable_sleep_mode: bool | str = "auto"
    enforce_eager: bool = False
    cpu_kv_cache_gib: int = 1
    extra_arguments: Sequence[str] = ()
    start_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ValueError(
                f"dtype is {self.dtype!r}, expected auto, float32, bfloat16 or float16"
            )
        if self.enable_sleep_mode not in ("auto", True, False):
            raise ValueError(
                f"enable_sleep_mode is {self.enable_sleep_mode!r}: true, false or auto"
            )
        if not 1 <= self.max_lora_rank <= LORA_RANKS[-1]:
            raise ValueError(
                f"max_lora_rank is {self.max_lora_rank}, expected 1 to {LORA_RANKS[-1]}"
            )
        if self.max_cpu_loras < self.max_loras or self.max_loras < 1:
            raise ValueError(
                f"max_cpu_loras ({self.max_cpu_loras}) must be at least max_loras "
                f"({self.max_loras}), and that at least 1"
            )
        _refuse_ours(self.extra_arguments)

    @property
    def served_lora_rank(self) -> int:
        """The largest rank as vLLM takes it."""
        return next(rank for rank in LORA_RANKS if rank >= self.max_lora_rank)

    def arguments(self) -> list[str]:
        """Those for `vllm serve` that the options alone decide."""
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
        if self.enforce_eager:
            arguments.append("--enforce-eager")
        return [*arguments, *self.extra_arguments]


def _refuse_ours(extra: Sequence[str]) -> None:
    """Raise ValueError for a user's arguments that would override ours."""
    for argument in extra:
        if not isinstance(argument, str):
            raise ValueError(f"extra_arguments must be texts, got {argument!r}")
        # vLLM takes _ for -, JSON fields behind a dot, and any beginning that is unambiguous.
        name = argument.split("=")[0].split(".")[0].replace("_", "-")
        short = any(name.startswith(s) for s in _SHORT_ARGUMENTS) and not name.startswith("--")
        long = name.startswith("--") and any(ours.startswith(name[2:]) for ours in _OUR_ARGUMENTS)
        if short or long:
            raise ValueError(
                f"{argument!r} can't be given to vLLM by extra_arguments: the engine sets it, has "
                "an option for it, or it would weaken the server"
            )
