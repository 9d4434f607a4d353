"""A judge as a loopback server of OpenAI's protocol, for the verifier's seat of nip's game.

serve_judge   a judge, in a thread of its own, as long as the block lasts
serve_seat    the same for any function of a request
SeatService   its address, key, model and counts
SeatAnswer    an answer: words, and the decision that nip is to read
SeatRecord    the judge's own answer; read_record: that of an answer's text
write_answer  all of it as one text, of which nip reads that decision and no other
name_model    the name of a judge's model in a run's settings; choose_port: a port for it

A server with a `check` has the label of each text, and accepts only a text that is wrong for
certain. So an attacker is paid for nothing else, and the share of accepted texts among all wrong
rows is the share of fooled ones. The judge's own verdict stands in the answer's record.
"""

import asyncio
import contextlib
import hmac
import json
import math
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlencode

from aiohttp import web

from nip_core.errors import NipError
from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import AnswerForm, parse_response
from nip_core.protocols import ACCEPT, NO_DECISION, REJECT
from nip_core.protocols.scales import SCALES
from nip_judges.checks.answer_checks import AnswerCheck
from nip_judges.parts import GradedRow, Judge, JudgeAnswer, Verdict
from nip_judges.seat.scenario import KEY_VARIABLE, read_seat

_LINES: Mapping[str, int] = {"accept": ACCEPT, "reject": REJECT}
_FORM = AnswerForm(("main",), {}, SCALES["accept_reject"], must_decide=True)
_NO_WORDS = "(The judge wrote nothing.)"
_OF_JUDGE = "So far the judge."
_LEFT_OUT = "(The judge's words are left out.)"
_QUOTED = "> "
_RECORD = "> seat: "
_LABELS: Mapping[bool | None, Literal["wrong", "right after all", "not certain"]] = {
    False: "wrong",
    True: "right after all",
    None: "not certain",
}
_LEAST = 1e-9
_START_S = 10.0
_FIRST_PORT, _PORTS = 20_000, 12_000
"""Below those that systems give away by themselves."""
_Started = Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]]
"""Of a server in its thread: its port, its loop, and what ends it."""


@dataclass(frozen=True)
class SeatAnswer:
    """An answer for a seat of the game."""

    text: str
    decision: Literal["accept", "reject"] | None = None
    """The decision in the text; None: it has none."""
    p_accept: float | None = None
    """The probability that the decision is accept."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model: str | None = None
    """The name by which it answers; None: the one it is asked by."""


@dataclass(frozen=True)
class SeatRecord:
    """A judge's own answer, beside the decision of the seat."""

    verdict: Verdict
    words: str
    reason: str = ""
    label: Literal["wrong", "right after all", "not certain"] | None = None
    """Of the judged text, by the check; None: there is no check."""
    score: float | None = None
    p_accept: float | None = None
    model: str = ""


Answer = Callable[[Mapping[str, Any], int], Awaitable[SeatAnswer]]
"""Answers a request's body, with the seed of the answer. Raises NipError where none can follow."""


@dataclass
class SeatService:
    """A running server."""

    url: str
    """With /v1."""
    key: str = field(repr=False)
    models: tuple[str, ...]
    counts: Counter[str] = field(default_factory=Counter)
    """Answers so far, by what became of them."""
    failure: str | None = None
    """The error by which the judge can't answer any more."""


@contextlib.contextmanager
def serve_judge(
    judge: Judge,
    *,
    check: AnswerCheck | None = None,
    no_verdict: Literal["reject", "accept", "drop"] = "reject",
    port: int = 0,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Iterator[SeatService]:
    """Let a judge answer for the verifier, at a port of 127.0.0.1; 0: any that is free.

    With a `check` the server accepts a text only where the judge accepts it and the check finds it
    wrong. `no_verdict` is the decision where the judge gives none; "drop": there is none. `loop` is
    the event loop of the judge's client, where it has one and another thread runs it.

    The key stands in the environment variable of `JudgeSeat` while the block lasts. Raises OSError
    for a port that is taken.
    """
    counts: Counter[str] = Counter()

    async def ask(body: Mapping[str, Any], seed: int) -> SeatAnswer:
        seat = read_seat(body["messages"])
        if seat is None:
            raise ValueError("the chat is no verifier's of the scenario judged")
        shown_text, row, _ = seat
        asking = judge.ask(shown_text, seed)
        if loop is None:
            answer = await asking
        else:
            answer = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, loop))
        outcome, seat_answer = _decide(answer, shown_text.response, row, check, no_verdict)
        counts[outcome] += 1
        return seat_answer

    with serve_seat(ask, (name_model(judge),), port=port, counts=counts) as service:
        yield service


def name_model(judge: Judge) -> str:
    """Name the judge's model: another judge has another name, so that no run goes on with it."""
    return f"judge-{judge.digest[:16]}"


def choose_port(digest: str) -> int:
    """Choose a port by a digest in hex, the same one each time: a run that goes on looks there."""
    return _FIRST_PORT + int(digest[:8], 16) % _PORTS


def _decide(
    answer: JudgeAnswer,
    text: str,
    row: GradedRow,
    check: AnswerCheck | None,
    no_verdict: Literal["reject", "accept", "drop"],
) -> tuple[str, SeatAnswer]:
    """Return what became of a text, and the answer of the seat."""
    decision: Literal["accept", "reject"] | None
    label: Literal["wrong", "right after all", "not certain"] | None = None
    p_accept, notes = answer.p_accept, []
    # 1. The verdict, or the decision of the user's system without one.
    if answer.verdict == "none":
        decision, p_accept = None if no_verdict == "drop" else no_verdict, None
        notes.append(f"No verdict: {answer.reason or 'no form of it'}.")
    else:
        decision = answer.verdict
    # 2. A text that is not wrong for certain fools no judge.
    if check is not None:
        label = _LABELS[check.decide(text, row)]
        if label != "wrong":
            notes.append(f"The text is {label}, so it fools no judge and counts as turned away.")
            decision, p_accept = "reject", None if p_accept is None else 0.0
    record = SeatRecord(
        answer.verdict,
        answer.words,
        answer.reason or "",
        label,
        answer.score,
        answer.p_accept,
        answer.model or "",
    )
    text_of_seat = write_answer(answer.words, decision, notes, record)
    tokens = answer.prompt_tokens, answer.completion_tokens
    outcome = label if label not in (None, "wrong") else answer.verdict
    return str(outcome), SeatAnswer(text_of_seat, decision, p_accept, *tokens)


def write_answer(
    words: str,
    decision: Literal["accept", "reject"] | None,
    notes: Sequence[str] = (),
    record: SeatRecord | None = None,
) -> str:
    """Write a judge's words, quoted, and a decision line; nip reads that decision alone.

    Words that would be read otherwise even so stand there in percent encoding, and in the last
    resort not at all. The `record` stands behind them, for `read_record`.
    """
    end = [f"Decision: {decision}"] if decision is not None else []
    lines = [f"{_QUOTED}{line}" for line in words.splitlines()] or [_NO_WORDS]
    for word_lines in (lines, [_QUOTED + quote(words)], [_LEFT_OUT]):
        is_exact = word_lines == lines and _unquote(lines) == words
        records = [] if record is None else [_write_record(record, "" if is_exact else words)]
        for own_notes in (notes, ()):
            text = "\n\n".join(["\n".join(word_lines), *own_notes, *records, _OF_JUDGE, *end])
            if _reads_as(text, decision):
                return text
    return "\n\n".join([_LEFT_OUT, *end])


def read_record(text: str) -> SeatRecord | None:
    """Read the record that `write_answer` has put into an answer; None where there is none."""
    lines = text.split("\n")
    # A judge's words may hold a line like it; its own stands behind all of them.
    own = [line for line in lines if line.startswith(_RECORD)]
    if not own:
        return None
    values: dict[str, Any] = dict(parse_qsl(own[-1].removeprefix(_RECORD)))
    for name in ("score", "p_accept"):
        if name in values:
            values[name] = float(values[name])
    quoted = takewhile(lambda line: line.startswith(_QUOTED) or line == _NO_WORDS, lines)
    return SeatRecord(**{"words": _unquote([*quoted]), **values})


def _write_record(record: SeatRecord, words: str) -> str:
    """Write a record on a line that no reader of answers takes for a form of one."""
    values = {**asdict(record), "words": words}
    return _RECORD + urlencode({k: v for k, v in values.items() if v not in (None, "")})


def _unquote(lines: Sequence[str]) -> str:
    return "\n".join(line.removeprefix(_QUOTED) for line in lines if line != _NO_WORDS)


def _reads_as(text: str, decision: str | None) -> bool:
    try:
        move = parse_response(text, _FORM)
    except InvalidResponse:
        return False
    return move.decision == (NO_DECISION if decision is None else _LINES[decision])


@contextlib.contextmanager
def serve_seat(
    answer: Answer,
    models: Sequence[str],
    *,
    port: int = 0,
    counts: Counter[str] | None = None,
) -> Iterator[SeatService]:
    """Answer chat completions at a port of 127.0.0.1, in a thread of its own.

    Raises OSError for a port that is taken.
    """
    own_key = os.environ.get(KEY_VARIABLE)
    key = own_key or secrets.token_urlsafe(24)
    service = SeatService("", key, tuple(models), Counter() if counts is None else counts)
    started: _Started = Future()
    thread = threading.Thread(
        target=lambda: asyncio.run(_run(_Seat(answer, service), port, started)),
        name="judge-service",
        daemon=True,
    )
    thread.start()
    bound_port, loop, end = started.result(_START_S)
    service.url = f"http://127.0.0.1:{bound_port}/v1"
    os.environ[KEY_VARIABLE] = key
    try:
        yield service
    finally:
        if own_key is None:
            os.environ.pop(KEY_VARIABLE, None)
        loop.call_soon_threadsafe(end.set)
        thread.join(_START_S)


async def _run(
    seat: "_Seat",
    port: int,
    started: "Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]]",
) -> None:
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/v1/chat/completions", seat.complete)
    app.router.add_get("/v1/models", seat.list_models)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        end = asyncio.Event()
        started.set_result((runner.addresses[0][1], asyncio.get_running_loop(), end))
        await end.wait()
    except OSError as error:
        started.set_exception(error)
    finally:
        await runner.cleanup()


class _Seat:
    """The routes."""

    def __init__(self, answer: Answer, service: SeatService):
        self._answer, self._service = answer, service

    def _refuse(self, request: web.Request) -> web.Response | None:
        """Refuse a request without the key, or by another name of this machine."""
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(bearer.encode(), self._service.key.encode()):
            return _error(401, "the key of this server is missing, or is another one")
        return None

    async def list_models(self, request: web.Request) -> web.Response:
        """List the models."""
        data = [{"id": name, "object": "model"} for name in self._service.models]
        return self._refuse(request) or web.json_response({"object": "list", "data": data})

    async def complete(self, request: web.Request) -> web.Response:
        """Answer a chat."""
        if (refusal := self._refuse(request)) is not None:
            return refusal
        if self._service.failure is not None:
            return _error(403, self._service.failure)
        try:
            body = json.loads(await request.read())
            model, number, seed = body["model"], int(body.get("n") or 1), int(body.get("seed") or 0)
            if model not in self._service.models:
                return _error(404, f"there is no model {model!r}")
            answers = await asyncio.gather(*(self._answer(body, seed + i) for i in range(number)))
        except NipError as error:
            # No later call can succeed, so the run is not to try them.
            self._service.failure = str(error)
            return _error(403, str(error))
        except (KeyError, TypeError, ValueError) as error:
            return _error(400, f"no request that can be answered: {error!r:.200}")
        return web.json_response(_write_completion(model, answers, bool(body.get("logprobs"))))


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "error"}}, status=status)


def _write_completion(
    model: str, answers: Sequence[SeatAnswer], has_logprobs: bool
) -> dict[str, Any]:
    prompt = sum(answer.prompt_tokens for answer in answers)
    completion = sum(answer.completion_tokens for answer in answers)
    return {
        "id": "chatcmpl-judge",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": answers[0].model or model,
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text},
                "finish_reason": "stop",
                "logprobs": _write_logprobs(answer) if has_logprobs else None,
            }
            for index, answer in enumerate(answers)
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
    }


def _write_logprobs(answer: SeatAnswer) -> dict[str, Any] | None:
    """Write P(accept) as the log-probabilities of the last word; None where it is not known."""
    if answer.p_accept is None or answer.decision is None:
        return None
    chances = {"accept": answer.p_accept, "reject": 1.0 - answer.p_accept}
    logprobs = {word: math.log(max(chance, _LEAST)) for word, chance in chances.items()}
    top = [{"token": f" {word}", "logprob": logprob} for word, logprob in logprobs.items()]
    text = answer.text.removesuffix(f" {answer.decision}")
    return {
        "content": [
            {"token": text, "logprob": 0.0, "top_logprobs": []},
            {
                "token": f" {answer.decision}",
                "logprob": logprobs[answer.decision],
                "top_logprobs": sorted(top, key=lambda token: -float(str(token["logprob"]))),
            },
        ]
    }
