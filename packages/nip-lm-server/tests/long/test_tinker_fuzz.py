"""Whatever is sent to Tinker's API: never a 5xx, whose fault it is, and no memory that grows.

Some hundred bodies, always the same; NIP_FUZZ_BODIES=10000 sends more.
"""

import copy
import json
import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest
from tinker_wire import Wire, learn, write_request
from tiny_model import make_model

from nip_base.spec import ServerSpec
from nip_lm_server import launch
from nip_lm_server.api.tinker.tinker_table import ROUTES
from nip_lm_server.launch import ServerHandle
from nip_lm_server.tinker.storage.records import LoraShape
from nip_lm_server.tinker.storage.store import DATABASE, TinkerStore

pytestmark = pytest.mark.timeout(1200)
BODIES = int(os.environ.get("NIP_FUZZ_BODIES", "400"))
MOST_GROWTH = 256 * 1024 * 1024
BASE = "org/tiny"
GONE = "gone:train:0"
DEEP = json.loads("[" * 100 + "]" * 100)
ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, -(2**64), 10**400, 1e308, 0.5, "", "x", "\0", "x" * 5000,
    "\N{GRINNING FACE}", "../..", "a:b:1", [], [[]], {}, {"type": "x"}, DEEP, [2**40] * 3, ["x", 1],
]  # fmt: skip
BYTES = [b"", b"{", b"[]", b"null", b'{"a":1}x', b'{"a":"\\ud800"}', b'{"a":NaN}', b"\xff\xfe{}"]


class Sent:
    """What a client could send: bodies of every route, some of them as they should be."""

    def __init__(self, client: Wire, drawn: random.Random):
        self.drawn = drawn
        self.session = client.begin(BASE).partition(":train:")[0]
        self.model = f"{self.session}:train:0"
        self.other = client.ask("create_session", {"tags": [], "sdk_version": "0"})["session_id"]
        self.ids = [self.model, self.session, GONE, f"{self.model}:0", "no", "%", "\0", "x" * 3000]
        lora = {"rank": 2, "seed": 1}
        sample = {
            "sampling_session_id": f"{self.session}:sample:0", "seq_id": 1, "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5]}]},
            "sampling_params": {"max_tokens": 2, "seed": 1, "stop": [1], "top_k": 3},
            "topk_prompt_logprobs": 1, "prompt_logprobs": True,
        }  # fmt: skip
        numbered = {"model_id": self.model, "seq_id": 1}
        self.bodies: dict[str, dict[str, Any]] = {
            "client/config": {"sdk_version": "0.38.0"},
            "client/dynamic_config": {"sdk_version": "0.38.0"},
            "create_session": {"tags": ["a"], "user_metadata": {"a": 1}, "sdk_version": "0"},
            "session_heartbeat": {"session_id": self.session},
            "sessions/{id}/finish": {"reason": {"type": "success"}, "detail": None},
            "create_model": {
                "session_id": self.session, "model_seq_id": 9, "base_model": BASE,
                "lora_config": lora, "user_metadata": {"a": "b"},
            },
            "get_info": {"model_id": self.model},
            "optim_step": {**numbered, "adam_params": {"learning_rate": 1e-3, "beta1": 0.9}},
            "save_weights": {**numbered, "path": "a", "ttl_seconds": 5, "overwrite": True},
            "save_weights_external": {**numbered, "path": "b"},
            "save_weights_for_sampler": {**numbered, "sampling_session_seq_id": 7},
            "load_weights": {"path": "tinker://a/weights/b", "optimizer": True, **numbered},
            "create_sampling_session": {
                "session_id": self.session, "sampling_session_seq_id": 0, "base_model": BASE,
            },
            "asample": sample,
            "weights_info": {"tinker_path": "tinker://a/weights/b"},
            "retrieve_future": {"request_id": f"{self.model}:0"},
        }  # fmt: skip

    def draw(self) -> tuple[str, str, dict[str, str], bytes]:
        """A method, a path with its query, headers, and a body."""
        drawn = self.drawn
        routes = [(method, path) for method, path, _ in ROUTES]
        method, path = drawn.choice([*routes, ("POST", "retrieve_future"), ("GET", "no/{id}")])
        body, headers = self._draw_body(path), {"Content-Type": "application/json"}
        if path == "forward_backward":
            headers["Content-Type"] = "application/x-protobuf"
        if drawn.random() < 0.05:
            odd = drawn.choice(["text/plain", "application/x-protobuf", "", "application/json"])
            headers["Content-Type"] = odd
            headers["Content-Encoding"] = drawn.choice(["gzip", "br", "identity", "deflate"])
        if drawn.random() < 0.05:
            method = drawn.choice(["GET", "PUT", "POST", "DELETE", "PATCH"])
        while "{" in path:
            name = path[path.index("{") : path.index("}") + 1]
            ids = self.ids[2:] if "finish" in path else self.ids  # not the one that is used
            value = drawn.choice([*ids, "weights", self.other])
            path = path.replace(name, quote(value, safe=drawn.choice(["", "/%"])), 1)
        if drawn.random() < 0.2:
            odd = quote(str(drawn.choice(ODD[:18])))
            path += f"?{drawn.choice(['limit', 'offset', 'x'])}={odd}"
        return method, path, headers, b"" if method == "GET" else body

    def _draw_body(self, path: str) -> bytes:
        drawn = self.drawn
        if path == "forward_backward":
            return self._break(self._draw_protobuf())
        value = json.loads(json.dumps(self.bodies.get(path, {"ttl_seconds": 3})))
        for _ in range(drawn.randrange(3)):
            self._change(value)
        raw = json.dumps(value).encode()
        if drawn.random() < 0.1:
            return drawn.choice(BYTES)
        return self._break(raw) if drawn.random() < 0.2 else raw

    def _change(self, value: dict[str, Any]) -> None:
        """Make one field, somewhere, odd; or take it away, or add one."""
        drawn = self.drawn
        key = drawn.choice([*value, "unknown"])
        if isinstance(value.get(key), dict) and drawn.random() < 0.7:
            self._change(value[key])
        elif drawn.random() < 0.15:
            value.pop(key, None)
        elif key.endswith("_id") and drawn.random() < 0.5:
            value[key] = drawn.choice([*self.ids, 2, 3, 2**31 - 1])
        else:
            value[key] = copy.deepcopy(drawn.choice(ODD))  # which may be changed, too

    def _draw_protobuf(self) -> bytes:
        drawn = self.drawn
        data = [learn([5, 6, 7 + i]) for i in range(drawn.randrange(4))]
        loss = drawn.choice(["cross_entropy", "ppo", "custom", "x" * 5000])
        seq = drawn.choice([-1, 0, 1, 2, 2**31, 2**63 - 1])
        return write_request(
            drawn.choice(self.ids), seq, data, loss, config={drawn.choice("ab"): 1e300}
        )

    def _break(self, raw: bytes) -> bytes:
        drawn, broken = self.drawn, bytearray(raw)
        for _ in range(drawn.randrange(4)):
            if broken:
                broken[drawn.randrange(len(broken))] = drawn.randrange(256)
        return bytes(broken[: drawn.randrange(len(broken) + 1)] if drawn.random() < 0.3 else broken)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerHandle, Path]]:
    """A server with a model on record whose base model it does not serve."""
    directory = tmp_path_factory.mktemp("fuzz")
    model, state = make_model(directory / "tiny", context=64), directory / "state"
    spec = ServerSpec("embedded", str(model), served_model_name=BASE)
    handle = launch.start_or_attach(spec, state, timeout_s=600)
    Wire(handle.url, handle.api_key).ask("create_session", {"tags": []})
    with closing(TinkerStore(state / DATABASE)) as store:  # which the server has made just now
        store.add_session("gone", {}, "")
        store.add_model(GONE, "gone", "org/gone", LoraShape(4), {})
        store.add_sampler("gone:sample:0", "gone", "org/gone", None, "org/gone")
        store.add_request(GONE, 0, "create_model", "", b"{}")
    yield handle, state
    launch.stop(handle)


def test_a_model_whose_base_is_not_served_is_answered_with_its_name(
    served: tuple[ServerHandle, Path],
) -> None:
    handle, _ = served
    client = Wire(handle.url, handle.api_key)
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [5]}]}
    asked: list[tuple[str, Any]] = [
        ("get_info", {"model_id": GONE}),
        ("optim_step", {"model_id": GONE, "seq_id": 1}),
        ("save_weights", {"model_id": GONE, "seq_id": 1, "path": "a"}),
        ("forward_backward", write_request(GONE, 1, [learn([5, 6])])),
        ("retrieve_future", {"request_id": f"{GONE}:0"}),
        (
            "asample",
            {
                "sampling_session_id": "gone:sample:0",
                "seq_id": 1,
                "prompt": prompt,
                "sampling_params": {},
            },
        ),
    ]
    for route, body in asked:
        answer: httpx.Response = client.post(route, body)
        assert answer.status_code == 404 and answer.json()["category"] == "user", answer.text
        assert "'org/gone'" in answer.text and "--served-model-name" in answer.text
    assert client.http.get(f"training_runs/{GONE}").status_code == 200


def test_whatever_is_sent_is_answered_with_whose_fault_it_is(
    served: tuple[ServerHandle, Path],
) -> None:
    handle, state = served
    client, drawn = Wire(handle.url, handle.api_key), random.Random(0)
    sent, process = Sent(client, drawn), psutil.Process(handle.pid)
    client.ask("create_sampling_session", sent.bodies["create_sampling_session"])
    statuses: dict[int, int] = {}
    before = 0
    for number in range(BODIES):
        if number == BODIES // 4:  # what a server takes at the beginning is no growth
            before = process.memory_info().rss
        method, path, headers, body = sent.draw()
        answer = client.http.request(method, path, headers=headers, content=body)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        what = f"{method} {path[:200]} {body[:500]!r}: {answer.status_code} {answer.text[:500]}"
        assert answer.status_code < 500, what
        if answer.status_code >= 400 and answer.status_code != 408:
            refusal = answer.json()
            assert refusal.get("category") == "user" and refusal["error"], what
    assert process.memory_info().rss - before < MOST_GROWTH
    assert {200, 400, 404} <= statuses.keys(), statuses
    # Nor is any result the server's fault, but of numbers that did not come.
    launch.stop(handle)
    with closing(TinkerStore(state / DATABASE)) as store:
        rows = store.fetch_all("SELECT kind, error FROM requests WHERE category = 'server'")
    assert not [tuple(row) for row in rows if "never came" not in row["error"]]
