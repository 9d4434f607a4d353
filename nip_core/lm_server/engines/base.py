"""The small interface behind which every engine stands.

An engine answers chat completions for one base model and any number of adapters over it. It
knows nothing of HTTP, files or jobs; the server (`nip_core.lm_server.app`) wires it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class EngineError(Exception):
    """The engine can't do what was asked; the message says what and why."""


class EngineRequestError(EngineError, ValueError):
    """The request itself is wrong (prompt too long, template refuses a role): HTTP 400.

    `code` is a short machine-readable word, for example ``context_length_exceeded``.
    """

    def __init__(self, message: str, code: str = "invalid_request", param: str | None = None):
        super().__init__(message, code, param)
        self.message, self.code, self.param = message, code, param

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class ChatRequest:
    """One chat completion, already validated."""

    model: str  # the base model's served name, or an adapter's name
    messages: tuple[dict[str, Any], ...]  # role, content, optional name
    max_tokens: int | None = None  # None: as far as the context goes
    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    n: int = 1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False  # log-probability of each generated token
    return_token_ids: bool = False


@dataclass(frozen=True)
class Choice:
    """One answer. `token_ids` and `logprobs` have one entry per generated token, stop included."""

    text: str
    finish_reason: str  # stop, length, content_filter
    completion_tokens: int
    tokens: tuple[str, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True)
class ChatResult:
    """What an engine returns for a `ChatRequest`; `model` is the one that really answered."""

    model: str
    choices: tuple[Choice, ...]
    prompt_tokens: int
    prompt_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Proof:
    """Evidence that an adapter answers with its own weights.

    `matches` says whether what the served model gave on the probe is what the saved weights
    give; `detail` carries the figures (distance, tolerance, nearest other adapter).
    """

    matches: bool
    detail: dict[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """What the server asks of an engine. All methods are called on the server's event loop."""

    name: str  # deterministic, embedded, vllm
    base_model: str  # the served name of the base model
    epoch: int  # grows by one with each start of the engine

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def chat(self, request: ChatRequest) -> ChatResult:
        """Answer, or raise EngineRequestError. Cancelling the await abandons the request."""

    async def tokenize(self, model: str, messages: tuple[dict[str, Any], ...]) -> tuple[int, ...]:
        """Token ids of the prompt these messages give, generation prompt included."""

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in tokens."""

    async def load_adapter(self, name: str, path: Path) -> None:
        """Make the adapter in `path` answer to `name` without stopping anything."""

    async def unload_adapter(self, name: str) -> None: ...

    def loaded_adapters(self) -> tuple[str, ...]: ...

    async def prove(self, name: str, path: Path) -> Proof:
        """Check that `name` answers with the weights in `path`."""

    def status(self) -> dict[str, Any]:
        """JSON-encodable facts: state, epoch, requests served, device, versions."""
