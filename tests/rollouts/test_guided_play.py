"""Guided agents: every call has the form of its turn, and no answer leaves it."""

import pytest
from in_memory import InMemory
from playing import agent_of, play, play_at, problems
from served_here import KEY, serve

from nip_base.spec import ServerSpec
from nip_core.evaluation.invalid import invalid_answers
from nip_core.game.answer_guide import write_guide
from nip_core.parameters import load_parameters
from nip_core.rollouts.plan import plan_episodes
from nip_core.trainers.expert_iteration import choose_examples


def settings(version="v1", guided=True, **more):
    agent = {
        "model_provider": "SelfHosted",
        "model_name": "m",
        "max_tokens_per_message": 120,
        "max_response_words": 20,
        "num_invalid_generation_retries": 3,
    }
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "interaction_protocol": "nip",
            "nip_protocol": {"max_message_rounds": 3},
            "code_validation": {"system_prompt_version": version},
            "rl": {"rollouts_per_iteration": None},
            "rollouts": {"failure_threshold": 1.0},
            "pure_text_ei": {"reward_threshold": -1.0},
            "agents": {"_default": agent, "verifier": {"guided_decoding": guided}},
            **more,
        }
    )


async def test_each_call_of_a_guided_agent_has_the_form_of_its_turn():
    said = {"verifier": ["Question: a?", "No idea.", "Decision: accept"], "prover": ["Answer: b"]}
    played = await play(settings(), lambda body: said[agent_of(body)].pop(0))
    game, asked = played.game, [body for body in played.server.bodies]
    forms = [game.form("verifier", round_, 0, []) for round_ in (0, 2)]
    grammars = [write_guide(form, 120, 30) for form in forms]
    assert grammars[0] != grammars[1]
    sent = [body.get("structured_outputs", {}).get("grammar") for body in asked]
    assert [agent_of(body) for body in asked] == ["verifier", "prover", "verifier", "verifier"]
    assert sent == [grammars[0], None, grammars[1], grammars[1]]


async def test_without_the_setting_nothing_is_sent():
    said = {"verifier": ["Question: a?", "Decision: accept"], "prover": ["Answer: b"]}
    played = await play(settings(guided=False), lambda body: said[agent_of(body)].pop(0))
    assert not any("structured_outputs" in body for body in played.server.bodies)


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_model_without_any_form_gives_no_invalid_answer_and_is_trained_as_it_played(
    tmp_path, version
):
    pytest.importorskip("llguidance")
    replies = tmp_path / "replies.yaml"
    replies.write_text(
        "default: [{text: 'accept, or reject?'}, {text: ''}, {text: 'I accept it'}]\n"
    )
    both = {"verifier": {"guided_decoding": True}, "prover": {"guided_decoding": True}}
    agents = settings(version).to_dict()["agents"]
    parameters = settings(version, agents={name: {**agents[name], **both[name]} for name in both})
    specs = plan_episodes(parameters, problems(6), "train", 0)
    spec = ServerSpec("deterministic", "m", replies=str(replies))
    async with serve(tmp_path / "state", spec=spec) as here:
        played = await play_at(f"{here.url}/v1", parameters, specs, model="m", key=KEY)
    tables = played.tables()
    assert invalid_answers(tables.generations) is None
    assert {row["outcome"] for row in played.episodes} == {"finished"}
    texts = {row["key"]: row["text"] for row in played.shard.generations}
    for agent in ("verifier", "prover"):
        for example in choose_examples(
            played.game, agent, 0, InMemory((tables,)), [agent]
        ).examples:
            learned = [m["content"] for m in example.messages if m["role"] == "assistant"]
            assert learned == [texts[key] for key in example.generations]


def test_who_cant_guide_and_who_trains_on_every_token_refuses_the_setting():
    base = {"guided_decoding": True, "model_name": "gpt-4o"}
    with pytest.raises(
        ValueError, match=r"guided_decoding: model_provider OpenAI takes no grammar"
    ):
        settings(agents={"_default": base})
    grpo = {"trainer": "pure_text_grpo", "pure_text_grpo": {"group_size": 1, "baseline": "role"}}
    own = {"model_provider": "SelfHosted", "model_name": "m", "fine_tune_from_scratch": False}
    with pytest.raises(ValueError, match=r"guided_decoding: trainer 'pure_text_grpo' trains on"):
        settings(agents={"_default": {**own, "guided_decoding": True}}, **grpo)
