"""Every answer of a real server, as the stock client gets it, against the API's own description.

The description is reference data beside the repository. What ours has beyond it stands under
`nip`, and is asked for by name (`return_token_ids`); anything else is a failure here.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import yaml
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from served_here import serve
from tiny_model import make_model

from nip_base import formats
from nip_base.spec import ServerSpec

DESCRIPTION = Path(__file__).parents[4] / "shared" / "data" / "openai-fine-tuning.openapi.yaml"
NOT_OFFERED = {"listChatCompletions"}  # of stored answers: `store: true` is refused
EXTENSION = "nip"
HELLO = [{"role": "user", "content": "hello"}]
ROWS = [
    {"messages": [{"role": "user", "content": f"q {i}"}, {"role": "assistant", "content": "a"}]}
    for i in range(12)
]


class Description:
    """The API's description, as JSON schemas that mean what it says."""

    def __init__(self, path: Path):
        self.document = _modern(yaml.safe_load(path.read_text()))
        resource = Resource.from_contents(self.document, default_specification=DRAFT202012)
        self._registry = Registry().with_resource("urn:api", resource)
        self.operations = {
            operation["operationId"]: (method, path, operation)
            for path, item in self.document["paths"].items()
            for method, operation in item.items()
        }

    def operation(self, method: str, path: str) -> str | None:
        """The operation that a request is."""
        for name, (verb, template, _) in self.operations.items():
            pattern = "".join(
                "[^/]+" if part.startswith("{") else re.escape(part)
                for part in re.split(r"(\{\w+\})", template)
            )
            if verb == method.lower() and re.fullmatch("/v1" + pattern, path):
                return name
        return None

    def answer_schema(self, operation: str, content_type: str) -> dict[str, Any]:
        contents = self.operations[operation][2]["responses"]["200"]["content"]
        return contents[content_type]["schema"]

    def problems(self, value: Any, schema: dict[str, Any]) -> list[str]:
        """What is wrong in an answer: broken rules, and properties that nobody declared."""
        broken = [
            f"{error.json_path}: {error.message[:200]}"
            for error in self._validator(schema).iter_errors(value)
        ]
        undeclared = self._undeclared(value, schema, "$")
        return broken + [f"{path}: not declared" for path in undeclared]

    def _validator(self, schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
        based = {"$id": "urn:here", **_rebased(schema)}
        return jsonschema.Draft202012Validator(based, registry=self._registry)

    def _undeclared(self, value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
        parts = list(self._parts(value, schema))
        if isinstance(value, list):
            for index, item in enumerate(value):
                items = {"allOf": [part["items"] for part in parts if "items" in part]}
                yield from self._undeclared(item, items, f"{path}[{index}]")
        if not isinstance(value, dict):
            return
        known: dict[str, list[Any]] = {}
        for part in parts:
            for name, inner in part.get("properties", {}).items():
                known.setdefault(name, []).append(inner)
        if not known:  # an object of whatever properties: metadata, an event's data
            return
        for name, item in value.items():
            if name in known:
                yield from self._undeclared(item, {"allOf": known[name]}, f"{path}.{name}")
            elif name != EXTENSION:
                yield f"{path}.{name}"

    def _parts(self, value: Any, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The plain schemas that apply to a value, with references and choices resolved."""
        if "$ref" in schema:
            yield from self._parts(value, self._resolve(schema["$ref"]))
        for inner in schema.get("allOf", []):
            yield from self._parts(value, inner)
        for inner in [*schema.get("anyOf", []), *schema.get("oneOf", [])]:
            if self._validator(inner).is_valid(value):
                yield from self._parts(value, inner)
        yield schema

    def _resolve(self, reference: str) -> dict[str, Any]:
        found: Any = self.document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
        return found


def _modern(node: Any) -> Any:
    """Leftovers of OpenAPI 3.0 (`nullable`, a boolean `exclusiveMinimum`) as JSON Schema."""
    if isinstance(node, list):
        return [_modern(item) for item in node]
    if not isinstance(node, dict):
        return node
    # Properties may have such a name too; those are objects.
    node = {key: _modern(item) for key, item in node.items()}
    if node.get("exclusiveMinimum") is True:
        node["exclusiveMinimum"] = node.pop("minimum")
    if node.get("nullable") is True:
        del node["nullable"]
        return {"anyOf": [node, {"type": "null"}]}
    return node


def _rebased(node: Any) -> Any:
    if isinstance(node, list):
        return [_rebased(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: "urn:api" + item if key == "$ref" and isinstance(item, str) else _rebased(item)
        for key, item in node.items()
    }


@pytest.fixture(scope="module")
def description() -> Description:
    if not DESCRIPTION.is_file():
        pytest.skip(f"no {DESCRIPTION.name} beside the repository")
    return Description(DESCRIPTION)


class Witness:
    """Sees every answer before the client does, and holds it against the description."""

    def __init__(self, description: Description):
        self.description = description
        self.seen: dict[str, set[int]] = {}
        self.problems: list[str] = []

    def __call__(self, response: Any) -> None:
        response.read()
        request = response.request
        name = self.description.operation(request.method, request.url.path)
        if name is None:
            return
        self.seen.setdefault(name, set()).add(response.status_code)
        for value, schema in self._values(response, name):
            for problem in self.description.problems(value, schema):
                self.problems.append(f"{name} {response.status_code} {problem}")
        if not response.headers.get("x-request-id", "").startswith("req_"):
            self.problems.append(f"{name}: no x-request-id")

    def _values(self, response: Any, name: str) -> Iterator[tuple[Any, dict[str, Any]]]:
        if response.status_code >= 400:
            yield response.json(), {"$ref": "#/components/schemas/ErrorResponse"}
        elif response.headers["content-type"].startswith("text/event-stream"):
            schema = self.description.answer_schema(name, "text/event-stream")
            *events, done = [line for line in response.text.split("\n\n") if line]
            assert done == "data: [DONE]"
            for event in events:
                yield json.loads(event.removeprefix("data: ")), schema
        elif name == "downloadFile":  # the file itself, whatever it is
            assert response.headers["content-type"] == "application/octet-stream"
        else:
            assert response.headers["content-type"].startswith("application/json")
            yield response.json(), self.description.answer_schema(name, "application/json")


@pytest.fixture(scope="module")
def witness(description: Description) -> Witness:
    return Witness(description)


@pytest.fixture(scope="module")
def server(fresh_server):
    """A server whose lists are empty at first."""
    return fresh_server


@pytest.fixture(scope="module")
def client(server, witness: Witness) -> Iterator[openai.OpenAI]:
    """The stock client; the witness hears what it hears."""
    http = openai.DefaultHttpxClient(event_hooks={"response": [witness]})
    with openai.OpenAI(
        base_url=server.handle.url + "/v1",
        api_key=server.handle.api_key,
        max_retries=0,
        http_client=http,
    ) as stock:
        yield stock


def test_the_description_is_understood(description: Description) -> None:
    """The checks below mean nothing if this doesn't find what is wrong."""
    schema = {"$ref": "#/components/schemas/FineTuningJob"}
    found = " ".join(description.problems({"id": 1, "surprise": 2, "nip": {"any": 1}}, schema))
    assert "$.id: 1 is not of type 'string'" in found
    assert "'created_at' is a required property" in found
    assert "$.surprise: not declared" in found and "nip" not in found
    chunk = {"id": "", "choices": [{"delta": {"x": 1}, "finish_reason": None, "index": 0}],
             "created": 1, "model": "", "object": "chat.completion.chunk", "usage": None}  # fmt: skip
    schema = {"$ref": "#/components/schemas/CreateChatCompletionStreamResponse"}
    assert description.problems(chunk, schema) == ["$.choices[0].delta.x: not declared"]


def test_every_operation_answers_as_described(
    server, client: openai.OpenAI, witness: Witness, description: Description
) -> None:
    _files(client)
    _jobs(server, client)
    _chat(client)
    _errors(client)
    assert not witness.problems, "\n".join(dict.fromkeys(witness.problems))
    succeeded = {name for name, statuses in witness.seen.items() if 200 in statuses}
    assert succeeded == set(description.operations) - NOT_OFFERED


def _chunks(stream: bytes) -> list[dict[str, Any]]:
    events = stream.decode().split("\n\n")[:-2]
    return [json.loads(event.removeprefix("data: ")) for event in events]


def _streamed_tokens(stream: bytes) -> dict[int, list[Any]]:
    """Of each choice what its log-probabilities name."""
    tokens: dict[int, list[Any]] = {0: [], 1: []}
    for chunk in _chunks(stream):
        choice = chunk["choices"][0]
        tokens[choice["index"]] += (choice["logprobs"] or {"content": []})["content"]
    return tokens


async def test_log_probabilities_of_a_real_model_are_as_described(
    tmp_path: Path, description: Description
) -> None:
    make_model(tmp_path / "tiny")
    spec = ServerSpec("embedded", str(tmp_path / "tiny"), options={"threads": 1})
    asked = {"model": "tiny", "messages": HELLO, "seed": 1, "max_tokens": 12, "n": 2,
             "logprobs": True, "top_logprobs": 3}  # fmt: skip
    async with serve(tmp_path / "state", spec=spec) as here:
        _, whole, _ = await here.post("/v1/chat/completions", asked)
        _, stream, _ = await here.post("/v1/chat/completions", {**asked, "stream": True})
        by_ids = {**asked, "return_tokens_as_token_ids": True}
        _, named, _ = await here.post("/v1/chat/completions", by_ids)
        _, named_stream, _ = await here.post("/v1/chat/completions", {**by_ids, "stream": True})
        _, prompt, _ = await here.post(
            "/v1/completions", {"model": "tiny", "prompt": "hello", "logprobs": 2, "seed": 1}
        )
    answer = json.loads(whole)
    schema = {"$ref": "#/components/schemas/CreateChatCompletionResponse"}
    assert description.problems(answer, schema) == []
    schema = {"$ref": "#/components/schemas/CreateChatCompletionStreamResponse"}
    assert [p for chunk in _chunks(stream) for p in description.problems(chunk, schema)] == []
    tokens, ids = _streamed_tokens(stream), _streamed_tokens(named_stream)
    for choice in json.loads(named)["choices"]:
        content = choice["logprobs"]["content"]
        assert [t["token"] for t in content] == [f"token_id:{id}" for id in choice["token_ids"]]
        assert [t["token"] for t in ids[choice["index"]]] == [t["token"] for t in content]
    for choice in answer["choices"]:
        content = choice["logprobs"]["content"]
        assert 0 < len(content) <= 12
        assert all(len(t["top_logprobs"]) == 3 and t["logprob"] <= 0 for t in content)
        streamed = tokens[choice["index"]]
        assert [t["token"] for t in streamed] == [t["token"] for t in content]
        assert [t["logprob"] for t in streamed] == pytest.approx([t["logprob"] for t in content], abs=1e-4)  # fmt: skip
    logprobs = json.loads(prompt)["choices"][0]["logprobs"]
    assert len({len(logprobs[name]) for name in logprobs}) == 1
    assert all(2 <= len(top) <= 3 for top in logprobs["top_logprobs"])


def _files(client: openai.OpenAI) -> None:
    content = formats.to_jsonl(ROWS)
    file = client.files.create(file=("rows.jsonl", content), purpose="fine-tune")
    assert client.files.content(file.id).read() == content
    client.files.retrieve(file.id)
    assert [f.id for f in client.files.list(limit=1)] == [file.id]
    assert list(client.files.list(purpose="fine-tune-results")) == []
    client.files.delete(file.id)


def _jobs(server: Any, client: openai.OpenAI) -> None:
    content = formats.to_jsonl(ROWS)
    file = client.files.create(file=("rows.jsonl", content), purpose="fine-tune")
    jobs = client.fine_tuning.jobs
    assert list(jobs.list()) == []
    job = jobs.create(
        model="sim",
        training_file=file.id,
        validation_file=file.id,
        suffix="mine",
        metadata={"a": "b"},
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
        extra_body={"nip": {"lora_rank": 4}},
    )
    job = server.wait(job.id)
    jobs.retrieve(job.id)
    assert job.status == "succeeded"
    plain = server.wait(jobs.create(model="sim", training_file=file.id).id)
    assert [j.id for j in jobs.list(limit=1)] == [plain.id, job.id]
    assert [j.id for j in jobs.list(metadata={"a": "b"})] == [job.id]
    assert list(jobs.list_events(job.id, limit=2))
    assert list(jobs.checkpoints.list(job.id))
    # Too few examples: the job fails, with OpenAI's error in it.
    few = client.files.create(file=("few.jsonl", formats.to_jsonl(ROWS[:3])), purpose="fine-tune")
    failed = server.wait(jobs.create(model="sim", training_file=few.id).id)
    assert jobs.retrieve(failed.id).error.param == "training_file"
    _end_early(server, client, file.id)
    for model in (job.fine_tuned_model, "sim"):
        assert client.models.retrieve(model).id == model
    assert {"sim", job.fine_tuned_model} <= {m.id for m in client.models.list()}
    assert client.models.delete(plain.fine_tuned_model).deleted


def _end_early(server: Any, client: openai.OpenAI, file_id: str) -> None:
    """Pause, resume and cancel, each as soon as the job is there."""
    jobs = client.fine_tuning.jobs
    # As many epochs as there can be, so that it is still there to be paused.
    slow = {"model": "sim", "training_file": file_id, "hyperparameters": {"n_epochs": 50}}
    for act in ("pause", "cancel"):
        for _ in range(20):
            job = jobs.create(**slow)
            try:
                getattr(jobs, act)(job.id)
            except openai.BadRequestError:
                continue  # it was quicker
            if act == "pause":
                jobs.resume(job.id)
            break
        server.wait(job.id)


def _chat(client: openai.OpenAI) -> None:
    chat = client.chat.completions
    asked: dict[str, Any] = {"model": "sim", "messages": HELLO, "n": 2, "metadata": {"a": "b"}}
    chat.create(**asked)
    list(chat.create(**asked, stream=True))
    list(chat.create(**asked, stream=True, stream_options={"include_usage": True}))


def _errors(client: openai.OpenAI) -> None:
    for call in (
        lambda: client.files.retrieve("file-none"),
        lambda: client.files.delete("file-none"),
        lambda: client.files.content("file-none"),
        lambda: client.files.create(file=("x.jsonl", b""), purpose="fine-tune"),
        lambda: client.files.list(limit=0),
        lambda: client.fine_tuning.jobs.create(model="nobody", training_file="file-none"),
        lambda: client.fine_tuning.jobs.retrieve("ftjob-none"),
        lambda: client.fine_tuning.jobs.cancel("ftjob-none"),
        lambda: client.fine_tuning.jobs.pause("ftjob-none"),
        lambda: client.fine_tuning.jobs.resume("ftjob-none"),
        lambda: client.fine_tuning.jobs.list_events("ftjob-none"),
        lambda: client.fine_tuning.jobs.checkpoints.list("ftjob-none"),
        lambda: client.fine_tuning.jobs.list(limit=0),
        lambda: client.models.retrieve("nobody"),
        lambda: client.models.delete("sim"),
        lambda: client.chat.completions.create(model="nobody", messages=HELLO),
        lambda: client.chat.completions.list(),
    ):
        with pytest.raises(openai.APIStatusError):
            call()


# Errors, one by one

JSON = {"Content-Type": "application/json"}
CHAT_BODY = {"model": "sim", "messages": HELLO}
TABLE: list[tuple[str, str, Any, type[openai.APIStatusError], str, str | None]] = [
    # method, path, body, exception, code, param
    ("POST", "/chat/completions", {**CHAT_BODY, "model": "no"}, openai.NotFoundError, "model_not_found", "model"),
    ("POST", "/completions", {"model": "no", "prompt": ""}, openai.NotFoundError, "model_not_found", "model"),
    ("POST", "/chat/completions", {"messages": HELLO}, openai.BadRequestError, "missing_required_parameter", "model"),
    ("POST", "/chat/completions", {"model": "sim"}, openai.BadRequestError, "missing_required_parameter", "messages"),
    ("POST", "/completions", {"model": "sim"}, openai.BadRequestError, "missing_required_parameter", "prompt"),
    ("POST", "/chat/completions", {**CHAT_BODY, "n": "2"}, openai.BadRequestError, "invalid_value", "n"),
    ("POST", "/chat/completions", {**CHAT_BODY, "temperature": 3}, openai.BadRequestError, "invalid_value", "temperature"),
    ("POST", "/chat/completions", {**CHAT_BODY, "tools": [{}]}, openai.BadRequestError, "unsupported_value", "tools[0].type"),
    ("POST", "/chat/completions", {**CHAT_BODY, "x": 1}, openai.BadRequestError, "unknown_parameter", "x"),
    ("POST", "/chat/completions", "{", openai.BadRequestError, "invalid_json", None),
    ("POST", "/chat/completions", "[]", openai.BadRequestError, "invalid_json", None),
    ("POST", "/fine_tuning/jobs", "{", openai.BadRequestError, "invalid_json", None),
    ("POST", "/fine_tuning/jobs", {"model": "sim"}, openai.BadRequestError, "missing_required_parameter", "training_file"),
    ("POST", "/fine_tuning/jobs", {"training_file": "f"}, openai.BadRequestError, "missing_required_parameter", "model"),
    ("POST", "/fine_tuning/jobs", {"model": 1, "training_file": "f"}, openai.BadRequestError, "invalid_value", "model"),
    ("POST", "/fine_tuning/jobs", {"model": "sim", "training_file": "f", "x": 1}, openai.BadRequestError, "unknown_parameter", "x"),
    ("GET", "/fine_tuning/jobs?limit=0", None, openai.BadRequestError, "invalid_value", "limit"),
    ("GET", "/fine_tuning/jobs?limit=many", None, openai.BadRequestError, "invalid_value", "limit"),
    ("GET", "/fine_tuning/jobs?x=1", None, openai.BadRequestError, "unknown_parameter", "x"),
    ("GET", "/fine_tuning/jobs?after=ftjob-none", None, openai.NotFoundError, "not_found", "after"),
    ("GET", "/files?after=file-none", None, openai.NotFoundError, "not_found", "after"),
    ("GET", "/files?order=up", None, openai.BadRequestError, "invalid_value", "order"),
    ("GET", "/fine_tuning/jobs/ftjob-none", None, openai.NotFoundError, "not_found", "fine_tuning_job_id"),
    ("POST", "/fine_tuning/jobs/ftjob-none/cancel", None, openai.NotFoundError, "not_found", "fine_tuning_job_id"),
    ("GET", "/fine_tuning/jobs/ftjob-none/events", None, openai.NotFoundError, "not_found", "fine_tuning_job_id"),
    ("GET", "/files/file-none", None, openai.NotFoundError, "not_found", "id"),
    ("GET", "/files/file-none/content", None, openai.NotFoundError, "not_found", "id"),
    ("DELETE", "/files/file-none", None, openai.NotFoundError, "not_found", "id"),
    ("GET", "/models/nobody", None, openai.NotFoundError, "model_not_found", "model"),
    ("DELETE", "/models/nobody", None, openai.NotFoundError, "model_not_found", "model"),
    ("GET", "/nothing", None, openai.NotFoundError, "unknown_url", None),
    ("PUT", "/files", None, openai.APIStatusError, "method_not_supported", None),
    ("GET", "/chat/completions", None, openai.APIStatusError, "method_not_supported", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "body", "exception", "code", "param"), TABLE, ids=lambda v: str(v)[:40]
)
def test_what_is_wrong_raises_the_right_exception(
    server, method: str, path: str, body: Any, exception: type, code: str, param: str | None
) -> None:
    content = body if isinstance(body, str) else None if body is None else json.dumps(body)
    call = {"GET": server.client.get, "POST": server.client.post, "PUT": server.client.put,
            "DELETE": server.client.delete}[method]  # fmt: skip
    options: dict[str, Any] = {"cast_to": object}
    if content is not None:
        options |= {"content": content.encode(), "options": {"headers": JSON}}
    with pytest.raises(openai.APIStatusError) as caught:
        call(path, **options)
    error = caught.value
    assert type(error) is exception
    assert (error.code, error.param, error.type) == (code, param, "invalid_request_error")
    assert set(error.response.json()["error"]) == {"message", "type", "param", "code"}
    assert error.request_id.startswith("req_")
    if code == "method_not_supported":
        assert error.status_code == 405 and error.response.headers["allow"]


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic x", "Bearer \xff\xfe"])
def test_a_missing_or_wrong_key_raises_authentication_error(server, header: str | None) -> None:
    raw = header.encode("latin-1") if header else None
    headers = {} if raw is None else {"Authorization": raw}
    for path in ("/v1/models", "/v1/files", "/v1/nothing", "/metrics", "/tokenize"):
        answer = server.client._client.get(server.handle.url + path, headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (401, "invalid_api_key")
        assert (error["type"], error["param"]) == ("invalid_request_error", None)
        assert answer.headers["www-authenticate"] == "Bearer"
    stock = openai.OpenAI(base_url=server.handle.url + "/v1", api_key="wrong", max_retries=0)
    with stock, pytest.raises(openai.AuthenticationError):
        stock.models.list()
