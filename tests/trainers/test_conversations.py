"""Answers that were given after hints: each is trained behind the chat that asked for it."""

from collections import Counter

import pyarrow.parquet as pq
import pytest
from handmade import ACCEPT, Rollouts, choice, choose, make_game
from playing import agent_of, play, problems
from varied_games import GAMES, reply

from nip_core.errors import SettingsError
from nip_core.game.answer_rows import AnswerPlace
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.trainers.dataset import write_examples


def settings(train_hints="keep", agents=None, **changes):
    every = (agents or {}).get("_default", {})
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "rl": {"rollouts_per_iteration": None},
            "pure_text_ei": {"reward_threshold": -9.0},
            "nip_protocol": {"max_message_rounds": 5},
            "code_validation": {"system_prompt_version": "v1"},
            **changes,
            "agents": {
                **(agents or {}),
                "_default": {
                    "model_provider": "SelfHosted",
                    "model_name": "m",
                    "retry_hint": True,
                    "train_hints": train_hints,
                    **every,
                },
            },
        }
    )


def list_learned(example):
    """(prompt, answer) of all messages that the trainer on the server learns."""
    weights = example.weights or [1] * len(example.messages)
    return [
        (list(example.messages[:i]), message["content"])
        for i, message in enumerate(example.messages)
        if message["role"] == "assistant" and weights[i]
    ]


async def played_with(parameters, count=20):
    return await play(parameters, reply, on=problems(count))


def asked_for(played):
    """By generation key, the chat that asked for it."""
    bodies = {(agent_of(body), body["seed"]): body["messages"] for body in played.server.bodies}
    specs = {spec.key: spec for spec in played.specs}
    chats = {}
    for row in played.shard.generations:
        place = (row["round"], row["agent"], row["attempt"])
        seed = specs[row["episode"]].generation_seed(played.parameters.seed, AnswerPlace(*place))
        if (row["agent"], seed) in bodies:
            chats[row["key"]] = bodies[row["agent"], seed]
    return chats


@pytest.mark.parametrize("name", list(GAMES))
async def test_every_answer_is_learned_once_behind_the_very_chat_that_asked_for_it(name):
    parameters = settings(**{"code_validation": {"system_prompt_version": "v1"}, **GAMES[name]})
    played = await played_with(parameters)
    asked, tables = asked_for(played), played.tables()
    rows = {row["key"]: row for row in played.shard.generations}
    valid = {key: row for key, row in rows.items() if row["invalid_reason"] is None}
    hinted = 0
    for group in parameters.groups:
        examples = choose(played.game, group, 0, tables.episodes, tables.generations)
        learned = Counter()
        for example in examples:
            pairs = list_learned(example)
            assert len(pairs) == len(example.generations)
            for (prompt, answer), key in zip(pairs, example.generations, strict=True):
                assert prompt == asked[key] and answer == rows[key]["text"]
                learned[key] += 1
            # What is not learned stands before something that is.
            assert example.messages[-1] == {"role": "assistant", "content": pairs[-1][1]}
            hinted += example.weights is not None
        assert len({example.key for example in examples}) == len(examples)
        assert learned == Counter(k for k, row in valid.items() if row["agent"] == group)
    assert hinted


def in_turn(**texts):
    left = {agent: list(said) for agent, said in texts.items()}
    return lambda body: left[agent_of(body)].pop(0)


async def one_episode(verifier, **changes):
    parameters = settings(nip_protocol={"max_message_rounds": 3}, **changes)
    played = await play(parameters, in_turn(verifier=verifier, prover=["Answer: b"]))
    tables = played.tables()
    return played, choose(played.game, "verifier", 0, tables.episodes, tables.generations)


HINT = "Your answer to this, which is not shown here, could not be used"


async def test_a_hint_stands_before_its_own_answer_and_in_no_chat_after_it():
    said = ["", "Question: a?", "Decision: accept"]
    played, (whole, behind) = await one_episode(said)
    first, second = [list_learned(e) for e in (whole, behind)]
    assert [answer for _, answer in first] == ["Decision: accept"]
    assert [answer for _, answer in second] == ["Question: a?"]
    assert whole.weights == (None, 0, None, None, 1)
    assert behind.weights == (None, None, 1)
    assert HINT in behind.messages[1]["content"]
    assert HINT not in str(whole.messages)
    # The invalid answer stood in no chat, and so it stands in no example.
    assert {m["content"] for e in (whole, behind) for m in e.messages}.isdisjoint({""})
    assert whole.tokens and behind.tokens
    assert (whole.episode, whole.reason, whole.reward) == (
        behind.episode, behind.reason, behind.reward,
    )  # fmt: skip
    assert [r["attempt"] for r in played.generations() if r["key"] in behind.generations] == [1]


async def test_the_chat_ends_with_the_last_answer_that_is_learned_in_it():
    _, examples = await one_episode(["Question: a?", "Decision: maybe", "Decision: accept"])
    whole, behind = examples
    assert [m["content"] for m in whole.messages][1:] == ["Question: a?"]
    assert behind.messages[-1]["content"] == "Decision: accept"
    assert [w for w in behind.weights if w is not None] == [0, 1]
    # And where every answer came after a hint there is no such chat.
    _, examples = await one_episode(["", "Question: a?", "Decision: maybe", "Decision: accept"])
    assert [[answer for _, answer in list_learned(e)] for e in examples] == [
        ["Question: a?"], ["Decision: accept"],
    ]  # fmt: skip


async def test_a_true_label_is_learned_for_the_chat_without_a_hint():
    _, examples = await one_episode(
        ["Question: a?", "Decision: maybe", "Decision: accept"],
        text_rl={"verifier_guess_replacement_proportion": 1.0},
    )
    (only,) = examples
    assert only.reason == "true_label" and only.weights is None
    assert only.messages[-1]["content"] == "Decision: reject"
    assert HINT not in str(only.messages)


async def test_thoughts_stand_before_the_answer_that_is_learned_and_no_other():
    played, _ = await one_episode(
        ["Question: a?", "Decision: maybe", "Decision: accept"],
        agents={"_default": {"train_reasoning": "keep"}},
    )
    tables = played.tables()
    column = tables.generations["key"].to_pylist()
    index = tables.generations.schema.get_field_index("reasoning")
    field = tables.generations.schema.field(index)
    thoughtful = tables.generations.set_column(index, field, [[f"thought {k}" for k in column]])
    whole, behind = choose(played.game, "verifier", 0, tables.episodes, thoughtful)
    for example in (whole, behind):
        (key,) = example.generations
        assert example.reasoning == (*[None] * (len(example.messages) - 1), f"thought {key}")


def test_equal_sides_are_one_only_if_they_were_asked_for_alike():
    texts = ["Question: a?", "Answer: b", ACCEPT]
    rollouts = Rollouts()
    for i, invalid in enumerate(([0], [0], [], [2])):
        rollouts.add(i, 1, texts, (1.0, 1.0), invalid=invalid)
        rollouts.episodes[-1] |= {"question": "Return x.", "solution": "x", "seed": 0}
    counts = {}
    for train_hints in ("drop", "keep"):
        agent = {"retry_hint": True, "train_hints": train_hints}
        game = make_game(ei={"deduplicate": True}, agents={"_default": agent})
        counts[train_hints] = len(choose(game, "verifier", 0, *rollouts.tables()))
    # By hints: after the first answer, after none, after the second; the first and last are two.
    assert counts == {"drop": 1, "keep": 2 + 1 + 2}


BEFORE = {
    "prover": "2b5413bb304d79592e8bfda11001a9c91761dbb329d6c76ae6efd31772ee3e80",
    "verifier": "6bd815f6511633377b278c5e996c29a5344e5966060354bcaae62634455ca040",
}
"""Digests of the version of nip that had hints and no such setting."""


async def test_without_the_setting_a_table_is_what_it_was_before_there_was_one(tmp_path):
    parameters = settings("drop")
    played = await played_with(parameters)
    tables, file = played.tables(), tmp_path / "examples"
    for agent, digest in BEFORE.items():
        chosen = choice(played.game, agent, 0, (tables.episodes, tables.generations))
        assert not chosen.has_weights
        examples = list(chosen.examples)
        assert HINT not in str([example.messages for example in examples])
        assert write_examples(file, "supervised", examples).digest == digest
        assert pq.read_schema(file).metadata[b"nip.schema_version"] == b"2"
        kept = choice(Game(settings()), agent, 0, (tables.episodes, tables.generations))
        assert kept.has_weights and len(list(kept.examples)) > len(examples)


# The setting


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"agents": {"_default": {"retry_hint": False}}}, r"\(retry_hint is off\)"),
        (
            {
                "agents": {"_default": {"retry_hint": None}},
                "code_validation": {"system_prompt_version": "short"},
            },
            'with prompts of version "short"',
        ),
        (
            {
                "trainer": "pure_text_grpo",
                "agents": {"_default": {"fine_tune_from_scratch": False}},
            },
            "as they were generated, after hints too",
        ),
    ],
)
def test_keeping_hints_is_refused_where_there_is_nothing_to_keep(changes, told):
    with pytest.raises(SettingsError, match=rf"agents\.prover\.train_hints: .*{told}"):
        settings(**changes)
    frozen = {"freeze_agent": True}
    every = {**changes["agents"]["_default"], **frozen}
    assert settings(**{**changes, "agents": {"_default": every}})
