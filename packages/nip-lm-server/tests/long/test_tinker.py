"""Tinker's API over HTTP, by bytes: a server with a real trainer and a real engine."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import tinker_wire as wire
from tinker_wire import Wire, learn, write_request
from tiny_model import make_model

from nip_base.spec import ServerSpec
from nip_lm_server import launch
from nip_lm_server.proving.request import ProofRequest, prove_served

# Servers are started again in between, each of which loads torch anew.
pytestmark = pytest.mark.timeout(1200)
BASE = "org/tiny"
START_S = 500.0
TEXTS = [[10 + (7 * n + 3 * i) % 200 for i in range(12)] for n in range(4)]
DATA = [learn(text) for text in TEXTS]


class Served:
    """A server on a state directory, which can be killed and started again at its port."""

    def __init__(self, state: Path, model: Path):
        self.state = state
        self.spec = ServerSpec("embedded", str(model), served_model_name=BASE)
        self.start()

    def start(self) -> None:
        self.handle = launch.start_or_attach(self.spec, self.state, timeout_s=START_S)

    def wire(self, **options: Any) -> Wire:
        return Wire(self.handle.url, self.handle.api_key, **options)

    def kill(self) -> None:
        process = psutil.Process(self.handle.pid)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        self.start()

    def kill_trainer(self) -> None:
        for child in psutil.Process(self.handle.pid).children(recursive=True):
            if "resident" in " ".join(child.cmdline()):
                os.kill(child.pid, signal.SIGKILL)

    def stop(self) -> None:
        launch.stop(self.handle)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny", context=128)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("tinker") / "state", model)
    yield server
    server.stop()


def train_plainly(client: Wire, model: str) -> list[float]:
    """Three steps of two requests each, one awaited after the other; then what it gives."""
    for step in range(3):
        for part in range(2):
            client.result(client.train(model, 3 * step + part + 1, DATA[2 * part : 2 * part + 2]))
        client.result(client.step(model, 3 * step + 3))
    return client.logprobs(model, 10, TEXTS[0])


def test_what_is_sent_twice_and_out_of_order_is_done_once_in_order(served: Served) -> None:
    plain = served.wire()
    expected = train_plainly(plain, plain.begin(BASE, seed=3))
    twice = served.wire(doubled=True)
    model = twice.begin(BASE, seed=3)
    ids: dict[int, str] = {}
    # The last step first: all of it waits for what comes before it.
    for step in (2, 0, 1):
        ids[3 * step + 3] = twice.step(model, 3 * step + 3)
        for part in (1, 0):
            seq = 3 * step + part + 1
            ids[seq] = twice.train(model, seq, DATA[2 * part : 2 * part + 2])
    for seq in sorted(ids):
        twice.result(ids[seq])
    assert twice.logprobs(model, 10, TEXTS[0]) == expected
    # And once it is done, again.
    twice.train(model, 1, DATA[:2])
    assert twice.logprobs(model, 11, TEXTS[0]) == expected


def test_a_number_stands_for_one_request(served: Served) -> None:
    client = served.wire()
    model = client.begin(BASE)
    client.result(client.train(model, 1, DATA[:1]))
    answer = client.post("forward_backward", write_request(model, 1, DATA[1:2]))
    assert answer.status_code == 400 and answer.json()["category"] == "user"
    assert "was used for another request" in answer.text


def test_a_kill_of_server_or_trainer_is_a_wait(
    served: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    client = served.wire()
    expected = train_plainly(client, client.begin(BASE, seed=5))
    model = client.begin(BASE, seed=5)
    for step in range(3):
        for part in range(2):
            id = client.train(model, 3 * step + part + 1, DATA[2 * part : 2 * part + 2])
            if (step, part) == (1, 0):
                client.result(id)
                served.kill_trainer()
        id = client.step(model, 3 * step + 3)
        if step == 1:
            served.kill()
            client = served.wire()
        client.result(id)
    assert client.logprobs(model, 10, TEXTS[0]) == expected


def test_a_sampler_has_the_weights_that_were_trained(served: Served) -> None:
    client = served.wire()
    model = client.begin(BASE, seed=1)
    session = model.partition(":train:")[0]
    client.result(client.train(model, 1, DATA))
    client.result(client.step(model, 2, rate=3e-2))
    saved = client.result(
        client.ask(
            "save_weights_for_sampler",
            {"model_id": model, "seq_id": 3, "path": "w", "type": "save_weights_for_sampler"},
        )["request_id"]
    )
    assert saved["path"] == f"tinker://{model}/sampler_weights/w"
    expected = client.logprobs(model, 4, TEXTS[1])
    body = {"session_id": session, "sampling_session_seq_id": 0, "model_path": saved["path"]}
    sampler = client.ask("create_sampling_session", body)["sampling_session_id"]

    def sample(seq: int, **params: Any) -> tuple[list[dict[str, Any]], list[float] | None]:
        prompt = {"chunks": [{"type": "encoded_text", "tokens": part} for part in split]}
        body = {
            "sampling_session_id": sampler, "seq_id": seq, "prompt": prompt, "num_samples": 2,
            "sampling_params": {"max_tokens": 5, **params}, "prompt_logprobs": True,
            "type": "sample",
        }  # fmt: skip
        return wire.read_samples(client.result(client.ask("asample", body)["request_id"]))

    split = [TEXTS[1][:4], TEXTS[1][4:]]
    sequences, prompt = sample(0, seed=7)
    assert prompt is not None and np.isnan(prompt[0])
    assert np.allclose(prompt[1:], expected, atol=1e-4)
    assert [len(one["tokens"]) for one in sequences] == [5, 5]
    # The seed decides; a stop token is part of the answer; without stops nothing ends it.
    assert tokens_of(sample(1, seed=7)[0]) == tokens_of(sequences)
    first = sequences[0]["tokens"][0]
    stopped = sample(2, seed=7, stop=[first])[0][0]
    assert stopped["tokens"] == [first] and stopped["stopped"]
    # Swapped on the disk, it is noticed before the next first sample.
    (folder,) = served.state.glob("tinker/*/sampler_weights-3")
    weights = folder / "adapter_model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    served.stop()
    weights.write_bytes(raw)
    served.start()
    client = served.wire()
    failed = client.result(
        client.ask(
            "asample",
            {
                "sampling_session_id": sampler, "seq_id": 9, "sampling_params": {"max_tokens": 1},
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5]}]}, "type": "sample",
            },
        )["request_id"]
    )  # fmt: skip
    assert failed["category"] == "server" and "not those that were saved" in failed["error"]


def tokens_of(sequences: list[dict[str, Any]]) -> list[list[int]]:
    return [one["tokens"] for one in sequences]


def test_a_checkpoint_goes_on_where_it_was_saved(served: Served) -> None:
    client = served.wire()
    model = client.begin(BASE, seed=2)
    client.result(client.train(model, 1, DATA))
    client.result(client.step(model, 2))
    body = {"model_id": model, "seq_id": 3, "path": "s", "type": "save_weights"}
    path = client.result(client.ask("save_weights", body)["request_id"])["path"]
    again = client.result(client.ask("save_weights", {**body, "seq_id": 4})["request_id"])
    assert again["category"] == "user" and "overwrite" in again["error"]
    session = model.partition(":train:")[0]
    load = {
        "session_id": session, "model_seq_id": 1, "path": path, "optimizer": True,
        "type": "load_weights",
    }  # fmt: skip
    other = client.result(client.ask("load_weights", load)["request_id"])["model_id"]
    assert other == f"{session}:train:1"
    # A step with what both have learned from: the same bits.
    results = []
    for each, seq in ((model, 5), (other, 1)):
        client.result(client.train(each, seq, DATA[:2]))
        client.result(client.step(each, seq + 1))
        results.append(client.logprobs(each, seq + 2, TEXTS[0]))
    assert results[0] == results[1]
    run = client.http.get(f"training_runs/{other}").json()
    assert run["base_model"] == BASE and run["lora_rank"] == 4
    named = f"training_runs/{model}/checkpoints/weights/s"
    assert client.http.put(f"{named}/ttl", json={"ttl_seconds": 3600}).status_code == 204
    assert client.http.get("checkpoints").json()["checkpoints"][0]["expires_at"] is not None
    assert client.http.delete(named).status_code == 204
    assert client.http.get(f"training_runs/{model}/checkpoints").json() == {"checkpoints": []}
    gone = client.post("load_weights", {**load, "model_seq_id": 2})
    assert gone.status_code == 404 and "was deleted" in gone.text


def test_an_adapter_is_downloaded_by_its_address(served: Served, tmp_path: Path) -> None:
    client = served.wire()
    model = client.begin(BASE)
    body = {"model_id": model, "seq_id": 1, "path": "out", "type": "save_weights_external"}
    body["age_encryption_recipients"] = []  # as a client may send it that has none
    assert (
        "external_weights/out"
        in client.result(client.ask("save_weights_external", body)["request_id"])["path"]
    )
    at = f"training_runs/{model}/checkpoints/external_weights/out/external_weights_urls"
    urls = client.http.get(at).json()["urls"]
    without_key = httpx.Client(trust_env=False)
    raw = {name: without_key.get(url).content for name, url in urls.items()}
    assert set(raw) == {"adapter_config.json", "adapter_model.safetensors"}
    url = next(iter(urls.values()))
    assert (
        without_key.get(url.replace("external_weights/", "external_weights/x")).status_code == 404
    )


async def test_weights_of_a_sampler_are_proved_by_their_address(
    served: Served, model: Path, tmp_path: Path
) -> None:
    """The saved ones are the adapter's; those of before the step are not those of after it."""
    client = served.wire()
    run = client.begin(BASE, seed=2)
    addresses = []
    for place in range(2):
        client.result(client.train(run, 4 * place + 1, DATA))
        client.result(client.step(run, 4 * place + 2, rate=3e-2))
        for number, kind in enumerate(("for_sampler", "external"), start=4 * place + 3):
            body = {"model_id": run, "seq_id": number, "path": f"w{place}"}
            body["type"] = f"save_weights_{kind}"
            saved = client.result(client.ask(body["type"], body)["request_id"])
            if kind == "for_sampler":
                addresses.append(saved["path"])
        at = f"training_runs/{run}/checkpoints/external_weights/w{place}/external_weights_urls"
        (tmp_path / f"w{place}").mkdir()
        for name, url in client.http.get(at).json()["urls"].items():
            content = httpx.Client(trust_env=False).get(url).content
            (tmp_path / f"w{place}" / name).write_bytes(content)
    for directory, kind in ((tmp_path / "w0", "adapter"), (tmp_path / "w1", "another")):
        request = ProofRequest(
            served.handle.url, key=served.handle.api_key, model=addresses[0],
            directory=directory, among=(tmp_path / "w0",) if kind == "another" else (),
            base_model=str(model), repeats=2,
        )  # fmt: skip
        (verdict,) = [one async for one in prove_served(request)]
        assert (verdict.kind, verdict.way) == (kind, "echo"), verdict


@pytest.mark.parametrize(
    ("loss_fn", "said"),
    [
        ("stable_reinforce", "loss_fn=importance_sampling"),
        ("custom", "forward_backward_custom"),
        ("nothing", "known: cross_entropy"),
    ],
)
def test_losses_that_are_not_here_are_refused_with_the_way_out(
    served: Served, loss_fn: str, said: str
) -> None:
    client = served.wire()
    model = client.begin(BASE)
    failed = client.result(client.train(model, 1, DATA[:1], loss_fn=loss_fn))
    assert failed["category"] == "user" and said in failed["error"]
    # No step is taken with a part of its gradient; the next one is whole again.
    failed = client.result(client.step(model, 2))
    assert failed["category"] == "user" and "a part of its gradient" in failed["error"]
    client.result(client.train(model, 3, DATA[:1]))
    assert "metrics" in client.result(client.step(model, 4))


def test_what_can_not_be_done_is_refused_by_name(served: Served) -> None:
    client = served.wire()
    model = client.begin(BASE)
    session = model.partition(":train:")[0]
    saving = {"model_id": model, "path": "x", "type": "save_weights_for_sampler"}
    asked = [
        ("optim_step", {"model_id": model, "optimizer_params": {"type": "dimuon"}}, "dimuon"),
        ("save_weights_for_sampler", {**saving, "kind": "inflight"}, "snapshot"),
        ("save_weights", {"model_id": model, "path": "../x"}, "can't stand in a path"),
    ]
    for seq, (route, body, said) in enumerate(asked, 1):
        failed = client.result(client.ask(route, {**body, "seq_id": seq})["request_id"])
        assert failed["category"] == "user" and said in failed["error"]
    large = {
        "session_id": session, "model_seq_id": 5, "base_model": BASE, "lora_config": {"rank": 4096}
    }  # fmt: skip
    failed = client.result(client.ask("create_model", large)["request_id"])
    assert failed["category"] == "user" and "rank" in failed["error"]
    assert client.post("create_model", {**large, "base_model": "no/such"}).status_code == 400
    assert client.post("create_model", {**large, "unknown": 1}).status_code == 400
    assert client.http.post("billing/usage/events", json={}).status_code == 404
    client.post(f"sessions/{session}/finish", {"reason": {"type": "success"}, "detail": None})
    over = client.post("forward_backward", write_request(model, 9, DATA[:1]))
    assert over.status_code == 410 and over.json()["category"] == "user"


def test_broken_bodies_are_the_clients_fault(served: Served) -> None:
    client = served.wire()
    model = client.begin(BASE)
    drawn, body = random.Random(1), write_request(model, 1, DATA)
    for _ in range(300):
        mutated = bytearray(body[: drawn.randrange(1, len(body) + 1)])
        mutated[drawn.randrange(len(mutated))] = drawn.randrange(256)
        answer = client.post("forward_backward", bytes(mutated))
        assert answer.status_code < 500, answer.text
        if answer.status_code != 200:
            assert answer.json()["category"] == "user"
    far = client.post("forward_backward", write_request(model, 2**31 - 1, DATA[:1]))
    assert far.status_code == 400 and "far ahead" in far.text
    assert client.post("forward_backward", b"\x1a\x80\x80\x80\x80\x08").status_code == 400
    assert client.http.get("healthz").json() == {"status": "ok"}


def test_two_models_do_not_see_each_other(served: Served) -> None:
    client = served.wire()
    alone = client.begin(BASE, seed=8)
    expected = train_plainly(client, alone)
    first, second = client.begin(BASE, seed=8), client.begin(BASE, seed=9)
    for step in range(3):
        for part in range(2):
            seq = 3 * step + part + 1
            client.train(first, seq, DATA[2 * part : 2 * part + 2])
            client.train(second, seq, DATA[:1])
        client.step(first, 3 * step + 3)
        client.step(second, 3 * step + 3)
    assert client.logprobs(first, 10, TEXTS[0]) == expected


def test_a_key_of_the_server_is_needed(served: Served) -> None:
    answer = Wire(served.handle.url, "tml-wrong").post("create_session", {"tags": []})
    assert answer.status_code == 401
