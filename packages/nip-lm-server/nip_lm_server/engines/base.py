"""The small interface of every engine.

An engine answers for one base model and any number of adapters over it. It knows nothing of
HTTP, files or jobs; the server (`nip_lm_server.api.app`) wires it. An engine that is a server
itself (vLLM) gives its address (`upstream`), and requests are passed through to it.

`capabilities` lists an engine's abilities; its class has them before an engine is made. An engine
refuses all other requests, and ignores nothing. `own_engines` checks that a class has the methods
that its capabilities promise.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from nip_base.api_errors import EngineError
from nip_base.proof import Proof
from nip_base.spec import Capabilities, name_engines
from nip_lm_server.chats.chat_types import ChatMessage, Tool
from nip_lm_server.chats.tool_calls import ToolCall

__all__ = [
    "COUNTED_CONTEXTS",
    "Capabilities",
    "Delta",
    "Engine",
    "EngineError",
    "EngineRequestError",
    "EngineState",
    "GenerationRequest",
    "GenerationResult",
    "PromptScores",
    "Proof",
    "TopLogprob",
    "Upstream",
    "WorkDone",
    "room_for_answer",
]

EngineState = Literal["stopped", "starting", "running", "sleeping", "failed"]


class EngineRequestError(EngineError, ValueError):
    """The request itself is wrong (prompt too long, template refuses a role): HTTP 400.

    `code` is a short machine-readable word, for example ``context_length_exceeded``.
    """

    def __init__(self, message: str, code: str = "invalid_request", param: str | None = None):
        super().__init__(message, code, param)
        self.message, self.code, self.param = message, code, param

    def __str__(self) -> str:
        return self.message


COUNTED_CONTEXTS = 4
"""`Engine.tokenize` shows the tokens of prompts of at most so many times the model's context:
enough to say by how much a prompt is too long, without encoding texts of any length."""


@dataclass(frozen=True)
class WorkDone:
    """An engine's work since its start, in counters that only grow."""

    prompt_tokens: int = 0
    """Tokens of prompts, counted after each pass and not only at the prompt's end."""
    generated_tokens: int = 0
    """Tokens of answers, of abandoned ones as well."""
    other: int = 0
    """Other work, such as proofs: it shows that the engine advances."""


@dataclass(frozen=True)
class Upstream:
    """The address of an engine with an OpenAI-compatible server of its own."""

    url: str  # without /v1
    api_key: str = field(repr=False)
    parameters: frozenset[str] = frozenset()  # names that its chat completions take
    completion_parameters: frozenset[str] = frozenset()


@dataclass(frozen=True)
class GenerationRequest:
    """One request, already validated: a conversation in `messages`, or else a `prompt`."""

    model: str  # the base model's served name, or an adapter's name
    messages: tuple[ChatMessage, ...] = ()
    prompt: str | tuple[int, ...] | None = None  # text or token ids, without a template
    max_tokens: int | None = None  # None: as far as the context goes
    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    n: int = 1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] | None = None  # None: the model's own; (): no token stops it
    top_k: int = 0  # draw from so many likeliest tokens; 0: from all
    logprobs: bool = False  # log-probability of each generated token
    top_logprobs: int = 0  # alternatives for each generated token
    top_at: tuple[str, ...] = ()  # only where one of these words may begin; (): everywhere
    listed_at: tuple[str, ...] = ()  # there alone; tokens between are one with log-probability 0
    echo: bool = False  # the answer begins with the prompt, which is scored as well
    return_token_ids: bool = False
    schema: dict[str, Any] | None = None  # the answer is JSON of this schema
    grammar: str | None = None  # or it follows this grammar, in llguidance's form of Lark's
    tools: tuple[Tool, ...] = ()  # functions that the prompt describes
    forced_tools: tuple[str, ...] = ()  # it must call one of these; (): it may
    parallel_tool_calls: bool = True  # it may call several at once
    body_bytes: int = 0  # of the whole body: large ones are read in a thread

    @property
    def has_form(self) -> bool:
        """Say whether the answer has a form: JSON, a grammar, or calls of tools."""
        return self.schema is not None or self.grammar is not None or bool(self.tools)

    @property
    def form_parameter(self) -> str:
        """The parameter with the form, for errors."""
        return "response_format" if self.grammar is None else "structured_outputs"


def room_for_answer(request: GenerationRequest, prompt_tokens: int, context: int) -> int:
    """Return how many tokens the answer may have. Raises EngineRequestError if they don't fit."""
    max_tokens = request.max_tokens
    if max_tokens is not None and max_tokens < 1:
        raise EngineRequestError(
            f"max_tokens must be at least 1, got {max_tokens}", "invalid_value", "max_tokens"
        )
    room = context - prompt_tokens
    # Without a limit of the request's own, an answer has one token at least.
    if room < (max_tokens or 1):
        part, verb = ("messages", "take") if request.prompt is None else ("prompt", "takes")
        rest = f" and {max_tokens} for the answer" if max_tokens else ""
        raise EngineRequestError(
            f"This model's context is {context} tokens; the {part} {verb} {prompt_tokens}{rest}. "
            f"Shorten the {part} or lower max_tokens.",
            "context_length_exceeded",
            "max_tokens" if room > 0 else part,
        )
    return max_tokens or room


@dataclass(frozen=True)
class TopLogprob:
    """An alternative at one position."""

    token: str
    logprob: float
    token_id: int | None = None  # None: the engine has no ids


@dataclass(frozen=True)
class Delta:
    """A piece of an answer, or all of it: the text of choice `index` certain by now.

    `tokens`, `token_ids` and `logprobs` have one entry per generated token, stop included, and are
    empty where the request doesn't want them. The pieces of a choice joined are the answer that
    `generate` gives for the same seed. The last piece has `finish_reason`: stop, length,
    content_filter or tool_calls. The first of a stream has `prompt_tokens` (and `prompt_token_ids`
    where the request wants them).
    """

    index: int
    text: str
    finish_reason: str | None = None
    tokens: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] = ()  # None: an echoed prompt's first token
    top_logprobs: tuple[tuple[TopLogprob, ...], ...] = ()
    completion_tokens: int = 0  # generated in this piece
    prompt_tokens: int | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    tool_calls: tuple[ToolCall, ...] = ()  # all calls of a choice, in its last delta


@dataclass(frozen=True)
class PromptScores:
    """Log-probabilities of a prompt's tokens, each given all before it; the first token has none.

    `likeliest` has the likeliest tokens (id, log-probability) at the same places, if the caller
    wants some.
    """

    logprobs: tuple[float, ...]
    likeliest: tuple[tuple[tuple[int, float], ...], ...] = ()


@dataclass(frozen=True)
class GenerationResult:
    """An engine's answer to a request; `model` is the model that really answered."""

    model: str
    choices: tuple[Delta, ...]  # each a whole answer
    prompt_tokens: int
    prompt_token_ids: tuple[int, ...] | None = None


class Engine(ABC):
    """An engine as the server sees it. All methods are called on the server's event loop."""

    name: str  # deterministic, embedded, vllm, or a user's own word
    base_model: str  # the served name of the base model
    epoch: int = 0  # grows by one with each start of the engine
    _state: EngineState = "stopped"

    @property
    def state(self) -> EngineState:
        """The engine's state now."""
        return self._state

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The engine's abilities, as far as they are known. A class may give them as a value."""

    @property
    def upstream(self) -> Upstream | None:
        """Return the address to pass requests on to. None: ask `generate` and `stream`."""
        return None

    async def start(self) -> None:
        """Start, without adapters, as a new epoch; nothing happens if it runs or sleeps.

        Raises EngineError with the reason if it can't be served.
        """
        if self.state in ("starting", "running", "sleeping"):
            return
        # A failed engine may have left a process or a thread that holds the device's memory.
        await self.stop()
        self._state = "starting"
        self.epoch += 1
        try:
            await self._start()
        except BaseException:
            # Cancellation included: a half-started engine would keep its device.
            await self.stop()
            self._state = "failed"  # last, since `stop` sets another
            raise
        self._state = "running"

    async def _start(self) -> None:
        """Start a stopped engine."""
        return

    async def stop(self) -> None:
        """End it, from any state. Waiting and running requests fail with EngineError."""
        self._state = "stopped"

    async def sleep(self) -> None:
        """Give the device's memory back; weights and adapters may stay in other memory.

        An engine that sleeps is left asleep. Raises EngineError if `capabilities.sleep` is false.
        """
        raise EngineError(f"the engine {self.name} can't sleep")

    async def wake(self) -> None:
        """Undo `sleep`; no error if it is awake. `loaded_adapters` has the adapters still
        loaded; the caller proves them again.
        """
        self._refuse_unless("running")

    async def wait_dead(self) -> str:
        """Wait until a running engine ends without `stop`, and return the reason."""
        # An engine without a process or thread of its own ends with the server.
        await asyncio.Event().wait()
        raise AssertionError("no code sets this event")

    async def measure_work(self) -> WorkDone | None:
        """Count the work since the start; None while the engine can't count it.

        An engine with requests whose counters stand still hangs.
        """
        return None

    async def read_prompts(
        self, requests: Sequence[GenerationRequest]
    ) -> Sequence[GenerationRequest]:
        """Check the prompts of one body one by one, with a turn for other tasks in between.

        Returns requests that cost `generate` and `stream` less work. Raises EngineRequestError for
        the first that can't be answered.
        """
        return requests

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Answer, or raise EngineRequestError. Cancelling the await abandons the request."""
        raise EngineError(f"the engine {self.name} answers at its own address")

    def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """Answer piece by piece. Closing the iterator abandons the request.

        Errors of the request are raised before the first delta. Without an override an answer is
        one piece.
        """
        return self._stream_whole(request)

    async def _stream_whole(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        result = await self.generate(request)
        prompt: dict[str, Any] = {
            "prompt_tokens": result.prompt_tokens,
            "prompt_token_ids": result.prompt_token_ids,
        }
        for choice in result.choices:
            yield replace(choice, **prompt)
            prompt = {}  # the first delta alone has it

    async def score_prompt(self, model: str, tokens: Sequence[int], top: int) -> PromptScores:
        """Score given tokens with a model, with the `top` likeliest tokens at each place.

        Raises EngineRequestError for tokens that can't be scored.
        """
        raise EngineRequestError(
            f"the engine {self.name} does not score given tokens by itself: serve the model with "
            f"--engine {name_engines('scores_given_tokens')}",
            "unsupported_value",
            "prompt_logprobs",
        )

    async def tokenize(self, request: GenerationRequest) -> tuple[int, ...]:
        """Return the token ids of the messages' prompt, generation prompt included.

        Raises EngineRequestError for more than COUNTED_CONTEXTS times the context.
        """
        raise EngineError(f"the engine {self.name} answers at its own address")

    @property
    @abstractmethod
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in tokens. Raises EngineError before the first start."""

    async def load_adapter(self, name: str, path: Path) -> None:
        """Make the adapter in `path` answer to `name` without stopping anything.

        Loading the same weights again does nothing. Raises EngineError for other weights under a
        name that is in use, and for files that are no adapter over this base.
        """
        raise EngineError(f"the engine {self.name} loads no adapters")

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; no error if it isn't loaded."""
        return

    def loaded_adapters(self) -> tuple[str, ...]:
        """List the names of the answering adapters, in the order they were loaded."""
        return ()

    async def prove(self, name: str, path: Path) -> Proof:
        """Compare answers of `name`, an adapter or the base model, with the weights in `path`."""
        raise EngineError(f"the engine {self.name} loads no adapters, so it proves none")

    def status(self) -> dict[str, Any]:
        """JSON-encodable facts: state, epoch, requests served, device, versions."""
        return {
            "engine": self.name,
            "state": self.state,
            "epoch": self.epoch,
            "base_model": self.base_model,
            "adapters": list(self.loaded_adapters()),
        }

    def _refuse_unless(self, *states: EngineState) -> None:
        if self.state not in states:
            raise EngineError(f"the engine is {self.state}")
