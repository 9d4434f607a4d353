"""What a trainer gets: over verifiers' server, by its client for training, tokens included.

prime-rl asks so: tasks from the taskset, each sent to an env server, which plays it and returns the
traces of its agents. The engine here is a stand-in for vLLM's /inference/v1/generate; tokenizer and
chat template are those of the bundled tiny model.
"""

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from there import play_in_code
from token_engine import LOGPROB, TokenEngine, token_engine
from verifiers.v1.serve import EnvClient, EnvServer

import nip_core
from nip_core.models import resolve_model
from nip_verifiers import load_environment

pytestmark = pytest.mark.timeout(900)
TINY = str(resolve_model("tiny"))
DECIDES = "Decision: accept"


class Answers:
    """The verifier first says nothing of use, then decides; `silent` provers say nothing."""

    def __init__(self, silent: bool = False) -> None:
        self.silent = silent

    def __call__(self, prompt: str) -> str:
        if "Your task is to convince" in prompt:
            return "" if self.silent else "Answer: it returns 3 for 3."
        return DECIDES if "could not be used" in prompt else ""  # asked again, it has a hint


@pytest.fixture
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TINY)


@pytest.fixture
def engine(tokenizer) -> Iterator[TokenEngine]:
    with token_engine(tokenizer, Answers()) as engine:
        yield engine


def trains(engine: TokenEngine) -> vf.TrainClientConfig:
    return vf.TrainClientConfig(
        base_url=f"{engine.url}/v1", api_key_var="NIP_NOT_SET", renderer_model_name=TINY
    )


@asynccontextmanager
async def served(config: vf.EnvConfig):
    """A client of an env server with this configuration, as prime-rl starts one."""
    server = EnvServer(config, address="tcp://127.0.0.1:0")
    running = asyncio.create_task(server.run())
    client = EnvClient(address=server.address)
    try:
        await client.wait_for_server_startup(timeout=60)
        yield client
    finally:
        await client.close()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def config_of(**changes: Any) -> vf.EnvConfig:
    taskset = {"id": "nip-verifiers", "protocol": "adp", **changes.pop("taskset", {})}
    return vf.resolve_env_config({"taskset": taskset, **changes})


async def play(engine: TokenEngine, config: vf.EnvConfig) -> vf.WireEpisode:
    """The first episode, asked for as a trainer does."""
    task = next(iter(vf.load_taskset(config.taskset)))
    async with served(config) as client:
        return await client.run(
            task_data=task.data.model_dump(mode="json"),
            client=trains(engine),
            model="policy",
            sampling=vf.SamplingConfig(temperature=1.0),
        )


def trained_tokens(trace: vf.WireTrace) -> list[list[int]]:
    """Per branch, the tokens that a trainer trains, as prime-rl takes them: each node once."""
    taken: set[int] = set()
    parts = []
    for branch in trace.branches:
        tokens = []
        for node in branch.nodes:
            if id(node) not in taken:
                taken.add(id(node))
                tokens += [t for t, on in zip(node.token_ids, node.mask, strict=True) if on]
        if tokens:
            parts.append(tokens)
    return parts


async def test_each_agent_has_its_tokens_its_reward_and_its_standing(engine, tokenizer):
    episode = await play(engine, config_of())
    assert episode.ok and len(episode.traces) == 2
    by_agent = {trace.agent.name: trace for trace in episode.traces}
    row = by_agent["prover"].info["nip"]["episode"]
    assert row["outcome"] == "finished" and row["decision"] == 1
    for agent, trace in by_agent.items():
        assert trace.agent.trainable and trace.ok
        # 1. The reward is the protocol's.
        [paid] = [e["reward"] for e in row["rewards"] if e["agent"] == agent]
        assert trace.reward == paid and {*trace.rewards} == {"protocol"}
        assert trace.metrics["accuracy"] == float(row["decision"] == row["y"])
        # 2. A branch is what the engine has read and written.
        for branch in trace.branches:
            sequences = [prompt + completion for prompt, completion, _ in engine.calls]
            assert branch.token_ids in sequences
            on = [i for i, sampled in enumerate(branch.sampled_mask) if sampled]
            assert all(branch.logprobs[i] == pytest.approx(LOGPROB) for i in on)
        # 3. What is trained are the valid answers, all of them and nothing else.
        valid = [r["text"] for r in trace.info["nip"]["generations"] if not r["invalid_reason"]]
        texts = [tokenizer.decode(t, skip_special_tokens=True) for t in trained_tokens(trace)]
        assert [text.strip() for text in texts] == valid and valid
        # 4. Calls were limited as nip limits them, and the rest is the trainer's.
        assert all(call.sampling.temperature == 1.0 for call in trace.calls)
    verifier = by_agent["verifier"]
    assert verifier.metrics["invalid_answers"] == 1 and len(verifier.branches) == 2
    assert {sampling["max_tokens"] for _, _, sampling in engine.calls} == {225}
    assert all("seed" not in sampling for _, _, sampling in engine.calls)


async def test_frozen_agents_are_untrainable(engine):
    frozen = {"settings": ["agents.verifier.freeze_agent=true"]}
    episode = await play(engine, config_of(taskset=frozen))
    assert {t.agent.name: t.agent.trainable for t in episode.traces} == {
        "prover": True,
        "verifier": False,
    }


async def test_an_agent_with_a_model_of_its_own_is_untrainable(engine):
    other = {"model": "other", "client": trains(engine).model_dump()}
    episode = await play(engine, config_of(verifier=other))
    standing = {t.agent.name: (t.agent.config.model, t.agent.trainable) for t in episode.traces}
    assert standing == {"prover": ("policy", True), "verifier": ("other", False)}


async def test_a_train_group_alone_trains(engine):
    groups = {"settings": ["agents.prover.shared_model_group=talkers"]}
    episode = await play(engine, config_of(taskset=groups, train_group="talkers"))
    assert {t.agent.name: t.agent.trainable for t in episode.traces} == {
        "prover": True,
        "verifier": False,
    }
    groups = {t.agent.name: t.info["nip"]["model_group"] for t in episode.traces}
    assert groups == {"prover": "talkers", "verifier": "verifier"}


async def test_nothing_of_a_failed_episode_is_trained(tokenizer):
    few = {"settings": ["agents._default.num_invalid_generation_retries=1"]}
    with token_engine(tokenizer, Answers(silent=True)) as engine:
        episode = await play(engine, config_of(taskset=few))
    assert episode.ok  # it was played, and is no error of anybody's machine
    for trace in episode.traces:
        assert not trace.agent.trainable and not trained_tokens(trace)
        assert trace.reward == 0 and trace.metrics["failed"] == 1
        assert trace.metrics["accuracy"] == 0
        assert "2 invalid answers" in trace.info["nip"]["episode"]["error"]


async def test_a_model_that_does_not_answer_is_an_error_of_the_episode():
    env = load_environment(protocol="adp", settings=["rollouts.transport_retries=0"])
    nobody = vf.EvalClientConfig(base_url="http://127.0.0.1:9/v1", api_key_var="NIP_NOT_SET")
    episode = await play_in_code(env, nobody, "policy")
    assert not episode.ok and [error.type for error in episode.errors] == ["ProviderError"]
    assert "prover: " in episode.errors[0].message and not any(t.ok for t in episode.traces)
    assert not any(trace.rewards for trace in episode.traces)


TELLING = """
from pathlib import Path

from nip_core.protocols import ACCEPT, AgentSpec
from nip_core.protocols.adp import AdpProtocol


class Telling(AdpProtocol):
    name = "telling"
    agents = {
        "teller": AgentSpec("Expert", stance=ACCEPT),
        "verifier": AgentSpec("Verifier", decides=True),
    }
    template_directory = Path(__file__).parent

    def active(self, round_, seed):
        return {"teller" if round_ == 0 else "verifier": ("main",)}
"""


async def test_agents_of_a_protocol_by_path_have_seats(engine, tmp_path):
    (tmp_path / "telling.py").write_text(TELLING)
    templates = Path(nip_core.__file__).parent / "scenarios/templates/v1/adp"
    for agent, file in {"teller": "prover.txt", "verifier": "verifier.txt"}.items():
        (tmp_path / f"{agent}.txt").write_text((templates / file).read_text())
    config = config_of(taskset={"protocol": f"{tmp_path}/telling.py:Telling"})
    episode = await play(engine, config)
    assert episode.ok and {t.agent.name for t in episode.traces} == {"teller", "verifier"}
    assert all(t.metrics["failed"] == 0 and t.agent.trainable for t in episode.traces)


async def test_a_limit_of_verifiers_fails_the_episode(engine):
    episode = await play(engine, config_of(verifier={"max_turns": 1}))
    verifier = next(t for t in episode.traces if t.agent.name == "verifier")
    assert verifier.stop_condition == "max_turns"
    assert all(not t.agent.trainable and t.metrics["failed"] == 1 for t in episode.traces)
