"""Bodies that are small to send and dear to read, and what a server goes through with each.

    python tests/security/hostile_bodies.py [--engine deterministic|embedded] [--only TEXT]

BODIES     name -> request: path, headers, body
attack     a running server -> per body: status, seconds, slowest /health, memory above idle

Every request goes to a server of its own process on 127.0.0.1, one after the other; while it runs,
a client in a process of its own asks /health every 25 ms, each time on a new connection.
"""

import argparse
import functools
import gzip
import http.client
import multiprocessing
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from nip_base.spec import ServerSpec
from nip_core.models import BUNDLED
from nip_lm_server import launch as owner

MIB = 1 << 20
LIMIT_MEMORY = 300e6
REQUEST_TIMEOUT_S = 120.0
_EVERY_S = 0.025


@dataclass(frozen=True)
class Hostile:
    """One request."""

    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    key: bool = True


@dataclass
class Outcome:
    """What the server went through."""

    name: str
    sent: int
    status: int | str
    seconds: float
    slowest_health_s: float
    above_idle: float


def chat(inside: bytes, *, model: bytes = b"tiny") -> bytes:
    """A chat completion whose only user message is the JSON text `inside`."""
    return b'{"model":"%s","max_tokens":1,"messages":[%s]}' % (model, inside)


def said(content: bytes) -> bytes:
    return b'{"role":"user","content":"%s"}' % content


def packed(body: bytes, path: str = "/v1/chat/completions", **headers: str) -> Hostile:
    return Hostile(path, gzip.compress(body, 6), {"Content-Encoding": "gzip", **headers})


def upload(content: bytes, *, compressed: bool = True) -> Hostile:
    """A form with a file and its purpose."""
    body = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="t.jsonl"\r\n\r\n'
        + content
        + b"\r\n--b--\r\n"
    )
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    if not compressed:
        return Hostile("/v1/files", body, kind)
    return packed(body, "/v1/files", **kind)


def repeated(piece: bytes, size: int) -> bytes:
    return piece * (size // len(piece))


def listed(piece: bytes, size: int) -> bytes:
    """``piece,piece,...,piece`` of about `size` bytes."""
    return repeated(piece + b",", size) + piece


def _bodies(size: int) -> dict[str, Callable[[], Hostile]]:
    """Bodies of about `size` bytes once they are unpacked."""
    message = said(b"")
    return {
        "empty messages": lambda: packed(chat(listed(message, size))),
        "messages of {}": lambda: packed(chat(listed(b"{}", size))),
        "messages of []": lambda: packed(chat(listed(b"[]", size))),
        "nested lists": lambda: packed(chat(b"[" * size)),
        "nested objects": lambda: packed(chat(repeated(b'{"a":', size))),
        "text": lambda: packed(chat(said(b"a" * size))),
        "words": lambda: packed(chat(said(repeated(b"is it ", size)))),
        "blanks": lambda: packed(chat(said(b" " * size))),
        "braces in a text": lambda: packed(chat(said(repeated(b"[{,:", size)))),
        "escapes": lambda: packed(chat(said(repeated(b"\\u00e9", size)))),
        "wide text": lambda: packed(chat(said("\U0001f600".encode() + b"a" * size))),
        "text parts": lambda: packed(
            chat(b'{"role":"user","content":[%s]}' % listed(b'{"type":"text","text":""}', size))
        ),
        "an unknown key": lambda: packed(b'{"model":"tiny","%s":1}' % (b"k" * size)),
        "a long model": lambda: packed(chat(message, model=b"m" * size)),
        "a wrong value": lambda: packed(
            b'{"model":"tiny","temperature":[%s]}' % listed(b"[0]", size)
        ),
        "one key again and again": lambda: packed(b"{%s}" % listed(b'"a":0', size)),
        "whitespace": lambda: packed(b" " * size + b"{}"),
        "a long number": lambda: packed(b'{"model":"tiny","seed":%s}' % (b"1" * size)),
        "token ids": lambda: packed(
            b'{"model":"tiny","prompt":[%s]}' % listed(b"7", size), "/v1/completions"
        ),
        "prompts": lambda: packed(
            b'{"model":"tiny","prompt":[%s]}' % listed(b'"a"', size), "/v1/completions"
        ),
        "lists of token ids": lambda: packed(
            b'{"model":"tiny","prompt":[%s]}' % listed(b"[7]", size), "/v1/completions"
        ),
        "a prompt": lambda: packed(
            b'{"model":"tiny","prompt":"%s"}' % (b"a" * size), "/v1/completions"
        ),
        "tokenize": lambda: packed(
            b'{"model":"tiny","messages":[%s]}' % said(b"a" * size), "/tokenize"
        ),
        "a job": lambda: packed(
            b'{"model":"tiny","training_file":"f","metadata":{"a":[%s]}}' % listed(b"{}", size),
            "/v1/fine_tuning/jobs",
        ),
        "unpacked, empty messages": lambda: Hostile(
            "/v1/chat/completions", chat(listed(message, size))
        ),
        "unpacked, text": lambda: Hostile("/v1/chat/completions", chat(said(b"a" * size))),
        "deflate": lambda: Hostile(
            "/v1/chat/completions",
            zlib.compress(chat(listed(b"{}", size))),
            {"Content-Encoding": "deflate"},
        ),
    }


def many_prompts(prompt: bytes, count: int, more: bytes = b'"seed":1') -> Hostile:
    """A completion of `count` prompts, each the JSON text `prompt`."""
    prompts = b",".join([prompt] * count)
    body = b'{"model":"tiny","max_tokens":1,%s,"prompt":[%s]}' % (more, prompts)
    return packed(body, "/v1/completions")


def formed(form: bytes, *parts: bytes) -> Hostile:
    """A chat completion with the members `form`, or whose answer has the schema ``form % parts``."""
    if parts:
        schema = form % parts
        form = (
            b'"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":%s}}'
            % schema
        )
    messages = b"" if b'"messages"' in form else b',"messages":[%s]' % said(b"?")
    return packed(b'{"model":"tiny","max_tokens":1,%s%s}' % (form, messages))


def properties(count: int, kind: bytes = b'{"type":"string"}') -> bytes:
    listed = b",".join([b'"p%d":%s' % (i, kind) for i in range(count)])
    return b'{"type":"object","properties":{%s}}' % listed


def _tools(*schemas: bytes) -> bytes:
    form = b'{"type":"function","function":{"name":"t%d","parameters":%s}}'
    return b'"tool_choice":"required","tools":[%s]' % b",".join(
        [form % (number, schema) for number, schema in enumerate(schemas)]
    )


def _of_parts() -> dict[str, Callable[[], Hostile]]:
    """Bodies whose parts are all taken one by one, and dear all together."""
    words, short = b'"%s"' % repeated(b"is it ", 8000), b'"is it"'
    call = b'{"id":"c","type":"function","function":{"name":"t","arguments":"{}"}}'
    return {
        "1000 prompts of words": lambda: many_prompts(words, 1000),
        "1000 prompts of words, streamed": lambda: many_prompts(words, 1000, b'"stream":true'),
        "1024 short prompts": lambda: many_prompts(short, 1024),
        "1024 short prompts, streamed": lambda: many_prompts(short, 1024, b'"stream":true'),
        "1024 prompts of token ids": lambda: many_prompts(b"[%s]" % listed(b"300", 200), 1024),
        "a prompt of token ids with text": lambda: many_prompts(listed(b"16777313", 7 * MIB), 1),
        "249000 messages": lambda: packed(chat(b",".join([said(b"")] * 249_000))),
        "a few thousand messages": lambda: packed(chat(b",".join([said(b"")] * 2_000))),
        "calls": lambda: formed(
            b'"messages":[%s,{"role":"assistant","tool_calls":[%s]}]'
            % (said(b"?"), b",".join([call] * 80_000))
        ),
        "a schema": lambda: formed(b"%s", properties(100_000)),
        "a schema that is taken": lambda: formed(b"%s", properties(4_999)),
        "an enumeration": lambda: formed(b'{"enum":[%s]}', listed(b'"abc"', 7 * MIB)),
        "an enumeration that is taken": lambda: formed(b'{"enum":[%s]}', listed(b'"abc"', 50_000)),
        "a long text in a schema": lambda: formed(b'{"enum":["%s"]}', b"a" * (7 * MIB)),
        "a long pattern": lambda: formed(
            b'{"type":"string","pattern":"%s"}', repeated(b"(a|b)*", 7 * MIB)
        ),
        "a pattern that is taken": lambda: formed(
            b'{"type":"string","pattern":"%s"}', repeated(b"(a|b)*", 199_000)
        ),
        "a pattern in many properties": lambda: formed(
            b"%s", properties(3_000, b'{"type":"string","pattern":"(a|bc)*d"}')
        ),
        "tools": lambda: formed(_tools(*[properties(1_000)] * 128)),
        "tools that are taken": lambda: formed(_tools(*[properties(150)] * 128)),
        "stops": lambda: formed(b'"stop":[%s]' % listed(b'"%s"' % (b"a" * 400_000), 6 * MIB)),
    }


@functools.cache
def _bomb() -> Hostile:
    return packed(b" " * (256 * MIB))


def _large() -> dict[str, Callable[[], Hostile]]:
    """What is larger than any limit, or has no end."""
    members = gzip.compress(b" " * 1000) * 3000
    return {
        "a bomb": _bomb,
        "a bomb without a key": lambda: replace(_bomb(), key=False),
        "a bomb for no route": lambda: replace(_bomb(), path="/nowhere"),
        "a bomb for a GET": lambda: replace(_bomb(), path="/nip/engines/x/stop"),
        "gzip members": lambda: replace(_bomb(), body=members),
        "upload, a line of lists": lambda: upload(b'{"a":[%s]}' % listed(b"[]", 60 * MIB)),
        "upload, a line of text": lambda: upload(b'{"a":"%s"}' % (b"a" * (200 * MIB))),
        "upload, short lines": lambda: upload(b"{}\n" * (100 * MIB // 3)),
        "upload, blank lines": lambda: upload(b"\n" * (200 * MIB)),
        "upload, nested": lambda: upload(b'{"a":' + b"[" * (60 * MIB)),
        "upload, no boundary": lambda: packed(
            b"x\r\n" * (100 * MIB), "/v1/files", **{"Content-Type": "multipart/form-data; boundary=b"}
        ),
        "upload, many parts": lambda: packed(
            b"--b\r\nX: y\r\n\r\n\r\n" * (4 * MIB),
            "/v1/files",
            **{"Content-Type": "multipart/form-data; boundary=b"},
        ),
        "plain upload, a line of lists": lambda: upload(
            b'{"a":[%s]}' % listed(b"[]", 60 * MIB), compressed=False
        ),
        "plain upload, lines of numbers": lambda: upload(
            repeated(b'{"a":[%s]}\n' % listed(b"-0.12345678901", 4 * MIB), 60 * MIB),
            compressed=False,
        ),
        "plain upload, short lines": lambda: upload(b"{}\n" * (60 * MIB // 3), compressed=False),
    }  # fmt: skip


BODIES: dict[str, Callable[[], Hostile]] = {
    **{f"{name}, 31 MiB": make for name, make in _bodies(31 * MIB).items()},
    **{f"{name}, 7 MiB": make for name, make in _bodies(7 * MIB).items()},
    **{f"{name}, 3 MiB": make for name, make in _bodies(3 * MIB).items()},
    **_of_parts(),
    **_large(),
}


def _ask(url: str, hostile: Hostile, key: str) -> tuple[int | str, str]:
    host, port = url.rpartition("//")[2].rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=REQUEST_TIMEOUT_S)
    headers = {"Content-Type": "application/json", **hostile.headers}
    if hostile.key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.request("POST", hostile.path, hostile.body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(300).decode(errors="replace")
    except OSError as error:
        return type(error).__name__, str(error)
    finally:
        connection.close()


def _watch(url: str, pid: int, begin: Any, end: Any, told: Any) -> None:
    """Ask /health until `end` is set; tell the slowest answer, and the most memory."""
    host, port = url.rpartition("//")[2].rsplit(":", 1)
    process = psutil.Process(pid)
    memory, slowest = [process.memory_info().rss], 0.0

    def weigh() -> None:
        while not end.is_set():
            memory.append(process.memory_info().rss)
            time.sleep(0.01)

    threading.Thread(target=weigh, daemon=True).start()
    begin.set()
    while True:
        last = end.is_set()
        started = time.perf_counter()
        connection = http.client.HTTPConnection(host, int(port), timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request("GET", "/health")
            connection.getresponse().read()
        finally:
            connection.close()
        slowest = max(slowest, time.perf_counter() - started)
        if last:
            break
        time.sleep(_EVERY_S)
    told.put((slowest, max(memory)))


@contextmanager
def _watched(url: str, pid: int) -> Iterator[dict[str, float]]:
    context = multiprocessing.get_context("spawn")
    begin, end, told = context.Event(), context.Event(), context.Queue()
    seen: dict[str, float] = {}
    watcher = context.Process(target=_watch, args=(url, pid, begin, end, told), daemon=True)
    watcher.start()
    begin.wait()
    try:
        yield seen
    finally:
        time.sleep(0.3)  # what the server still does once it has answered counts too
        end.set()
        seen["health"], seen["memory"] = told.get(timeout=REQUEST_TIMEOUT_S)
        watcher.join()


def attack(url: str, key: str, pid: int, name: str) -> Outcome:
    """Send one body of BODIES to a server that serves a model named tiny."""
    hostile = BODIES[name]()
    idle = psutil.Process(pid).memory_info().rss
    with _watched(url, pid) as seen:
        started = time.perf_counter()
        status, _ = _ask(url, hostile, key)
        seconds = time.perf_counter() - started
    return Outcome(name, len(hostile.body), status, seconds, seen["health"], seen["memory"] - idle)


@contextmanager
def server(engine: str, scratch: Path) -> Iterator[owner.ServerHandle]:
    """A server of its own, whose model is named tiny."""
    model = str(BUNDLED["tiny"]) if engine == "embedded" else "tiny"
    handle = owner.start_or_attach(ServerSpec(engine, model), scratch / "state", timeout_s=120)
    try:
        yield handle
    finally:
        owner.stop(handle)


def main() -> None:
    """Attack a server of its own, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=("deterministic", "embedded"), default="embedded")
    parser.add_argument("--only", default="", help="bodies whose name has this text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, server(options.engine, Path(scratch)) as handle:
        print("| body | sent, MB | status | s | slowest /health, s | MB above idle |")
        print("|---|---|---|---|---|---|")
        for name in BODIES:
            if options.only in name:
                seen = attack(handle.url, handle.api_key, handle.pid, name)
                print(
                    f"| {name} | {seen.sent / 1e6:.3f} | {seen.status} | {seen.seconds:.2f} | "
                    f"{seen.slowest_health_s:.3f} | {seen.above_idle / 1e6:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
