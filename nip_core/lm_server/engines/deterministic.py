"""An engine without a model: the same request gets the same answer, on any machine, for ever.

DeterministicEngine    replies drawn by a stable hash of (model, messages, seed, choice index)
DeterministicTrainer   reads and checks the dataset for real, commits a digest as its adapter
InjectedFault          a transport fault that the replies file asked for; the server plays it

Sampling settings (temperature, top_p, repetition_penalty) have nothing to act on here and change
nothing. Log-probabilities are refused, there being none. Tokens are pieces of three UTF-8 bytes:
stable, reversible, and about as long as real ones.
"""

import asyncio
import hashlib
import json
import math
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from nip_core.lm_server import formats
from nip_core.lm_server.engines.base import (
    Capabilities,
    Choice,
    EngineError,
    EngineRequestError,
    EngineState,
    GenerationRequest,
    GenerationResult,
    Proof,
)
from nip_core.lm_server.engines.reply_rules import Reply, ReplyFile, Rule, Template
from nip_core.lm_server.trainers import Report, TrainingFailed, TrainingResult, TrainingTask

ADAPTER_FILE = "adapter.json"
_TOKEN_BYTES = 3
_MESSAGE_OVERHEAD = 3  # tokens that a chat template would add to a message
_FAULT_MEMORY = 200_000  # requests whose number of tries is remembered


class InjectedFault(EngineError):
    """A transport fault. `kind` is server_error, rate_limited or dropped."""

    def __init__(self, kind: str, retry_after_s: float = 0.0):
        super().__init__(kind)
        self.kind, self.retry_after_s = kind, retry_after_s


class _Adapter:
    """A loaded adapter: what its file said when it was loaded."""

    def __init__(self, content: bytes):
        self.digest = hashlib.sha256(content).hexdigest()
        self.generation = int(json.loads(content)["generation"])


class _Rule:
    """A rule with its templates parsed and its weights added up per generation."""

    def __init__(self, rule: Rule):
        self.when = rule.when
        self._replies = [(reply, Template(reply.text)) for reply in rule.replies]
        self._cumulative: dict[int, list[float]] = {}

    def draw(self, generation: int, fraction: float) -> tuple[Reply, Template]:
        sums = self._cumulative.get(generation)
        if sums is None:
            sums = list(accumulate(reply.weight_at(generation) for reply, _ in self._replies))
            self._cumulative[generation] = sums
        if sums[-1] <= 0:
            return self._replies[int(fraction * len(self._replies))]
        index = bisect_right(sums, fraction * sums[-1])
        return self._replies[min(index, len(self._replies) - 1)]


class DeterministicEngine:
    """Answers by rule and hash; see the module."""

    name = "deterministic"

    def __init__(self, base_model: str, replies: ReplyFile):
        self.base_model = base_model
        self.epoch = 0
        self._replies = replies
        self._rules = [_Rule(rule) for rule in replies.rules]
        self._default = _Rule(Rule(replies=replies.default))
        self._malformed = Template(replies.faults.malformed_text)
        self._faults_in_text = (
            replies.faults.empty + replies.faults.malformed + replies.faults.wrong_finish_reason > 0
        )
        self._seed = str(replies.seed).encode()
        self._adapters: dict[str, _Adapter] = {}
        self._tries: OrderedDict[bytes, int] = OrderedDict()
        self._requests = 0
        self._running = False

    async def start(self) -> None:
        """Begin a new epoch."""
        self.epoch += 1
        self._running = True

    async def stop(self) -> None:
        """Forget the adapters."""
        self._adapters.clear()
        self._running = False

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in pseudo tokens."""
        return self._replies.max_model_len

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Answer by rule. Raises EngineRequestError, or InjectedFault where faults are set."""
        if request.logprobs:
            raise EngineRequestError(
                "the deterministic engine has no log-probabilities", "unsupported", "logprobs"
            )
        generation = self._generation(request.model)
        prompt_tokens = sum(_token_count(m["content"]) for m in request.messages) + (
            _MESSAGE_OVERHEAD * len(request.messages)
        )
        room = self.max_model_len - prompt_tokens
        limit = room if request.max_tokens is None else request.max_tokens
        if room < max(1, limit):
            asked = f" and {request.max_tokens} for the answer" if request.max_tokens else ""
            raise EngineRequestError(
                f"This model's context is {self.max_model_len} tokens; the messages take "
                f"{prompt_tokens}{asked}. Shorten the messages or lower max_tokens.",
                "context_length_exceeded",
                "messages",
            )
        digest = self._digest(request)
        self._requests += 1
        if self._replies.faults.any_transport:
            self._maybe_fail(digest)
        if self._replies.latency_s.mean or self._replies.latency_s.min:
            await asyncio.sleep(self._latency(digest))
        rule = self._rule(request, generation)
        choices = tuple(
            self._choice(rule, digest, index, generation, limit, request)
            for index in range(request.n)
        )
        return GenerationResult(
            model=request.model,
            choices=choices,
            prompt_tokens=prompt_tokens,
            prompt_token_ids=self._prompt_ids(request.messages)
            if request.return_token_ids
            else None,
        )

    async def tokenize(self, model: str, messages: tuple[dict[str, Any], ...]) -> tuple[int, ...]:
        """Pseudo token ids of the prompt."""
        self._generation(model)
        return self._prompt_ids(messages)

    async def load_adapter(self, name: str, path: Path) -> None:
        """Read the adapter's file; it is not looked at again."""
        try:
            self._adapters[name] = _Adapter((path / ADAPTER_FILE).read_bytes())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{path / ADAPTER_FILE} is no adapter: {error!r}") from error

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; one that isn't loaded is no error."""
        self._adapters.pop(name, None)

    def loaded_adapters(self) -> tuple[str, ...]:
        """Names of the loaded adapters."""
        return tuple(self._adapters)

    async def prove(self, name: str, path: Path) -> Proof:
        """Compare the digest of what was loaded with the one in the adapter's manifest."""
        adapter = self._adapters.get(name)
        loaded = adapter.digest if adapter else None
        if loaded is not None and _fraction(f"prove {loaded}") < (
            self._replies.training.unproved_rate
        ):
            loaded = "injected"
        manifest = json.loads((path / "manifest.json").read_text())
        saved = manifest["files"][ADAPTER_FILE]["sha256"]
        return Proof(loaded == saved, {"kind": "digest", "loaded": loaded, "saved": saved})

    @property
    def state(self) -> EngineState:
        """Running or stopped."""
        return "running" if self._running else "stopped"

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return Capabilities()

    @property
    def upstream(self) -> None:
        """Requests are answered here."""
        return None

    def status(self) -> dict[str, Any]:
        """State and counters."""
        return {
            "state": "running" if self._running else "stopped",
            "epoch": self.epoch,
            "requests": self._requests,
            "adapters": len(self._adapters),
            "device": "none",
        }

    def _generation(self, model: str) -> int:
        if model == self.base_model:
            return 0
        adapter = self._adapters.get(model)
        if adapter is None:
            raise EngineRequestError(f"{model!r} is not loaded", "model_not_found", "model")
        return adapter.generation

    def _digest(self, request: GenerationRequest) -> bytes:
        parts = [request.model, str(request.seed)]
        for message in request.messages:
            parts += (message["role"], message.get("name") or "", message["content"])
        # Lengths keep two different lists of strings from joining to the same bytes.
        lengths = ",".join([str(len(part)) for part in parts])
        joined = f"{lengths}\n{''.join(parts)}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(self._seed + b"\n" + joined).digest()

    def _rule(self, request: GenerationRequest, generation: int) -> _Rule:
        for rule in self._rules:
            if rule.when.holds(request.model, request.messages, generation):
                return rule
        return self._default

    def _choice(
        self,
        rule: _Rule,
        digest: bytes,
        index: int,
        generation: int,
        limit: int,
        request: GenerationRequest,
    ) -> Choice:
        drawn = hashlib.sha256(digest + index.to_bytes(4, "big")).digest()
        reply, template = rule.draw(generation, int.from_bytes(drawn[:8], "big") / 2**64)
        finish_reason: str = reply.finish_reason
        if template.fixed is not None and not self._faults_in_text:
            text = template.fixed
        else:
            random = Random(int.from_bytes(drawn[8:16], "big"))
            text, finish_reason = self._text(template, random, generation, finish_reason)
        cut = min((text.find(stop) for stop in request.stop if stop in text), default=-1)
        if cut >= 0:
            text, finish_reason = text[:cut], "stop"
        tokens = _token_count(text)
        if tokens > limit:
            text = text.encode()[: limit * _TOKEN_BYTES].decode("utf-8", "ignore")
            tokens, finish_reason = limit, "length"
        ids = _token_ids(text) if request.return_token_ids else None
        return Choice(
            text=text,
            finish_reason=finish_reason,
            completion_tokens=tokens if ids is None else len(ids),
            token_ids=ids,
        )

    def _text(
        self, template: Template, random: Random, generation: int, finish_reason: str
    ) -> tuple[str, str]:
        faults = self._replies.faults
        if self._faults_in_text:
            draw = random.random()
            if draw < faults.empty:
                return "", finish_reason
            if draw < faults.empty + faults.malformed:
                return self._malformed.render(random, generation), finish_reason
            if draw < faults.empty + faults.malformed + faults.wrong_finish_reason:
                finish_reason = "length"
        return template.render(random, generation), finish_reason

    def _maybe_fail(self, digest: bytes) -> None:
        key = digest[:12]
        tries = self._tries.pop(key, 0)
        self._tries[key] = tries + 1
        if len(self._tries) > _FAULT_MEMORY:
            self._tries.popitem(last=False)
        faults = self._replies.faults
        draw = _fraction(f"fault {digest.hex()} {tries}")
        if draw < faults.server_error:
            raise InjectedFault("server_error")
        if draw < faults.server_error + faults.rate_limited:
            raise InjectedFault("rate_limited", faults.retry_after_s)
        if draw < faults.server_error + faults.rate_limited + faults.dropped:
            raise InjectedFault("dropped")

    def _latency(self, digest: bytes) -> float:
        latency = self._replies.latency_s
        share = -math.log(1.0 - int.from_bytes(digest[16:22], "big") / 2**48)
        drawn = latency.min + max(0.0, latency.mean - latency.min) * share
        return min(latency.max, drawn)

    def _prompt_ids(self, messages: tuple[dict[str, Any], ...]) -> tuple[int, ...]:
        ids: list[int] = []
        for message in messages:
            # Overhead as a template has it: begin, role, end.
            role = hashlib.sha256(message["role"].encode()).digest()[0]
            ids += (1, 256 + role, *_token_ids(message["content"]), 2)
        return tuple(ids)


class DeterministicTrainer:
    """Trains nothing and says so: the adapter is a digest of what it would be trained on."""

    def __init__(self, replies: ReplyFile):
        self._rules = replies.training

    async def train(
        self, task: TrainingTask, report: Report, started: Callable[[int, str], None]
    ) -> TrainingResult:
        """See `Trainer.train`. There is no child process, so `started` is not called."""
        del started
        begin = time.monotonic()
        examples, parent = await asyncio.to_thread(_read_inputs, task)
        epochs, batch = int(task.settings["n_epochs"]), int(task.settings["batch_size"])
        total_steps = epochs * math.ceil(len(examples) / batch)
        learned = sum(
            _token_count(message.content)
            for example in examples
            for message in example.messages
            if message.role == "assistant" and message.weight
        )
        for step in sorted({math.ceil(total_steps * part / 10) for part in range(1, 11)}):
            await asyncio.sleep(self._rules.seconds / min(10, total_steps))
            report([_progress(task, step, total_steps, epochs, learned)])
        if _fraction(f"fail {task.job_key}") < self._rules.fail_rate:
            raise TrainingFailed("injected_failure", "The replies file asked for a failure here")
        await asyncio.to_thread(_write_adapter, task, examples, parent)
        return TrainingResult(
            steps=total_steps,
            tokens=learned * epochs,
            wall_s=time.monotonic() - begin,
            detail={"examples": len(examples)},
        )


def _read_inputs(
    task: TrainingTask,
) -> tuple[tuple[formats.SupervisedExample, ...], dict[str, Any] | None]:
    examples = formats.read_supervised(task.training_file)
    if task.validation_file is not None:
        formats.read_supervised(task.validation_file)
    if task.parent_path is None:
        return examples, None
    content = (task.parent_path / ADAPTER_FILE).read_bytes()
    parent = json.loads(content)
    return examples, {
        "digest": hashlib.sha256(content).hexdigest(),
        "generation": parent["generation"],
    }


def _write_adapter(
    task: TrainingTask,
    examples: tuple[formats.SupervisedExample, ...],
    parent: dict[str, Any] | None,
) -> None:
    content = formats.to_jsonl(examples)
    adapter = {
        "generation": (parent["generation"] if parent else 0) + 1,
        "job_key": task.job_key,
        "parent_digest": parent["digest"] if parent else None,
        "examples": len(examples),
        "examples_digest": hashlib.sha256(content).hexdigest(),
        "settings": dict(task.settings),
        "seed": task.seed,
    }
    task.output_dir.mkdir(parents=True, exist_ok=True)
    (task.output_dir / ADAPTER_FILE).write_text(json.dumps(adapter, sort_keys=True, indent=1))


def _progress(
    task: TrainingTask, step: int, total_steps: int, epochs: int, tokens: int
) -> dict[str, Any]:
    return {
        "type": "progress",
        "step": step,
        "total_steps": total_steps,
        "loss": None,
        "learning_rate": task.settings["learning_rate"],
        "epoch": round(epochs * step / total_steps, 3),
        "tokens": tokens * epochs * step // total_steps,
    }


def _fraction(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _token_count(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // _TOKEN_BYTES)


def _token_ids(text: str) -> tuple[int, ...]:
    raw = text.encode("utf-8", "surrogatepass")
    # The number of bytes is in the id, so that ids can be turned back into text.
    return tuple(
        (len(piece) << 24) | int.from_bytes(piece, "big")
        for piece in (raw[i : i + _TOKEN_BYTES] for i in range(0, len(raw), _TOKEN_BYTES))
    )
