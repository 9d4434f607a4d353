"""An engine without a model: the same request gets the same answer, on any machine, for ever.

DeterministicEngine    replies drawn by a stable hash of (model, messages, seed, choice index)
InjectedFault          a transport fault from the replies file; the server plays it

Its training is `training.deterministic_trainer`. Sampling settings (temperature, top_p,
repetition_penalty) change nothing here. There are no log-probabilities, so they are refused. Tokens
are pieces of three UTF-8 bytes: stable, reversible, and about as long as real ones. For the rules,
a prompt that is no conversation is one message of a user.
"""

import asyncio
import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any

from nip_base.formats.bounds import parse_json
from nip_base.proof import Proof
from nip_base.spec import ENGINES
from nip_lm_server import aside
from nip_lm_server.chats.chat_types import ChatMessage
from nip_lm_server.engines.base import (
    COUNTED_CONTEXTS,
    Capabilities,
    Delta,
    Engine,
    EngineError,
    EngineRequestError,
    GenerationRequest,
    GenerationResult,
    room_for_answer,
)
from nip_lm_server.engines.scripted.drawn_answers import draw_call, fit, split_choice
from nip_lm_server.engines.scripted.pseudo_tokens import (
    MESSAGE_OVERHEAD,
    TOKEN_BYTES,
    count_pseudo_tokens,
    decode_ids,
    prompt_ids,
    token_ids,
)
from nip_lm_server.engines.scripted.reply_rules import Reply, ReplyFile, Rule, Template

ADAPTER_FILE = "adapter.json"
BASE_FILE = "base.json"
_FAULT_MEMORY = 200_000
"""The numbers of tries are remembered for so many requests, the newest. A request that is forgotten
between two tries meets its first fault again, so the limit has to be many times the requests in
flight. Without a limit the memory would grow as long as a server stays up."""


def hash_fraction(text: str) -> float:
    """A number in [0, 1) by a stable hash of `text`."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


class InjectedFault(EngineError):
    """A transport fault. `kind` is server_error, rate_limited or dropped."""

    def __init__(self, kind: str, retry_after_s: float = 0.0):
        super().__init__(kind)
        self.kind, self.retry_after_s = kind, retry_after_s


class _Weights:
    """A trained model, as its file was at the loading."""

    def __init__(self, path: Path):
        # As in every engine, a wrong file of a model is an EngineError; the server would take any
        # other error for a mistake of its own.
        try:
            content = path.read_bytes()
            value = parse_json(content)
            self.generation = int(value["generation"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{path} is no model: {error!r}") from error
        self.unchanged = value.get("unchanged") is True
        self.digest = hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class _Question:
    """A request as the rules see it. `digest` decides every draw."""

    request: GenerationRequest
    messages: tuple[ChatMessage, ...]
    generation: int
    digest: bytes
    prompt_tokens: int
    limit: int  # most tokens of the answer
    prompt_ids: tuple[int, ...] | None


class DeterministicEngine(Engine):
    """Answers by rule and hash; see the module.

    `path` is the directory of a base model that the trainer made; None: an untrained base model.
    """

    name = "deterministic"

    def __init__(self, base_model: str, replies: ReplyFile, path: Path | None = None):
        self.base_model = base_model
        self._path = path
        self.follow(replies)
        self._base: _Weights | None = None
        self._adapters: dict[str, _Weights] = {}
        self._tries: OrderedDict[bytes, int] = OrderedDict()
        self._requests = 0

    def follow(self, replies: ReplyFile) -> None:
        """Answer by these replies from here on."""
        self._replies = replies
        self._rules = (*replies.rules, Rule(replies=replies.default))
        self._faulty_text = replies.faults.any_in_text
        self._seed = str(replies.seed).encode()

    # Life

    async def _start(self) -> None:
        self._base = None if self._path is None else _Weights(self._path / BASE_FILE)

    async def stop(self) -> None:
        """Forget the adapters."""
        self._adapters.clear()
        self._state = "stopped"

    async def sleep(self) -> None:
        """Answer nothing until `wake`; there is no memory to give back."""
        self._refuse_unless("running", "sleeping")
        self._state = "sleeping"

    async def wake(self) -> None:
        self._refuse_unless("running", "sleeping")
        self._state = "running"

    @property
    def capabilities(self) -> Capabilities:
        return replace(ENGINES[self.name], max_lora_rank=self._replies.max_lora_rank)

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in pseudo tokens."""
        return self._replies.max_model_len

    def status(self) -> dict[str, Any]:
        return {
            "state": self._state,
            "epoch": self.epoch,
            "requests": self._requests,
            "adapters": len(self._adapters),
            "device": "none",
        }

    # Answering

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Answer by rule. Raises EngineRequestError, or InjectedFault where faults are set."""
        question = await self._ask(request)
        return GenerationResult(
            model=request.model,
            choices=await self._answer(question),
            prompt_tokens=question.prompt_tokens,
            prompt_token_ids=question.prompt_ids,
        )

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """Answer by rule, a token of each choice at a time. Errors come before the first delta."""
        question = await self._ask(request)
        choices = await self._answer(question)
        prompt = {"prompt_tokens": question.prompt_tokens, "prompt_token_ids": question.prompt_ids}
        for tokens in zip_longest(*map(split_choice, choices)):
            for delta in filter(None, tokens):
                yield replace(delta, **prompt) if prompt else delta
                prompt = {}  # the first delta alone has it
            await asyncio.sleep(0)  # other tasks get a turn

    async def tokenize(self, request: GenerationRequest) -> tuple[int, ...]:
        """Pseudo token ids of the prompt."""
        self._generation(request.model)
        return await aside.run(request.body_bytes, self._counted_ids, request.messages)

    def _counted_ids(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        tokens = _count_tokens(messages)
        # Before the ids are made, which takes longer than to count them.
        if tokens > COUNTED_CONTEXTS * self.max_model_len:
            raise EngineRequestError(
                f"This model's context is {self.max_model_len} tokens; the messages take {tokens}, "
                "which is too long to be shown.",
                "context_length_exceeded",
                "messages",
            )
        return prompt_ids(messages)

    # Adapters

    async def load_adapter(self, name: str, path: Path) -> None:
        """Read the adapter's file, once."""
        self._adapters[name] = _Weights(path / ADAPTER_FILE)

    async def unload_adapter(self, name: str) -> None:
        self._adapters.pop(name, None)

    def loaded_adapters(self) -> tuple[str, ...]:
        return tuple(self._adapters)

    async def prove(self, name: str, path: Path) -> Proof:
        """Compare the digest of the loaded file with the one in the model's manifest."""
        file = ADAPTER_FILE
        weights = self._adapters.get(name)
        if name == self.base_model:
            file, weights = BASE_FILE, self._base
        loaded = weights.digest if weights else None
        # No file has this digest: the proof then fails by the usual comparison.
        if loaded is not None and hash_fraction(f"prove {loaded}") < (
            self._replies.training.unproved_rate
        ):
            loaded = "injected"
        try:
            saved = parse_json((path / "manifest.json").read_text())["files"][file]["sha256"]
        # Without a manifest nothing was compared: an error and no failed proof.
        except (OSError, ValueError, KeyError) as error:
            raise EngineError(f"{path} has no manifest with {file}: {error!r}") from error
        unchanged = weights is not None and weights.unchanged
        return Proof(
            loaded == saved,
            {"kind": "digest", "unchanged": unchanged, "loaded": loaded, "saved": saved},
        )

    # Inside

    def _generation(self, model: str) -> int:
        self._refuse_unless("running")
        if model == self.base_model:
            return self._base.generation if self._base else 0
        adapter = self._adapters.get(model)
        if adapter is None:
            raise EngineRequestError(f"{model!r} is not loaded", "model_not_found", "model")
        return adapter.generation

    async def _ask(self, request: GenerationRequest) -> _Question:
        """Check a request, play its faults and wait for its latency."""
        # 1. Refuse requests that can't be answered.
        if request.logprobs or request.top_logprobs:
            raise EngineRequestError(
                "the deterministic engine has no log-probabilities", "unsupported", "logprobs"
            )
        generation = self._generation(request.model)
        # 2. Read it. The digest alone decides every draw, so that order and company of requests
        #    change no answer.
        question = await aside.run(request.body_bytes, self._read, request, generation)
        # 3. Fail or wait, as drawn. A fault comes at once: only answers have a latency.
        self._requests += 1
        if self._replies.faults.any_transport:
            self._maybe_fail(question.digest)
        if self._replies.latency_s.mean or self._replies.latency_s.min:
            await asyncio.sleep(self._latency(question.digest))
        return question

    def _read(self, request: GenerationRequest, generation: int) -> _Question:
        """A request as the rules see it. Raises EngineRequestError where it has no room."""
        messages, ids = _read_prompt(request, self.max_model_len)
        prompt_tokens = _count_tokens(messages) if ids is None else len(ids)
        limit = room_for_answer(request, prompt_tokens, self.max_model_len)
        digest = self._digest(request, messages)
        if ids is None and request.return_token_ids:
            ids = prompt_ids(messages)
        returned_ids = ids if request.return_token_ids else None
        return _Question(request, messages, generation, digest, prompt_tokens, limit, returned_ids)

    def _digest(self, request: GenerationRequest, messages: tuple[ChatMessage, ...]) -> bytes:
        """Hash all parts of the request with an effect on the answer.

        Forms, tools and calls enter only where there are any: a request without them keeps the
        digest, and so the answer, that it has in an engine without forms and tools.
        """
        parts = [request.model, str(request.seed)]
        if request.has_form:
            form: list[Any] = [request.schema, request.tools, request.forced_tools]
            if request.grammar is not None:
                form.append(request.grammar)
            parts.append(json.dumps(form, sort_keys=True))
        for message in messages:
            role = message["role"] if request.prompt is None else "prompt"
            parts += (role, message.get("name") or "", message["content"])
            if message.keys() & {"tool_calls", "tool_call_id"}:
                calls = [message.get("tool_calls"), message.get("tool_call_id")]
                parts.append(json.dumps(calls, sort_keys=True))
        # Lengths keep two different lists of strings from joining to the same bytes.
        lengths = ",".join([str(len(part)) for part in parts])
        joined = f"{lengths}\n{''.join(parts)}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(self._seed + b"\n" + joined).digest()

    async def _answer(self, question: _Question) -> tuple[Delta, ...]:
        """Draw the choices; in a form this can take a second, so a thread does it."""
        request = question.request
        is_free = request.schema is None and request.grammar is None
        if is_free and not request.forced_tools:
            return await aside.run(question.request.body_bytes, self._choices, question)
        return await aside.follow_form(self._choices, question)

    def _choices(self, question: _Question) -> tuple[Delta, ...]:
        request = question.request
        facts = (request.model, question.messages, question.generation)
        rule = next(rule for rule in self._rules if rule.when.holds(*facts))
        return tuple(self._choice(rule, question, index) for index in range(request.n))

    def _choice(self, rule: Rule, question: _Question, index: int) -> Delta:
        # 1. All draws come from three numbers, of the request's digest and the index.
        request = question.request
        digest = hashlib.sha256(question.digest + index.to_bytes(4, "big")).digest()
        place, text_seed, form_seed = (int.from_bytes(digest[i : i + 8], "big") for i in (0, 8, 16))
        # Rules have no calls, so a forced call is always drawn.
        if request.forced_tools:
            return draw_call(index, request, Random(form_seed), question.limit)
        # 2. A reply of the rule, with its generators filled in.
        reply = rule.draw(question.generation, place / 2**64)
        finish_reason: str = reply.finish_reason
        # The usual case needs no seeded generator.
        if reply.template.fixed is not None and not self._faulty_text:
            text = reply.template.fixed
        else:
            text, finish_reason = self._text(reply, Random(text_seed), question.generation)
        # 3. In the form of the request, if it has one. A reply without the form is replaced by a
        #    drawn one, as a guided model can't leave the form either. An empty or malformed text by
        #    a fault is replaced as well. There is no warning: the rule's author writes for all
        #    requests and can't know their forms. The finish reason stays the reply's (or its
        #    fault's): with it a rule tests how readers take the end of an answer.
        if request.schema is not None or request.grammar is not None:
            text = fit(request, text, Random(form_seed), question.limit)
        # 4. Cut at a stop string, and at the limit.
        cut = min((text.find(stop) for stop in request.stop if stop in text), default=-1)
        if cut >= 0:
            text, finish_reason = text[:cut], "stop"
        if count_pseudo_tokens(text) > question.limit:
            # A character that is cut in two is left out: there may be one token fewer.
            text = text.encode()[: question.limit * TOKEN_BYTES].decode("utf-8", "ignore")
            finish_reason = "length"
        return Delta(
            index,
            text,
            finish_reason=finish_reason,
            completion_tokens=count_pseudo_tokens(text),
            token_ids=token_ids(text) if request.return_token_ids else (),
        )

    def _text(self, reply: Reply, random: Random, generation: int) -> tuple[str, str]:
        """(text, finish reason) of a reply, or of a fault drawn in its place."""
        faults, template, finish_reason = self._replies.faults, reply.template, reply.finish_reason
        if self._faulty_text:
            # One number for all faults, so that each comes at its rate.
            draw = random.random()
            if draw < faults.empty:
                return "", finish_reason
            if draw < faults.empty + faults.malformed:
                template = Template(faults.malformed_text)
            elif draw < faults.empty + faults.malformed + faults.wrong_finish_reason:
                finish_reason = "length"
        return template.render(random, generation), finish_reason

    def _maybe_fail(self, digest: bytes) -> None:
        key = digest[:12]
        tries = self._tries.pop(key, 0)
        self._tries[key] = tries + 1
        # A request that is tried again becomes the newest; the oldest is dropped.
        if len(self._tries) > _FAULT_MEMORY:
            self._tries.popitem(last=False)
        faults = self._replies.faults
        # By the number of the try as well: a repeated request may get through.
        draw = hash_fraction(f"fault {digest.hex()} {tries}")
        if draw < faults.server_error:
            raise InjectedFault("server_error")
        if draw < faults.server_error + faults.rate_limited:
            raise InjectedFault("rate_limited", faults.retry_after_s)
        if draw < faults.server_error + faults.rate_limited + faults.dropped:
            raise InjectedFault("dropped")

    def _latency(self, digest: bytes) -> float:
        latency = self._replies.latency_s
        # 1 minus a number below 1 is never 0, which has no logarithm.
        share = -math.log(1.0 - int.from_bytes(digest[16:22], "big") / 2**48)
        seconds = latency.min + max(0.0, latency.mean - latency.min) * share
        return min(latency.max, seconds)


def _count_tokens(messages: Sequence[ChatMessage]) -> int:
    return sum(count_pseudo_tokens(m["content"]) for m in messages) + MESSAGE_OVERHEAD * len(
        messages
    )


def _read_prompt(
    request: GenerationRequest, context: int
) -> tuple[tuple[ChatMessage, ...], tuple[int, ...] | None]:
    """Return the messages for the rules, and the token ids of a prompt without a conversation.

    Raises EngineRequestError.
    """
    if request.prompt is None:
        return request.messages, None
    if isinstance(request.prompt, str):
        text, ids = request.prompt, token_ids(request.prompt)
    else:
        ids = request.prompt
        room_for_answer(request, len(ids), context)  # first: a long list would be read in vain
        try:
            text = decode_ids(ids)
        except ValueError as error:
            raise EngineRequestError(str(error), "invalid_value", "prompt") from None
    if not ids:
        raise EngineRequestError("the prompt has no tokens", "invalid_value", "prompt")
    return ({"role": "user", "content": text},), ids
