"""The whole server on one card: chats and jobs at once, by HTTP; sleep, training, wake, proof.

Needs what `test_vllm_cuda.py` needs. CUDA graphs are on, as in use. Never run so far.
"""

from typing import Any

import pytest
from gpu_server import ANSWERED, Server, chat_while

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]


@pytest.fixture
def serve(base, tmp_path):
    servers = []

    def start(**settings: Any) -> Server:
        servers.append(Server("vllm", base, tmp_path / "state", **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def test_jobs_train_while_the_engine_sleeps_once_and_no_chat_is_cut(serve):
    server = serve(gpu_memory_utilization=0.6)

    def train() -> None:
        ids = [server.create(answer, seed) for seed, answer in enumerate(("accept", "reject"))]
        models.extend(server.wait(id).fine_tuned_model for id in ids)
        events.extend(server.client.fine_tuning.jobs.list_events(ids[0]).data)

    models, events = [], []
    ended = chat_while(server, train)
    assert ended.keys() <= {*ANSWERED, "engine_training"} and ended["length"] + ended["stop"]
    engine = server.engine()
    assert (engine["state"], engine["epoch"], engine["restarts"]) == ("running", 1, 0)
    assert any("stays asleep" in event.message for event in events)
    for name in models:
        assert server.client.models.retrieve(name).nip["proof"]["matches"] is True
        assert server.ask(name, temperature=0) in ANSWERED


def test_an_engine_that_stays_answers_while_its_card_trains(serve):
    server = serve(share_device="no", gpu_memory_utilization=0.4)
    ended = chat_while(server, lambda: server.wait(server.create("accept", 1)))
    assert ended.keys() <= ANSWERED
    assert server.engine()["epoch"] == 1


def test_a_rehearsed_sleep_is_done_at_the_start(serve):
    server = serve(gpu_memory_utilization=0.4, rehearse_sleep=True)
    assert server.ask() in ANSWERED
    server.wait(server.create("accept", 1))
    assert server.engine()["epoch"] == 1
