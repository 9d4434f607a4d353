"""What each agent sees, message by message."""

from nip_core.agents.render import Game, Situation, Turn
from nip_core.parameters import load_parameters


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
        result.append(Turn(r, agent, text, table.parse(agent, r, 5, text)))
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


def test_rows_give_the_same_turns_as_play_and_leave_out_invalid_answers():
    table = game()
    rows = [
        {"round": 1, "agent": "prover", "text": "Answer: b", "invalid_reason": None},
        {"round": 0, "agent": "verifier", "text": "", "invalid_reason": "empty answer"},
        {"round": 0, "agent": "verifier", "text": "Question: a", "invalid_reason": None},
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
