"""The HTTP API as the stock OpenAI client sees it: shapes, pages, and errors."""

import gzip
import json
import socket
import time
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai.types import FileObject, Model
from openai.types.chat import ChatCompletion
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint
from served_here import serve

from nip_base import formats
from nip_base.api_errors import ApiError
from nip_base.formats import bounds
from nip_base.version import SERVER_VERSION
from nip_lm_server.api import plumbing as server_http

ROWS = [
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
] * 10
HELLO = [{"role": "user", "content": "hello"}]
ROBOT = {"role": "robot", "content": ""}
EMPTY = {"role": "user"}
NUMBER = {"role": "user", "content": 1}
LONG = {"role": "user", "content": "x" * 200_000}
BOTH_LIMITS = {"max_tokens": 1, "max_completion_tokens": 1}


@pytest.fixture(scope="module")
def client(server) -> openai.OpenAI:
    return server.client


@pytest.fixture(scope="module")
def http(server) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.handle.api_key}"}
    with httpx.Client(base_url=server.handle.url, headers=headers, timeout=20) as client:
        yield client


def assert_error(response: Any, status: int, code: str | None, param: str | None) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    return error["message"]


# Files


def test_a_file_goes_through_its_life(client: openai.OpenAI) -> None:
    content = formats.to_jsonl(ROWS)
    file = client.files.create(file=("train.jsonl", content), purpose="fine-tune")
    FileObject.model_validate(file.model_dump(), strict=True)
    assert (file.filename, file.bytes, file.purpose, file.status) == (
        "train.jsonl", len(content), "fine-tune", "processed"
    )  # fmt: skip
    assert abs(file.created_at - time.time()) < 30
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == content
    assert file.id in [f.id for f in client.files.list()]
    assert client.files.delete(file.id).deleted is True
    assert file.id not in [f.id for f in client.files.list()]
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file.id)


def test_files_are_listed_in_pages_in_both_orders(client: openai.OpenAI) -> None:
    for old in client.files.list():
        client.files.delete(old.id)
    content = formats.to_jsonl(ROWS)
    ids = [
        client.files.create(file=(f"{i}.jsonl", content), purpose="fine-tune").id for i in range(5)
    ]
    page = client.files.list(limit=2)
    assert [f.id for f in page.data] == ids[:2:-1]
    assert (page.has_more, page.first_id, page.last_id) == (True, ids[4], ids[3])  # type: ignore[attr-defined]
    assert [f.id for f in client.files.list(limit=2)] == ids[::-1]
    assert [f.id for f in client.files.list(limit=2, order="asc")] == ids
    assert client.files.list(after=ids[0]).data == []
    assert client.files.list(purpose="fine-tune-results").data == []


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"", "empty_file", "empty"),
        (b"\n\n", "empty_file", "empty"),
        (b'{"messages": []}\nnot json\n', "invalid_jsonl", "line 2"),
        (b"PAR1\xff\x00", "invalid_jsonl", "line 1"),
        (b"[1, 2]\n", "invalid_jsonl", "line 1"),
    ],
)
def test_an_upload_that_is_not_jsonl_is_refused_and_leaves_nothing(
    server, client: openai.OpenAI, content: bytes, code: str, says: str
) -> None:
    before = sorted(p.name for p in (server.state_dir / "files").iterdir())
    with pytest.raises(openai.BadRequestError, match=says) as caught:
        client.files.create(file=("x.jsonl", content), purpose="fine-tune")
    assert (caught.value.code, caught.value.param) == (code, "file")
    assert sorted(p.name for p in (server.state_dir / "files").iterdir()) == before


def test_a_path_in_a_file_name_is_only_a_name(client: openai.OpenAI) -> None:
    content = formats.to_jsonl(ROWS)
    for name in ("../../../etc/passwd", "..\\..\\passwd", "/etc/passwd"):
        file = client.files.create(file=(name, content), purpose="fine-tune")
        assert file.filename == "passwd"
        assert client.files.content(file.id).content == content


def test_upload_forms_that_lack_something_name_it(http: httpx.Client) -> None:
    file = {"file": ("a.jsonl", formats.to_jsonl(ROWS))}
    purpose = {"purpose": "fine-tune"}
    post = lambda **form: http.post("/v1/files", **form)  # noqa: E731
    assert_error(post(files=file), 400, "missing_required_parameter", "purpose")
    assert_error(post(files={"x": ("a", b"")}, data=purpose), 400, "unknown_parameter", "x")
    assert_error(post(files=file, data={"purpose": "vision"}), 400, "invalid_value", "purpose")
    assert_error(post(json={}), 400, "invalid_form", None)


FILE = b'Content-Disposition: form-data; name="file"; filename="a"'
PURPOSE = b'Content-Disposition: form-data; name="purpose"'


@pytest.mark.parametrize(
    ("parts", "code", "param"),
    [
        ([(PURPOSE, b"\xff")], "invalid_value", "purpose"),
        ([(PURPOSE, b"x" * 2000)], "invalid_value", "purpose"),
        ([(PURPOSE, b"fine-tune")] * 2, "invalid_value", "purpose"),
        ([(FILE, b"{}"), (FILE, b"{}")], "invalid_value", "file"),
        ([(b'Content-Disposition: form-data; name="\xff"', b"")], "unknown_parameter", "\\udcff"),
        ([(FILE + b"\r\nX: " + b"x" * 100_000, b"{}")], "invalid_form", None),
        ([(FILE + b"\r\nContent-Encoding: gzip", b"{}")], "invalid_form", None),
        ([(FILE + b"\r\nContent-Transfer-Encoding: base64", b"e30=")], "invalid_form", None),
        ([(FILE + b"\r\nContent-Transfer-Encoding: odd", b"{}")], "invalid_form", None),
        ([(FILE, b"{}\r\n--b--\r\n"), (b"no header", b"")], "missing_required_parameter", "purpose"),
    ],
)  # fmt: skip
def test_a_form_that_is_wrong_is_a_400_and_leaves_nothing(
    server, http: httpx.Client, parts: list[tuple[bytes, bytes]], code: str, param: str | None
) -> None:
    before = sorted(p.name for p in (server.state_dir / "files").iterdir())
    body = b"".join([b"--b\r\n%s\r\n\r\n%s\r\n" % part for part in parts])
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    assert_error(
        http.post("/v1/files", content=body + b"--b--\r\n", headers=kind), 400, code, param
    )
    # A form that breaks off.
    assert http.post("/v1/files", content=body, headers=kind).status_code == 400
    assert sorted(p.name for p in (server.state_dir / "files").iterdir()) == before


@pytest.mark.parametrize("encoding", ["binary", "8BIT", "7bit"])
def test_a_part_that_says_it_is_as_it_is_is_taken(http: httpx.Client, encoding: str) -> None:
    file = FILE + b"\r\nContent-Transfer-Encoding: " + encoding.encode()
    parts = [(file, formats.to_jsonl(ROWS)), (PURPOSE, b"fine-tune")]
    body = b"".join([b"--b\r\n%s\r\n\r\n%s\r\n" % part for part in parts])
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    assert http.post("/v1/files", content=body + b"--b--\r\n", headers=kind).status_code == 200


def test_an_upload_beyond_the_limit_is_refused(server) -> None:
    with socket.create_connection(server.handle.url[7:].split(":"), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
            + server.handle.api_key.encode()
            + b"\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            b"Content-Length: 10737418240\r\n\r\n"
        )
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413") and b"file_too_large" in answer


# Models


def test_the_base_model_is_listed_and_can_not_be_deleted(client: openai.OpenAI) -> None:
    (model,) = [model for model in client.models.list().data if not model.id.startswith("ft:")]
    Model.model_validate(model.model_dump(), strict=True)
    assert (model.id, model.object) == ("sim", "model")
    assert client.models.retrieve("sim") == model
    with pytest.raises(openai.PermissionDeniedError, match="base model"):
        client.models.delete("sim")
    for call in (client.models.retrieve, client.models.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            call("ft:sim::000000000000")
        assert caught.value.code == "model_not_found"


# Chat


def test_a_chat_completion_has_openais_shape(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="sim", messages=HELLO, n=2, seed=3, max_tokens=50, temperature=0.5, stop=["!"]
    )
    ChatCompletion.model_validate(answer.model_dump(), strict=True)
    assert (answer.object, answer.model, len(answer.choices)) == ("chat.completion", "sim", 2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.message.content.startswith("Answer: ") for choice in answer.choices)
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    again = client.chat.completions.create(
        model="sim", messages=HELLO, n=2, seed=3, max_completion_tokens=50, top_p=0.9
    )
    assert [c.message.content for c in again.choices] == [c.message.content for c in answer.choices]
    assert again.id != answer.id


def test_token_ids_agree_with_tokenize(client: openai.OpenAI, http: httpx.Client) -> None:
    answer = client.chat.completions.create(
        model="sim",
        messages=HELLO,
        extra_body={"return_token_ids": True, "repetition_penalty": 1.1},
    )
    tokens = http.post("/tokenize", json={"model": "sim", "messages": HELLO}).json()
    assert set(tokens) == {"tokens", "count", "max_model_len"}
    assert answer.prompt_token_ids == tokens["tokens"]  # type: ignore[attr-defined]
    assert len(tokens["tokens"]) == tokens["count"] == answer.usage.prompt_tokens
    assert len(answer.choices[0].token_ids) == answer.usage.completion_tokens  # type: ignore[attr-defined]


def test_messages_in_parts_and_messages_sent_back_are_taken(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="sim", messages=HELLO, seed=1)
    parts = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]  # fmt: skip
    same = client.chat.completions.create(model="sim", messages=parts, seed=1)
    assert same.choices == first.choices
    turn = first.choices[0].message.model_dump()
    assert turn["refusal"] is None and "content" in turn
    client.chat.completions.create(model="sim", messages=[*HELLO, turn, *HELLO])


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"stream": 1}, 400, "invalid_value", "stream"),
        ({"no_such_word": []}, 400, "unknown_parameter", "no_such_word"),
        ({"presence_penalty": 0.1}, 400, "unsupported_value", "presence_penalty"),
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"model": None}, 400, "missing_required_parameter", "model"),
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({"messages": None}, 400, "missing_required_parameter", "messages"),
        ({"messages": [ROBOT]}, 400, "invalid_value", "messages[0].role"),
        ({"messages": [EMPTY]}, 400, "missing_required_parameter", "messages[0].content"),
        ({"messages": [*HELLO, NUMBER]}, 400, "invalid_value", "messages[1].content"),
        ({"messages": [{**HELLO[0], "x": 1}]}, 400, "unknown_parameter", "messages[0].x"),
        ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
        (BOTH_LIMITS, 400, "invalid_value", "max_completion_tokens"),
        ({"temperature": 2.5}, 400, "invalid_value", "temperature"),
        ({"temperature": "1"}, 400, "invalid_value", "temperature"),
        ({"top_p": 0}, 400, "invalid_value", "top_p"),
        ({"n": 0}, 400, "invalid_value", "n"),
        ({"n": True}, 400, "invalid_value", "n"),
        ({"seed": 1.5}, 400, "invalid_value", "seed"),
        ({"stop": [""]}, 400, "invalid_value", "stop"),
        ({"logprobs": 1}, 400, "invalid_value", "logprobs"),
        ({"logprobs": True}, 400, "unsupported_value", "logprobs"),
        ({"messages": [LONG]}, 400, "context_length_exceeded", "messages"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_chat_request_is_named(
    http: httpx.Client, body: dict[str, Any], status: int, code: str, param: str
) -> None:
    response = http.post("/v1/chat/completions", json={"model": "sim", "messages": HELLO, **body})
    assert_error(response, status, code, param)


def test_null_and_false_count_as_not_sent(http: httpx.Client) -> None:
    body = {"model": "sim", "messages": HELLO, "stream": False, "tools": None, "n": None}
    assert http.post("/v1/chat/completions", json=body).status_code == 200


NO_OBJECT = {
    "empty": b"",
    "open": b"{",
    "list": b"[]",
    "text": b'"x"',
    "no UTF-8": b"\xff",
    "UTF-16": '{"model": "sim"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"model": "sim"}',
    "lone surrogate": b'{"model": "\\ud800"}',
    "not a number": b'{"model": NaN}',
    "deep": b'{"model": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("body", NO_OBJECT.values(), ids=list(NO_OBJECT))
def test_a_body_that_is_no_object_is_a_400(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    for path in ("/v1/chat/completions", "/tokenize", "/v1/fine_tuning/jobs"):
        assert_error(http.post(path, content=body), 400, "invalid_json", None)
    monkeypatch.setattr(bounds, "_FAST_VALUES", -1)  # the patient parser is as strict
    with pytest.raises(ApiError) as caught:
        server_http.json_object(body)
    assert caught.value.code == "invalid_json"


def test_a_body_that_is_deep_but_json_is_a_400(http: httpx.Client) -> None:
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    method = {"type": "supervised", "reinforcement": deep}
    job = {"model": "sim", "training_file": "x", "method": method}
    assert_error(http.post("/v1/fine_tuning/jobs", json=job), 400, "invalid_json", None)


def test_a_body_that_is_too_large_is_a_413(http: httpx.Client) -> None:
    response = http.post("/v1/chat/completions", content=b" " * (33 * 1024 * 1024))
    assert_error(response, 413, "request_too_large", None)


# The rest


def exchange(server: Any, request: bytes, *headers: bytes, body: bytes = b"") -> tuple[int, Any]:
    """(status, error object) for a request as it is written, on a connection of its own."""
    with socket.create_connection(server.handle.url[7:].split(":"), timeout=10) as connection:
        lines = [request + b" HTTP/1.1", b"Host: x", b"Connection: close", *headers]
        lines.append(b"Authorization: Bearer " + server.handle.api_key.encode())
        if body:
            lines.append(b"Content-Length: %d" % len(body))
        connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        head, _, content = b"".join(iter(lambda: connection.recv(65536), b"")).partition(
            b"\r\n\r\n"
        )
    assert b"x-request-id: req_" in head
    return int(head.split()[1]), json.loads(content)["error"]


@pytest.mark.parametrize(
    ("request_line", "header", "status", "code"),
    [
        (b"GET /health", b"Expect: foo", 417, None),
        (b"OPTIONS *", b"X: y", 404, "unknown_url"),
        (b"CONNECT a:1", b"X: y", 404, "unknown_url"),
    ],
)
def test_what_no_handler_sees_is_answered_too(
    server, request_line: bytes, header: bytes, status: int, code: str | None
) -> None:
    answered, error = exchange(server, request_line, header)
    assert (answered, error["code"], error["type"]) == (status, code, "invalid_request_error")


async def test_a_body_that_is_not_encoded_as_it_says_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps({"model": "sim", "messages": HELLO}).encode()
    async with serve(tmp_path / "state") as here:
        for path in ("/v1/chat/completions", "/v1/fine_tuning/jobs", "/v1/files"):
            form = {"Content_Type": "multipart/form-data; boundary=b"} if "files" in path else {}
            for encoding, status, code in (
                ("gzip", 400, "invalid_body"),
                ("deflate", 400, "invalid_body"),
                ("snappy", 415, "unsupported_value"),
                ("gzip, gzip", 415, "unsupported_value"),
            ):
                if form:
                    status, code = 415, "unsupported_value"  # uploads are taken as they are
                got, answer, _ = await here.post(path, body, Content_Encoding=encoding, **form)
                assert (got, json.loads(answer)["error"]["code"]) == (status, code), encoding
        got, _, _ = await here.post(
            "/v1/chat/completions", gzip.compress(body), Content_Encoding="gzip"
        )
        assert got == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    "keys", [[b""], [b"x" * 256], [b"\xff"], [b"a\xc2\xadb"], [b"a", b"b"], [b"a", b"a"]]
)
def test_an_idempotency_key_is_one_printable_text(server, keys: list[bytes]) -> None:
    headers = [b"Idempotency-Key: " + key for key in keys]
    body = json.dumps({"model": "sim", "messages": HELLO}).encode()
    status, error = exchange(server, b"POST /v1/fine_tuning/jobs", *headers, body=body)
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "Idempotency-Key")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/files"),
        ("DELETE", "/v1/files/file-0"),
        ("POST", "/v1/fine_tuning/jobs/ftjob-0/cancel"),
        ("POST", "/v1/fine_tuning/jobs/ftjob-0/pause"),
        ("POST", "/v1/fine_tuning/jobs/ftjob-0/resume"),
        ("DELETE", "/v1/models/sim"),
        ("POST", "/tokenize"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
    ],
)
def test_an_idempotency_key_is_refused_where_it_would_be_ignored(
    http: httpx.Client, method: str, path: str
) -> None:
    answer = http.request(method, path, headers={"Idempotency-Key": "a"})
    assert_error(answer, 400, "unsupported_value", "Idempotency-Key")
    # Reading is the same every time in any case.
    assert http.get("/v1/files", headers={"Idempotency-Key": "a"}).status_code == 200


def test_unknown_paths_and_methods_get_an_error_object(http: httpx.Client) -> None:
    assert_error(http.get("/v1/nothing"), 404, "unknown_url", None)
    assert_error(http.get("/"), 404, "unknown_url", None)
    refused = http.put("/v1/files")
    assert_error(refused, 405, "method_not_supported", None)
    assert refused.headers["allow"] == "GET, HEAD, OPTIONS, POST"
    for path in ("/v1/files", "/v1/models/some/model"):
        options = http.options(path)
        assert (options.status_code, options.content) == (204, b"")
        assert "GET" in options.headers["allow"]
    assert_error(http.options("/v1/nothing"), 404, "unknown_url", None)


def test_head_is_get_without_the_body(http: httpx.Client) -> None:
    for path in ("/health", "/version", "/v1/models", "/v1/files", "/metrics"):
        head, get = http.head(path), http.get(path)
        assert (head.status_code, head.content) == (get.status_code, b"") == (200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
    assert http.head("/v1/models/none").status_code == 404


def test_every_answer_has_an_id_of_its_own(server, http: httpx.Client) -> None:
    body = {"model": "sim", "messages": HELLO}
    answers = [
        http.get("/health"),
        http.get("/nothing"),
        http.get("/v1/models"),
        httpx.get(server.handle.url + "/v1/models"),
        http.post("/v1/chat/completions", json=body),
        http.post("/v1/chat/completions", json={**body, "stream": True}),
        http.post("/v1/chat/completions", content=b"{"),
    ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == len(ids) and all(id.startswith("req_") for id in ids)


def test_health_version_and_status_tell_what_is(server, http: httpx.Client) -> None:
    open_client = httpx.Client(base_url=server.handle.url)
    health = open_client.get("/health")
    assert health.status_code == 200
    assert health.json()["status"] == "ok" and health.json()["engine_state"] == "running"
    assert health.json()["disk_free_bytes"] > 0
    assert open_client.get("/version").json() == {"version": SERVER_VERSION}
    assert_error(open_client.get("/nip/status"), 401, "invalid_api_key", None)
    status = http.get("/nip/status").json()
    assert status["pid"] == server.handle.pid
    assert status["engine"]["name"] == "deterministic"
    assert status["configuration_digest"] == server.spec.digest()


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=x",
        "limit=-1",
        "limit=99999",
        "after=nothing",
        "after=%ff",
        "order=up",
        "x=1",
    ],
)
def test_query_parameters_are_checked(http: httpx.Client, query: str) -> None:
    response = http.get(f"/v1/files?{query}")
    assert response.status_code == (404 if "after" in query else 400)
    assert response.json()["error"]["param"] == query.split("=", maxsplit=1)[0]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("metadata[]=x", "metadata[]"),
        ("metadata[a=x", "metadata[a"),
        ("metadata[a]b=x", "metadata[a]b"),
        ("metadata=x", "metadata"),
        ("metadata[a]=x&metadata[a]=y", "metadata[a]"),
        ("limit=1&limit=2", "limit"),
        ("limit[a]=1", "limit[a]"),
        ("limit=%D9%A1", "limit"),
    ],
)
def test_a_query_that_would_be_ignored_in_part_is_refused(
    http: httpx.Client, query: str, param: str
) -> None:
    response = http.get(f"/v1/fine_tuning/jobs?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_every_job_object_has_openais_shape(server, client: openai.OpenAI) -> None:
    job = server.train(suffix="shape")
    FineTuningJob.model_validate(job.model_dump(), strict=True)
    events = client.fine_tuning.jobs.list_events(job.id)
    assert events.data
    for event in events:
        FineTuningJobEvent.model_validate(event.model_dump(), strict=True)
    (checkpoint,) = client.fine_tuning.jobs.checkpoints.list(job.id).data
    FineTuningJobCheckpoint.model_validate(checkpoint.model_dump(), strict=True)
    assert checkpoint.fine_tuned_model_checkpoint == job.fine_tuned_model


def test_injected_faults_reach_the_client(make_server) -> None:
    faulty = make_server("faults: {server_error: 0.3, rate_limited: 0.3, dropped: 0.3}\n")
    seen = set()
    for seed in range(40):
        try:
            faulty.client.chat.completions.create(model="sim", messages=HELLO, seed=seed)
        except openai.RateLimitError as error:
            assert error.response.headers["retry-after"] == "0.05"
            seen.add("429")
        except openai.InternalServerError as error:
            assert json.loads(error.response.text)["error"]["code"] == "injected_fault"
            seen.add("500")
        except openai.APIConnectionError:
            seen.add("dropped")
        else:
            seen.add("answered")
    assert seen == {"429", "500", "dropped", "answered"}


def test_another_try_gets_through_a_fault(make_server) -> None:
    faulty = make_server("faults: {rate_limited: 0.5, retry_after_s: 0.01}\n")
    patient = faulty.client.with_options(max_retries=30)
    for seed in range(10):
        answer = patient.chat.completions.create(model="sim", messages=HELLO, seed=seed)
        assert answer.choices[0].message.content
