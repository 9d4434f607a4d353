"""What the server answers, on record: a change of the code alone must leave every answer as it is.

A list of requests over every route goes to servers in this process with the deterministic engine,
in order. Status, the headers that mean something, and the body are recorded in `wire.json`; ids,
times and measured seconds stand there by name (see `recorded`).

Where a change is meant to change them: ``NIP_RECORD=1 python -m pytest -n 0 tests/frozen``, and
look at the difference before it is committed.
"""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from recorded import Steady, check
from served_here import KEY, Here, KeyRing, ServerSpec, serve

RECORD = Path(__file__).parent / "wire.json"
HEADERS = ("Content-Type", "WWW-Authenticate", "Allow", "Retry-After")
REPLIES = {
    "plain": "seed: 0\n",
    "slow": "training: {seconds: 600}\n",  # so that a job is there to be paused and cancelled
    "limited": "faults: {rate_limited: 1.0, retry_after_s: 2}\n",
    "broken": "faults: {server_error: 1.0}\n",
    "open": "seed: 0\n",  # takes requests without a key
}
ENDED = ("succeeded", "failed", "cancelled")
MAX_UPLOAD_BYTES = 4000


def rows(count: int, answer: str = "a") -> bytes:
    """A dataset of conversations."""
    turns = [[{"role": "user", "content": f"q {i}"}, {"role": "assistant", "content": answer}]
             for i in range(count)]  # fmt: skip
    return b"".join(json.dumps({"messages": turn}).encode() + b"\n" for turn in turns)


def pairs(count: int) -> bytes:
    """A dataset of preferences."""
    lines = [
        {
            "input": {"messages": [{"role": "user", "content": f"q {i}"}]},
            "preferred_output": [{"role": "assistant", "content": "yes"}],
            "non_preferred_output": [{"role": "assistant", "content": "no"}],
        }
        for i in range(count)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@dataclass
class Step:
    """One request. In paths and bodies ``{name}`` is the id that a step kept under that name."""

    name: str
    method: str
    path: str
    body: Any = None  # bytes as they are, anything else as JSON
    form: tuple[tuple[str, bytes | str], ...] = ()
    headers: dict[str, str | None] = field(default_factory=dict)
    at: str = "plain"
    keep: str = ""
    until: tuple[str, ...] = ()
    """Ask again until the job has one of these statuses."""


def chat(name: str, at: str = "plain", headers: Any = None, **body: Any) -> Step:
    asked = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "seed": 1, **body}
    return Step(
        f"chat: {name}", "POST", "/v1/chat/completions", asked, headers=headers or {}, at=at
    )


def complete(name: str, **body: Any) -> Step:
    asked = {"model": "sim", "prompt": "hello", "seed": 1, **body}
    return Step(f"completion: {name}", "POST", "/v1/completions", asked)


def upload(name: str, content: bytes, keep: str = "", at: str = "plain", **fields: str) -> Step:
    form = (("file", content), *({"purpose": "fine-tune"} | fields).items())
    return Step(f"files: {name}", "POST", "/v1/files", form=form, keep=keep, at=at)


def create(name: str, keep: str = "", at: str = "plain", headers: Any = None, **body: Any) -> Step:
    asked = {"model": "sim", "training_file": "{file}", "seed": 3, "suffix": "mine", **body}
    # With a key, the name of its model is no draw.
    headers = headers or {"Idempotency-Key": name}
    return Step(f"jobs: {name}", "POST", "/v1/fine_tuning/jobs", asked, (), headers, at, keep)


def job(name: str, what: str = "", id: str = "job", **more: Any) -> Step:
    method = "POST" if what in ("/cancel", "/pause", "/resume") else "GET"
    return Step(f"jobs: {name}", method, f"/v1/fine_tuning/jobs/{{{id}}}{what}", **more)


def get(path: str, name: str = "", method: str = "GET", **more: Any) -> Step:
    return Step(name or f"{method} {path}", method, path, **more)


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
NO_KEY: dict[str, str | None] = {"Authorization": None}
DPO = {"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 1, "beta": 0.2}}}
SUPERVISED = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}}

GENERATION = [
    chat("an answer"),
    chat("two answers", n=2, temperature=0.5, top_p=0.9, max_tokens=8, stop=["."]),
    chat("system and names", messages=[
        {"role": "developer", "content": "Decide now. Decision: accept or reject"},
        {"role": "user", "content": [{"type": "text", "text": "well?"}], "name": "Alice"}]),
    chat("what makes no difference", user="u", metadata={"a": "b"}, store=False, tools=[],
         presence_penalty=0, logit_bias={}, response_format={"type": "text"}),
    chat("token ids", return_token_ids=True, max_tokens=4),
    chat("streamed", stream=True, max_tokens=5),
    chat("streamed with usage", stream=True, max_tokens=3, stream_options={"include_usage": True}),
    chat("two streamed", stream=True, n=2, max_tokens=2, return_token_ids=True),
    chat("tools", tools=TOOLS, tool_choice="auto"),
    chat("schema", response_format=SCHEMA),
    chat("log-probabilities", logprobs=True),
    chat("top_logprobs alone", top_logprobs=2),
    chat("unknown model", model="nobody"),
    chat("unknown parameter", x=1),
    chat("no model", model=None),
    chat("no messages", messages=None),
    chat("empty messages", messages=[]),
    chat("a role that there is not", messages=[{"role": "robot", "content": ""}]),
    chat("content that is no text", messages=[{"role": "user", "content": 1}]),
    chat("a part that is no text", messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
    chat("an unknown key in a message", messages=[{"role": "user", "content": "", "x": 1}]),
    chat("n as text", n="2"),
    chat("n of 0", n=0),
    chat("temperature of 3", temperature=3),
    chat("top_p of 0", top_p=0),
    chat("both limits", max_tokens=1, max_completion_tokens=1),
    chat("a limit beyond the context", max_tokens=40_000),
    chat("a prompt beyond the context", messages=[{"role": "user", "content": "x" * 200_000}]),
    chat("seed of 2**64", seed=2**64),
    chat("an empty stop", stop=[""]),
    chat("stream options alone", stream_options={"include_usage": True}),
    chat("store", store=True),
    chat("presence penalty", presence_penalty=1),
    chat("log-probabilities as text", logprobs="yes"),
    chat("an Idempotency-Key", headers={"Idempotency-Key": "k"}),
    chat("too many requests", at="limited"),
    chat("the server's error", at="broken"),
    Step("chat: no JSON", "POST", "/v1/chat/completions", b"{"),
    Step("chat: NaN", "POST", "/v1/chat/completions", b'{"model": NaN}'),
    Step("chat: a list", "POST", "/v1/chat/completions", b"[]"),
    Step("chat: too large", "POST", "/v1/chat/completions", b" " * (8 * 1024 * 1024 + 1)),
    Step("chat: packed", "POST", "/v1/chat/completions",
         gzip.compress(json.dumps({"model": "sim", "messages": []}).encode(), mtime=0),
         headers={"Content-Encoding": "gzip"}),
    Step("chat: packed, but not so", "POST", "/v1/chat/completions", b"{}",
         headers={"Content-Encoding": "gzip"}),
    Step("chat: packed otherwise", "POST", "/v1/chat/completions", b"{}",
         headers={"Content-Encoding": "br"}),
    complete("an answer"),
    complete("two prompts, two answers each", prompt=["a", "b"], n=2, max_tokens=3),
    complete("token ids", prompt=[1, 2, 3], max_tokens=3),
    complete("streamed", stream=True, max_tokens=3),
    complete("no prompt", prompt=None),
    complete("a prompt that is no text", prompt={}),
    complete("token ids that mean something", prompt=[260, 57173356], max_tokens=3),
    complete("negative token ids", prompt=[-1]),
    complete("log-probabilities", logprobs=2),
    complete("echo", echo=True),
    complete("best_of", best_of=3),
    complete("unknown parameter", messages=[]),
    complete("unknown model", model="nobody"),
    Step("tokenize", "POST", "/tokenize",
         {"model": "sim", "messages": [{"role": "user", "content": "hello you"}]}),
    Step("tokenize: unknown parameter", "POST", "/tokenize", {"model": "sim", "prompt": "a"}),
    Step("tokenize: unknown model", "POST", "/tokenize",
         {"model": "nobody", "messages": [{"role": "user", "content": "a"}]}),
]  # fmt: skip

FILES = [
    upload("uploaded", rows(12), keep="file", filename="../rows.jsonl"),
    upload("uploaded, expires", pairs(12), keep="pairs",
           **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "86400"}),
    upload("uploaded, few", rows(3), keep="few"),
    upload("empty", b""),
    upload("no JSON lines", b'{"messages": []}\nnot json\n'),
    upload("lists", b"[1, 2]\n"),
    upload("too large", b"x" * (MAX_UPLOAD_BYTES + 1)),
    upload("another purpose", rows(1), purpose="assistants"),
    upload("an unknown field", rows(1), x="1"),
    Step("files: no file", "POST", "/v1/files", form=(("purpose", "fine-tune"),)),
    Step("files: no form", "POST", "/v1/files", {}),
    Step("files: an Idempotency-Key", "POST", "/v1/files", {}, headers={"Idempotency-Key": "f"}),
    get("/v1/files"),
    get("/v1/files?limit=1&order=asc"),
    get("/v1/files?purpose=fine-tune-results"),
    get("/v1/files?order=up"),
    get("/v1/files?limit=0"),
    get("/v1/files?after=file-none"),
    get("/v1/files?x=1"),
    get("/v1/files/{file}"),
    get("/v1/files/{few}/content"),
    get("/v1/files/file-none"),
    get("/v1/files/file-none/content"),
    get("/v1/files/file-none", method="DELETE"),
]  # fmt: skip

JOBS = [
    get("/v1/fine_tuning/jobs", "jobs: none yet"),
    create("created", "job", method=SUPERVISED, metadata={"a": "b"}, nip={"lora_rank": 4},
           headers={"Idempotency-Key": "j"}),
    job("ended", until=ENDED),
    create("created once more", method=SUPERVISED, metadata={"a": "b"}, nip={"lora_rank": 4},
           headers={"Idempotency-Key": "j"}),
    create("created otherwise", headers={"Idempotency-Key": "j"}),
    create("an Idempotency-Key that is too long", headers={"Idempotency-Key": "k" * 300}),
    job("events", "/events?limit=100"),
    job("events, a page", "/events?limit=2"),
    job("checkpoints", "/checkpoints"),
    job("cancelled too late", "/cancel"),
    job("paused too late", "/pause"),
    job("resumed too late", "/resume"),
    create("by preferences", "dpo", training_file="{pairs}", method=DPO),
    job("by preferences, ended", id="dpo", until=ENDED),
    create("few examples", "small", training_file="{few}"),
    job("few examples, ended", id="small", until=ENDED),
    create("another format", "wrong", training_file="{pairs}"),
    job("another format, ended", id="wrong", until=ENDED),
    create("with validation", "validated", validation_file="{few}",
           hyperparameters={"n_epochs": 1, "batch_size": 4, "learning_rate_multiplier": 2.0}),
    job("with validation, ended", id="validated", until=ENDED),
    get("/v1/fine_tuning/jobs?limit=2"),
    get("/v1/fine_tuning/jobs?metadata[a]=b"),
    get("/v1/fine_tuning/jobs?metadata=null&limit=1"),
    get("/v1/fine_tuning/jobs?metadata=b"),
    get("/v1/fine_tuning/jobs?limit=many"),
    get("/v1/fine_tuning/jobs?after=ftjob-none"),
    get("/v1/fine_tuning/jobs?x=1"),
    get("/v1/fine_tuning/jobs/ftjob-none"),
    get("/v1/fine_tuning/jobs/ftjob-none/events"),
    get("/v1/fine_tuning/jobs/ftjob-none/checkpoints"),
    get("/v1/fine_tuning/jobs/ftjob-none/cancel", method="POST"),
    create("no model", model=None),
    create("no file", training_file=None),
    create("a file that is not there", training_file="file-none"),
    create("unknown model", model="nobody"),
    create("unknown parameter", x=1),
    create("unknown setting", nip={"x": 1}),
    create("a rank too high", nip={"lora_rank": 4096}),
    create("a rate of 0", nip={"learning_rate": -1}),
    create("another method", method={"type": "reinforcement"}),
    create("epochs as text", hyperparameters={"n_epochs": "many"}),
    create("hyper-parameters twice", method=SUPERVISED, hyperparameters={"n_epochs": 1}),
    create("integrations", integrations=[{"type": "wandb"}]),
    create("metadata that is too long", metadata={"a": "b" * 513}),
    create("stacked on a base model", nip={"start_from": "stack"}),
    create("too large", metadata={"a": "b" * 300_000}),
    Step("jobs: no JSON", "POST", "/v1/fine_tuning/jobs", b"{"),
]  # fmt: skip

MODELS = [
    get("/v1/models"),
    get("/v1/models?x=1"),
    get("/v1/models/sim"),
    get("/v1/models/sim", method="HEAD"),
    get("/v1/models/nobody"),
    get("/v1/models/{model}", "models: a fine-tune"),
    chat("a fine-tune", model="{model}"),
    create("on from a fine-tune", "onwards", model="{model}"),
    job("on from a fine-tune, ended", id="onwards", until=ENDED),
    get("/v1/models/{model}", "models: a fine-tune deleted", method="DELETE"),
    get("/v1/models/{model}", "models: a fine-tune that is gone"),
    chat("a fine-tune that is gone", model="{model}"),
    get("/v1/models/sim", method="DELETE"),
    get("/v1/models/nobody", method="DELETE"),
]

ENGINES = [
    get("/health", headers=NO_KEY),
    get("/version", headers=NO_KEY),
    get("/nip/status"),
    get("/nip/engines"),
    get("/nip/engines/sim"),
    get("/nip/engines/nobody"),
    get("/nip/engines/sim/address"),
    get("/nip/engines/sim/sleep", method="POST"),
    get("/nip/engines/sim/stop", method="POST"),
    chat("a stopped engine"),
    get("/health", "health: a stopped engine", headers=NO_KEY),
    get("/nip/engines/sim/start", method="POST"),
    chat("a started engine"),
    get("/nip/engines/sim/fly", method="POST"),
    get("/metrics"),
]

PLACES = [
    get("/v1/models", "no key", headers=NO_KEY),
    get("/v1/models", "a wrong key", headers={"Authorization": "Bearer wrong"}),
    get("/v1/models", "no bearer", headers={"Authorization": "Basic x"}),
    get("/v1/nothing"),
    get("/v1/files", method="PUT"),
    get("/v1/chat/completions"),
    get("/v1/files", method="OPTIONS"),
    get("/v1/models", "open to all", at="open", headers=NO_KEY),
    get("/v1/models", "of a web page", at="open", headers={"Origin": "http://example.org"}),
    get("/v1/models", "under another name", at="open", headers={"Host": "example.org"}),
    Step("of a form", "POST", "/v1/chat/completions", b"a=b", at="open",
         headers={"Content-Type": "application/x-www-form-urlencoded"}),
]  # fmt: skip

LIFE = [
    upload("of a slow job", rows(12), keep="file", at="slow"),
    create("slow", "job", at="slow"),
    job("slow, begun", at="slow", until=("running",)),
    get("/v1/files/{file}", "files: in use", method="DELETE", at="slow"),
    create("waiting", "waiting", at="slow"),
    job("paused", "/pause", at="slow"),
    job("waiting, begun", id="waiting", at="slow", until=("running",)),
    job("resumed", "/resume", at="slow"),
    job("cancelled", "/cancel", at="slow"),
    job("cancelled while it waits", id="waiting", what="/cancel", at="slow"),
    job("cancelled, ended", at="slow", until=ENDED),
    job("paused when it is over", "/pause", at="slow"),
    get("/v1/files/{file}", "files: deleted", method="DELETE", at="slow"),
    get("/v1/files/{file}", "files: gone", at="slow"),
]

STEPS = [*GENERATION, *FILES, *JOBS, *MODELS, *ENGINES, *PLACES, *LIFE]


@asynccontextmanager
async def servers(folder: Path) -> AsyncIterator[dict[str, Here]]:
    """One server for each kind of replies."""
    async with AsyncExitStack() as stack:
        running = {}
        for name, replies in REPLIES.items():
            (path := folder / f"{name}.yaml").write_text(replies)
            spec = ServerSpec(
                "deterministic", "sim", replies=str(path), max_upload_bytes=MAX_UPLOAD_BYTES
            )
            keys = KeyRing(open_to_all=True) if name == "open" else None
            running[name] = await stack.enter_async_context(
                serve(folder / name, spec=spec, keys=keys)
            )
        yield running


async def play(folder: Path) -> dict[str, Any]:
    """Every step's answer by its name."""
    answers: dict[str, Any] = {}
    steady, kept = Steady(), {name: {} for name in REPLIES}
    async with servers(folder) as running, aiohttp.ClientSession() as http:
        for here in running.values():
            steady.name(here.url, "<server>")
        for step in STEPS:
            assert step.name not in answers, step.name
            async with asyncio.timeout(60):
                answers[step.name] = steady(
                    await ask(http, running[step.at].url, step, kept[step.at])
                )
    return answers


async def ask(
    http: aiohttp.ClientSession, url: str, step: Step, kept: dict[str, str]
) -> dict[str, Any]:
    """Send one step's request; what came back."""
    headers = {"Authorization": f"Bearer {KEY}", **step.headers}
    body = step.body
    if body is not None and not isinstance(body, bytes):
        headers.setdefault("Content-Type", "application/json")
        body = filled(json.dumps(body), kept).encode()
    if step.form:
        body = form(step.form)
    url += filled(step.path, kept)
    sent = {name: value for name, value in headers.items() if value is not None}
    while True:
        async with http.request(step.method, url, data=body, headers=sent) as answer:
            raw = await answer.read()
        shown = read(raw, answer.headers.get("Content-Type", ""))
        if not step.until or shown["status"] in step.until:
            break
        await asyncio.sleep(0.01)
    if isinstance(shown, dict) and shown.get("fine_tuned_model"):
        kept["model"] = shown["fine_tuned_model"]
    if step.keep:
        kept[step.keep] = shown["id"]
    told = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
    assert answer.headers["x-request-id"].startswith("req_")
    return {"status": answer.status, "headers": told, "body": shown}


def filled(text: str, kept: dict[str, str]) -> str:
    for name, id in kept.items():
        text = text.replace(f"{{{name}}}", id)
    return text


def form(parts: tuple[tuple[str, bytes | str], ...]) -> aiohttp.FormData:
    fields = dict(parts)
    filename = str(fields.pop("filename", "rows.jsonl"))
    data = aiohttp.FormData(quote_fields=False, default_to_multipart=True)
    for name, value in fields.items():
        if isinstance(value, bytes):
            data.add_field(name, value, filename=filename)
        else:
            data.add_field(name, value)
    return data


def read(raw: bytes, content_type: str) -> Any:
    """A body as JSON where it is some; of streams the events, of metrics the names."""
    if content_type.startswith("application/json"):
        return json.loads(raw) if raw else ""
    text = raw.decode()
    if content_type.startswith("text/event-stream"):
        *events, end = text.split("\n\n")
        assert not end
        data = [event.removeprefix("data: ") for event in events]
        return [item if item == "[DONE]" else json.loads(item) for item in data]
    if text.startswith("# HELP"):
        return sorted(line for line in text.splitlines() if line.startswith("# "))
    return text


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All steps played, in order: what a job is depends on what was uploaded before."""
    return asyncio.run(play(tmp_path_factory.mktemp("servers")))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_server_answers_as_it_always_did(step: Step, answers: dict[str, Any]) -> None:
    check(RECORD, step.name, answers[step.name])
