"""The whole server over a real vLLM: fine-tune, swap, prove, survive kills, leave nothing behind."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import openai
import psutil
import pytest
from vllm_server import QUESTION


@pytest.fixture(scope="module")
def models(server) -> dict[str, str]:
    """Two fine-tunes that were trained to answer differently, by what they were taught."""
    return {answer: server.fine_tune(answer) for answer in ("accept", "reject")}


def test_fine_tunes_answer_differently_at_the_same_time(server, models):
    names = ["tiny", *models.values()]
    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(server.ask, names * 3))
    assert [model for model, _ in answers] == names * 3
    for taught, name in models.items():
        assert {text for model, text in answers if model == name} == {taught}
    assert not {text for model, text in answers if model == "tiny"} & set(models)


def test_each_fine_tune_carries_its_proof(server, models):
    for name in models.values():
        proof = server.client.models.retrieve(name).nip["proof"]
        assert proof["matches"] is True
        assert proof["detail"]["distance"] < proof["detail"]["tolerance"]
        assert proof["detail"]["unchanged"] is False


def test_streams_pass_through_whole(server, models):
    name = models["reject"]
    chunks = list(
        server.client.chat.completions.create(
            model=name, messages=QUESTION, temperature=0, max_tokens=12, stream=True
        )
    )
    assert {chunk.model for chunk in chunks} == {name}
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "reject"


def test_a_schema_is_kept_to_by_the_base_and_by_a_fine_tune(server, models):
    def ask(model, schema):
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        answer = server.client.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=40, response_format=form
        )
        return answer.choices[0].message.content

    numbers = {"enum": ["twelve", "thirteen"]}
    for model in ("tiny", models["accept"]):
        assert ask(model, numbers) in ('"twelve"', '"thirteen"')
    with pytest.raises(openai.BadRequestError) as refused:
        ask("tiny", {"type": "objekt"})
    assert refused.value.param == "response_format"


def test_what_vllm_would_ignore_or_die_of_is_refused(server, models):
    for parameter in ("a_made_up_parameter", "prompt_logprobs", "kv_transfer_params"):
        with pytest.raises(openai.BadRequestError) as refused:
            server.client.chat.completions.create(
                model=models["reject"], messages=QUESTION, extra_body={parameter: 1}
            )
        assert refused.value.param == parameter
    assert server.ask("tiny")[0] == "tiny"


def test_a_killed_engine_process_comes_back_with_its_adapters(server, models):
    core = [p for p in server.descendants() if "VLLM::EngineCore" in " ".join(p.cmdline())]
    assert len(core) == 1
    epoch = server.client.models.retrieve("tiny").nip["engine_epoch"]
    core[0].send_signal(signal.SIGKILL)
    core[0].wait(10)
    for taught, name in models.items():
        assert server.ask_until_it_answers(name) == (name, taught)
        assert server.client.models.retrieve(name).nip["proof"]["matches"] is True
    assert server.client.models.retrieve("tiny").nip["engine_epoch"] == epoch + 1


def test_killing_the_server_leaves_no_vllm_process(server, models):
    left = server.descendants()
    assert sum("vllm" in " ".join(p.cmdline()).lower() for p in left) >= 3
    os.kill(server.handle.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(left, timeout=15)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
