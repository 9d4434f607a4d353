"""The rules of the deterministic engine, read from YAML: the replies to each kind of messages.

ReplyFile          the whole file: seed, latency, faults, training, rules, default
Rule, When         the first rule whose conditions all hold is used
Reply, Weight      replies of a rule, drawn by weight
Template           a reply's text, with generators in braces

Generators: ``{word}``, ``{words:8}``, ``{words:3-8}`` (a drawn number of words),
``{letters:20}``, ``{digits:2}``, ``{choice:a|b|c}``, ``{filler:400}`` (text of exactly that many
characters, to test sizes), ``{generation}`` (how often the model was trained). ``{{`` and ``}}``
are braces. This module knows no protocol, no model and no HTTP.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
)

from nip_base.formats.untrusted import parse_yaml, read_text

DEFAULT_FILE = Path(__file__).parent / "replies" / "default.yaml"

_VOCABULARY = """
    loop branch index bound sum value result list item count case edge check test limit start end
    range step order sign zero one empty first last larger smaller equal same never always returns
    adds skips stops keeps counts drops reads compares swaps input output function argument
    variable string number character element length line condition comparison operator
"""
_WORDS = tuple(_VOCABULARY.split())

Messages = Sequence[Mapping[str, Any]]


class Template:
    """A reply's text, parsed once. Raises ValueError for an unknown generator, or no text."""

    _TOKEN = re.compile(r"\{\{|\}\}|\{([a-z]+)(?::([^{}]*))?\}|[{}]|[^{}]+")

    def __init__(self, text: str):
        # Here, at the start of a server, and not in the answer with this text.
        if not text.isascii() and text != text.encode("utf-8", "replace").decode():
            raise ValueError(f"half a surrogate pair in {text!r:.80}: no answer can carry it")
        self._parts: list[str | Callable[[Random, int], str]] = []
        for match in self._TOKEN.finditer(text):
            token, name, argument = match.group(), match.group(1), match.group(2)
            if name is not None:
                self._parts.append(_make_generator(name, argument, text))
            elif token in ("{", "}"):
                raise ValueError(f"a single {token!r} in {text!r}: write {token * 2!r}")
            else:
                self._parts.append(token[0] if token in ("{{", "}}") else token)
        self.fixed = (
            "".join(part for part in self._parts if isinstance(part, str))
            if all(isinstance(part, str) for part in self._parts)
            else None
        )
        """The text itself, if it has no generators; else None."""

    def render(self, random: Random, generation: int) -> str:
        """Fill the generators. The same random state gives the same text."""
        if self.fixed is not None:
            return self.fixed
        return "".join(
            part if isinstance(part, str) else part(random, generation) for part in self._parts
        )


def _make_generator(name: str, argument: str | None, text: str) -> Callable[[Random, int], str]:
    # Only Random.random() is used: Python promises the sequence of this method alone for ever.
    if name == "word" and argument is None:
        return lambda random, _: _pick(random, _WORDS)
    if name == "generation" and argument is None:
        return lambda _, generation: str(generation)
    if name == "choice" and argument:
        options = argument.split("|")
        return lambda random, _: _pick(random, options)
    if name in ("words", "letters", "digits", "filler") and argument:
        bounds = re.fullmatch(r"(\d+)(?:-(\d+))?", argument)
        if bounds is not None:
            low = int(bounds[1])
            high = int(bounds[2] or low)
            if low <= high:
                return _make_sized_generator(name, low, high)
    raise ValueError(
        f"unknown generator {{{name}{':' + argument if argument else ''}}} in {text!r}"
    )


def _make_sized_generator(name: str, low: int, high: int) -> Callable[[Random, int], str]:
    def render(random: Random, _: int) -> str:
        size = low + int(random.random() * (high - low + 1))
        if name == "words":
            return " ".join(_pick(random, _WORDS) for _ in range(size))
        if name == "filler":
            repeated = " ".join(_pick(random, _WORDS) for _ in range(16)) + " "
            return (repeated * (size // len(repeated) + 1))[:size]
        alphabet = "abcdefghijklmnopqrstuvwxyz" if name == "letters" else "0123456789"
        return "".join(_pick(random, alphabet) for _ in range(size))

    return render


def _pick(random: Random, options: Sequence[str]) -> str:
    return options[int(random.random() * len(options))]


def _is_within(value: int, low: int | None, high: int | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _contains_any(text: str, any_of: tuple[str, ...]) -> bool:
    return any(part in text for part in any_of)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Texts = Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(min_length=1)]


def _check(text: str) -> str:
    """Refuse a wrong template with its place in the file, before a request is answered."""
    Template(text)
    return text


_TemplateText = Annotated[str, AfterValidator(_check)]


class When(_Strict):
    """Conditions of a rule. All that are set must hold; of a list, one entry is enough."""

    last_role: _Texts | None = None
    """Role of the last message."""
    last_contains: _Texts | None = None
    """Text in the last message."""
    system_contains: _Texts | None = None
    """Text in any system message."""
    last_system_contains: _Texts | None = None
    """Text in the last system message."""
    any_contains: _Texts | None = None
    """Text in any message."""
    model_matches: re.Pattern[str] | None = None
    """Regular expression, found anywhere in the model's name."""
    min_messages: int | None = None
    max_messages: int | None = None
    min_generation: int | None = None
    """The model was trained at least this often; the base model has generation 0."""
    max_generation: int | None = None

    def holds(self, model: str, messages: Messages, generation: int) -> bool:
        """Say whether every condition holds."""
        if not _is_within(len(messages), self.min_messages, self.max_messages):
            return False
        if not _is_within(generation, self.min_generation, self.max_generation):
            return False
        if self.last_role is not None and messages[-1]["role"] not in self.last_role:
            return False
        if self.last_contains is not None and not _contains_any(
            messages[-1]["content"], self.last_contains
        ):
            return False
        if self.system_contains is not None and not any(
            _contains_any(m["content"], self.system_contains)
            for m in messages
            if m["role"] == "system"
        ):
            return False
        if self.last_system_contains is not None:
            last = next((m["content"] for m in reversed(messages) if m["role"] == "system"), "")
            if not _contains_any(last, self.last_system_contains):
                return False
        if self.any_contains is not None and not any(
            _contains_any(m["content"], self.any_contains) for m in messages
        ):
            return False
        return self.model_matches is None or self.model_matches.search(model) is not None


class Weight(_Strict):
    """A weight that grows or shrinks with training: ``base + per_generation * generation``.

    Kept within [`min`, `max`]. The generation is the number of trainings in the adapter's chain.
    """

    base: float
    per_generation: float = 0.0
    min: float = Field(0.0, ge=0)
    max: float = Field(1e9, ge=0)

    def at(self, generation: int) -> float:
        """The weight of a model of this generation."""
        return min(self.max, max(self.min, self.base + self.per_generation * generation))


class Reply(_Strict):
    """One text of a rule, and its frequency relative to the rule's others."""

    text: _TemplateText
    weight: float | Weight = 1.0
    finish_reason: Literal["stop", "length", "content_filter"] = "stop"

    def weight_at(self, generation: int) -> float:
        """The weight for a model of this generation."""
        return self.weight.at(generation) if isinstance(self.weight, Weight) else self.weight

    @cached_property
    def template(self) -> Template:
        """The text, parsed."""
        return Template(self.text)


class Rule(_Strict):
    """Replies for all messages with the properties in `when`."""

    when: When = When()
    replies: tuple[Reply, ...] = Field(min_length=1)
    # Sums of the weights by generation, since every answer needs them. There are as many as
    # trainings in a chain.
    _sums: dict[int, list[float]] = PrivateAttr(default_factory=dict)

    def draw(self, generation: int, fraction: float) -> Reply:
        """The reply at this place in [0, 1) of the weights laid end to end."""
        sums = self._sums.get(generation)
        if sums is None:
            sums = list(accumulate(reply.weight_at(generation) for reply in self.replies))
            self._sums[generation] = sums
        # Weights may shrink to zero with training. There must be a reply, so then all are alike.
        if sums[-1] <= 0:
            return self.replies[int(fraction * len(self.replies))]
        # A product that is rounded up to the whole sum would lie beyond the last reply.
        index = bisect_right(sums, fraction * sums[-1])
        return self.replies[min(index, len(self.replies) - 1)]


class Latency(_Strict):
    """Seconds before an answer: `min` plus an exponential share up to `mean`, at most `max`."""

    mean: float = Field(0.0, ge=0)
    min: float = Field(0.0, ge=0)
    max: float = Field(60.0, ge=0)


_Rate = Annotated[float, Field(ge=0, le=1)]


class Faults(_Strict):
    """Rates of planned failures, as fractions of requests.

    The first three are faults of the transport, drawn anew at each try, so that a repeated request
    may succeed. The others are faults of the answer: the same request gets the same one.
    """

    server_error: _Rate = 0.0
    """HTTP 500."""
    rate_limited: _Rate = 0.0
    """HTTP 429 with `retry_after_s`."""
    retry_after_s: float = Field(0.05, ge=0)
    dropped: _Rate = 0.0
    """The connection is closed without an answer."""
    empty: _Rate = 0.0
    """An answer without text."""
    malformed: _Rate = 0.0
    """An answer that follows no format: `malformed_text`."""
    malformed_text: _TemplateText = "{letters:12} {{ {words:3}"
    wrong_finish_reason: _Rate = 0.0
    """`length` instead of `stop`, though the text is whole."""

    @property
    def any_transport(self) -> bool:
        """Say whether a transport fault can happen at all."""
        return self.server_error + self.rate_limited + self.dropped > 0

    @property
    def any_in_text(self) -> bool:
        """Say whether an answer can be a faulty one at all."""
        return self.empty + self.malformed + self.wrong_finish_reason > 0


class TrainingRules(_Strict):
    """The behaviour of training jobs. They always really read and check their files."""

    seconds: float = Field(0.0, ge=0)
    """How long a job seems to train. A resumed job waits for the rest alone."""
    fail_rate: _Rate = 0.0
    """Jobs that fail with code ``injected_failure``, drawn by the job's key."""
    unproved_rate: _Rate = 0.0
    """Jobs whose adapter the engine does not answer with, drawn by the adapter."""


class ReplyFile(_Strict):
    """All contents of a replies file."""

    seed: int = 0
    """Enters every draw: another seed gives another world."""
    max_model_len: int = Field(32768, ge=16)
    max_lora_rank: int = Field(512, ge=1)
    """Largest rank of an adapter; a stack that would be higher becomes a base model."""
    latency_s: Latency = Latency()
    faults: Faults = Faults()
    training: TrainingRules = TrainingRules()
    rules: tuple[Rule, ...] = ()
    default: tuple[Reply, ...] = (Reply(text="{words:3-9}."),)
    """Replies when no rule's conditions hold."""


def load_replies(path: Path | None) -> ReplyFile:
    """Read a replies file, or the packaged one. Raises ValueError with the file and the key."""
    source = path or DEFAULT_FILE
    try:
        data = parse_yaml(read_text(source))
        return ReplyFile.model_validate(data if data is not None else {})
    except ValidationError as error:
        # The first alone, in one line: a run shows no more of its server's message.
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"replies file {source}: {key}: {first['msg']}") from None
    # No YAML, or no text: these errors lack the file's name.
    except ValueError as error:
        raise ValueError(f"replies file {source}: {' '.join(str(error).split())}") from None
