"""What each agent sees, message by message; and that what is trained is what was asked."""

from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_core.game.render import Game, Situation, Turn
from nip_core.parameters import load_parameters
from nip_core.protocols import Move


def game(**settings):
    return Game(
        load_parameters(
            {
                "run_name": "a",
                "dataset": "x",
                "nip_protocol": {"max_message_rounds": 3},
                "code_validation": {"system_prompt_version": "short"},
                **settings,
            }
        )
    )


SITUATION = Situation("Return x plus 1.", "def f(x):\n    return x + 2", None, 5)


def turns(table, *texts):
    result = []
    for r, text in enumerate(texts):
        agent = next(iter(table.protocol.active(r, 5)))
        result.append(Turn(r, agent, text, table.parse(agent, r, 5, text, result)))
    return result


def shapes(chat):
    return [(m["role"], m.get("name"), m["content"]) for m in chat[1:]]


def test_the_first_call_is_the_system_prompt_alone():
    table = game()
    chat = table.render("verifier", SITUATION, [], 0)
    assert [m["role"] for m in chat] == ["system"]
    assert SITUATION.question in chat[0]["content"] and SITUATION.solution in chat[0]["content"]


def test_each_agent_sees_its_own_text_as_assistant_and_others_by_name():
    table = game()
    said = turns(table, "Question: why?", "Answer: because")
    assert shapes(table.render("prover", SITUATION, said[:1], 1)) == [
        ("user", "Verifier", "Question: why?")
    ]
    assert shapes(table.render("verifier", SITUATION, said, 2)) == [
        ("assistant", None, "Question: why?"),
        ("user", "Expert", "Answer: because"),
        ("system", None, "No more questions. Decide now."),
    ]


def test_after_the_verdict_the_chat_ends_with_it_and_the_prover_does_not_see_it():
    table = game()
    said = turns(table, "Question: why?", "Answer: because", "Decision: reject")
    assert shapes(table.render("verifier", SITUATION, said, 2))[-1] == (
        "assistant",
        None,
        "Decision: reject",
    )
    assert shapes(table.render("prover", SITUATION, said, 2)) == [
        ("user", "Verifier", "Question: why?"),
        ("assistant", None, "Answer: because"),
    ]


def test_a_round_without_a_visible_message_does_not_cut_the_history():
    table = game(nip_protocol={"max_message_rounds": 5, "min_message_rounds": 5})
    said = turns(table, "Decision: accept", "Answer: one", "Question: two?", "Answer: three")
    assert shapes(table.render("prover", SITUATION, said[:3], 3)) == [
        ("assistant", None, "Answer: one"),
        ("user", "Verifier", "Question: two?"),
    ]


class Row(NamedTuple):
    """What a turn is made of."""

    round: int
    agent: str
    text: str
    invalid_reason: str | None
    token_logprobs: None = None
    exchange: int = 0
    tool_result: str | None = None


def test_rows_give_the_same_turns_as_play_and_leave_out_invalid_answers():
    table = game()
    rows = [
        Row(1, "prover", "Answer: b", None),
        Row(0, "verifier", "", "empty answer"),
        Row(0, "verifier", "Question: a", None),
    ]
    assert table.turns(rows, 5) == turns(table, "Question: a", "Answer: b")


def test_prompts_tell_what_really_is_rewarded():
    full = {"code_validation": {"system_prompt_version": "v1"}}
    opposed = game(**full)
    shared = game(**full, protocol_common={"shared_reward": True})
    prompt = opposed.render("prover", SITUATION, [], 0)[0]["content"]
    assert "convince it to accept" in prompt and "$" not in prompt
    assert "convince" not in shared.render("prover", SITUATION, [], 0)[0]["content"]
    drawn = Situation("q", "s", 0, 1)
    assert "convince it to reject" in opposed.render("prover", drawn, [], 0)[0]["content"]
    assert "should reject" in opposed.render("verifier", drawn, [], 0)[0]["content"]


# The law: cut before an answer, the chat of the whole episode is the chat that was asked for then.

PROTOCOLS = (
    ("nip", False),
    ("adp", False),
    ("solo_verifier", False),
    ("debate", False),
    ("mnip", False),
    ("merlin_arthur", False),
    ("multi_channel_test", False),
    ("refereed", False),
    ("nip", True),
    ("debate", True),
    ("merlin_arthur", True),
)


def any_game(name, zero_knowledge, supervisor, chat_format, *, first=True, sequential=False):
    rounds = {"max_message_rounds": 7 if first else 6, "min_message_rounds": 2}
    return game(
        interaction_protocol=name,
        protocol_common={"zero_knowledge": zero_knowledge, "verifier_first": first},
        nip_protocol=rounds,
        debate_protocol=rounds | {"sequential": sequential},
        mnip_protocol=rounds | {"sequential": sequential},
        refereed_protocol=rounds,
        agents={"_default": {"use_supervisor_message": supervisor, "chat_format": chat_format}},
    )


def play(table, situation, random):
    """An episode with random texts: all turns, and every chat that was asked for."""
    protocol, seed = table.protocol, situation.seed
    said, asked = [], {}
    for r in range(protocol.max_message_rounds):
        now = []
        for agent in protocol.movers(r, seed, said):
            chat = table.render(agent, situation, said, r)
            if protocol.is_prover(agent) and random.random() < 0.2:
                continue  # no valid answer: silent in this round
            form = table.form(agent, r, seed, said)
            text = f"{agent} in {r}"
            move = Move({c: f"{text} on {c}" for c in form.channels})
            if form.scale is not None and random.random() < 0.3:
                move = Move(decision=random.randrange(2))
            asked[agent, r] = chat
            now.append(Turn(r, agent, text, move))
        said += now
        result = protocol.judge(r, seed, 1, situation.stance, said)
        if result.done or result.terminated:
            break
    return said, asked


@pytest.mark.parametrize(("name", "zero_knowledge"), PROTOCOLS)
@settings(max_examples=25)
@given(
    supervisor=st.sampled_from(("none", "all", "first", "all_but_first")),
    chat_format=st.sampled_from(("named", "alternating", "alternating_no_system")),
    first=st.booleans(),
    sequential=st.booleans(),
    draw=st.integers(0, 10**6),
)
def test_what_is_trained_is_what_was_asked(
    name, zero_knowledge, supervisor, chat_format, first, sequential, draw
):
    table = any_game(
        name, zero_knowledge, supervisor, chat_format, first=first, sequential=sequential
    )
    situation = Situation(SITUATION.question, SITUATION.solution, None, draw)
    said, asked = play(table, situation, Random(draw))
    for agent in {turn.agent for turn in said}:
        whole = table.render(agent, situation, said, max(turn.round for turn in said))
        own = [turn for turn in said if turn.agent == agent]
        places = [i for i, m in enumerate(whole) if m["role"] == "assistant"]
        assert [whole[i]["content"] for i in places] == [turn.text for turn in own]
        for turn, place in zip(own, places, strict=True):
            assert whole[:place] == asked[agent, turn.round]
            assert chat_format == "named" or whole[place - 1]["role"] == "user"


@pytest.mark.parametrize("chat_format", ["named", "alternating", "alternating_no_system"])
def test_anonymous_provers_have_no_name_anywhere(chat_format):
    for zero_knowledge in (False, True):
        table = any_game("merlin_arthur", zero_knowledge, "none", chat_format)
        channel = table.protocol.channels[0]
        said = [Turn(0, "prover1", "Look.", Move({channel: "Look."}))]
        chat = table.render("verifier", SITUATION, said, 1)
        assert chat[-1]["content"].endswith("Look.")
        assert all("name" not in m and "Expert_" not in m["content"] for m in chat)
