"""A stub of a chat API that games are played on, as a process of its own, and what it counts.

    python benchmarks/beside/stub.py LATENCY_S MOVES     prints its address, ends with its input

It answers every chat completion after LATENCY_S with a move, and with a verdict as soon as a
conversation holds all moves before the last of MOVES, whoever made them. Two calls are the same
call if their messages and their seed are the same, so that calls that are repeated can be counted
without a word from who plays.
"""

import asyncio
import hashlib
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from types import TracebackType
from typing import Any, Self

MARK = "(move)"
MOVE = f"Question: {MARK} " + "does the loop ever reach the last element of the list? " * 6
VERDICT = "Decision: accept"


class Counts:
    """What was asked and answered, and since when."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.in_flight = self.most_in_flight = self.request_bytes = 0
        self.first_s = self.last_s = 0.0
        self.before: set[str] = set()
        self.marked_s = self.new_answer_s = 0.0
        self.unknown: Counter[str] = Counter()

    def begin(self, key: str, size: int) -> None:
        """Count a call that has come."""
        self.first_s = self.first_s or time.monotonic()
        self.begun[key] += 1
        self.request_bytes += size
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def end(self, key: str, delivered: bool) -> None:
        """Count its answer, if whoever asked is still there."""
        self.in_flight -= 1
        if not delivered:
            return
        self.last_s = time.monotonic()
        self.answered[key] += 1
        if self.marked_s and not self.new_answer_s and key not in self.before:
            self.new_answer_s = self.last_s

    def mark(self) -> None:
        """From here on what is answered for the first time is new."""
        self.before = set(self.answered)
        self.marked_s, self.new_answer_s = time.monotonic(), 0.0

    def state(self) -> dict[str, Any]:
        """All of it; seconds from the first call to the last answer, and from the mark to the
        first new one; the least and the most that one call was begun and answered."""
        begun = self.begun.total()
        begun_each = [*self.begun.values()] or [0]
        answered_each = [self.answered[key] for key in self.begun] or [0]
        return {
            "begun": begun,
            "answered": self.answered.total(),
            "different": len(self.begun),
            "begun_each": [min(begun_each), max(begun_each)],
            "answered_each": [min(answered_each), max(answered_each)],
            "in_flight": self.in_flight,
            "most_in_flight": self.most_in_flight,
            "seconds": self.last_s - self.first_s,
            "new_answer_s": self.new_answer_s - self.marked_s if self.new_answer_s else None,
            "mean_request_bytes": round(self.request_bytes / begun) if begun else 0,
            "unknown": dict(self.unknown),
        }


def text_of(messages: list[dict[str, Any]], moves: int) -> str:
    """The answer to a conversation."""
    made = sum(str(message.get("content")).count(MARK) for message in messages)
    return MOVE if made < moves - 1 else VERDICT


async def serve(latency_s: float, moves: int) -> None:
    """Answer until standard input closes; print the address first."""
    from aiohttp import web

    counts = Counts()

    async def complete(request: web.Request) -> web.Response:
        try:
            raw = await request.read()
        except ConnectionResetError:  # who asks was killed in the middle of it
            return web.Response(status=400)
        body = json.loads(raw)
        asked = json.dumps([body["messages"], body.get("seed")], sort_keys=True)
        key = hashlib.sha256(asked.encode()).hexdigest()
        counts.begin(key, len(raw))
        await asyncio.sleep(latency_s)
        counts.end(key, request.transport is not None and not request.transport.is_closing())
        message = {"role": "assistant", "content": text_of(body["messages"], moves)}
        return web.json_response(
            {
                "id": f"chatcmpl-{counts.answered.total()}",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [
                    {"index": 0, "finish_reason": "stop", "message": message, "logprobs": None}
                ],
                "usage": {"prompt_tokens": 300, "completion_tokens": 80, "total_tokens": 380},
            }
        )

    async def models(request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": "stub", "object": "model", "created": 0}]}
        )

    async def state(request: web.Request) -> web.Response:
        return web.json_response(counts.state())

    async def mark(request: web.Request) -> web.Response:
        counts.mark()
        return web.json_response(counts.state())

    async def nothing(request: web.Request) -> web.Response:
        counts.unknown[f"{request.method} {request.path}"] += 1
        return web.json_response({"error": {"message": "not there"}}, status=404)

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/state", state)
    app.router.add_post("/mark", mark)
    app.router.add_route("*", "/{path:.*}", nothing)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


class Stub:
    """Such a process. Use as a context manager."""

    def __init__(self, latency_s: float, moves: int):
        self._command = [sys.executable, __file__, str(latency_s), str(moves)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def state(self) -> dict[str, Any]:
        """Read the counts."""
        with urllib.request.urlopen(f"{self.url}/state", timeout=30) as answer:
            return dict(json.loads(answer.read()))

    def mark(self) -> dict[str, Any]:
        """Set the mark; the counts at that moment."""
        request = urllib.request.Request(f"{self.url}/mark", method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.loads(answer.read()))


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), int(sys.argv[2])))
