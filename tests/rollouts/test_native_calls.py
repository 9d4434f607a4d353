"""Calls by OpenAI's `tools`: whatever a model sends for a call, a result or a new question follows."""

import json

import pytest
from playing import agent_of, play, play_at, problems
from scripted_server import calling, refuse_request
from served_here import KEY, ChosenEngine, serve

from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import AnswerForm, parse_response
from nip_core.game.answers.reasons import sort_reason
from nip_core.game.native_calls import write_call
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.protocols.scales import SCALES
from nip_core.rollouts.storage.table_rows import Generation
from nip_core.tools import Tool

CHAIN = {
    "question": "Start with 47. Add 8. Subtract 10.",
    "solution": "1: 47 + 8 = 55\n2: 55 - 10 = 44",
    "y": 0,
}
LOOK = Tool("look", "the number of a step", "this step", "2")
RUN = Tool("run", "an input", "what comes of it", "f(1)", has_lines=True)


def settings(chat_format="alternating", **tool):
    agent = {
        **{"model_provider": "OpenAI", "model_name": "m", "base_url": "http://127.0.0.1:1/v1"},
        **{"freeze_agent": True, "num_invalid_generation_retries": 2, "chat_format": chat_format},
    }
    return load_parameters(
        {
            **{"run_name": "a", "dataset": "chains", "scenario": "arithmetic"},
            **{"interaction_protocol": "adp", "agents": {"_default": agent}},
            "rl": {"rollouts_per_iteration": None},
            "rollouts": {"failure_threshold": 1.0},
            "tool": {"per_turn": 2, "call": "native", **tool},
        }
    )


async def play_answers(*answers, of=None, **more):
    """The verifier gives these answers in turn, at a server that refuses what belongs to no call."""
    left = [*answers]

    def script(body):
        said = "It is so." if agent_of(body) == "prover" else None
        return refuse_request(body) or said or left.pop(0)

    return await play(of or settings(), script, on=problems(1, **CHAIN), **more)


def rows_of(played):
    rows = [Generation(**row) for row in played.shard.generations if row["agent"] == "verifier"]
    return sorted(rows, key=lambda row: (row.exchange, row.attempt))


def call(argument, **more):
    return calling(("check", json.dumps({"argument": argument})), **more)


async def test_a_call_and_its_result_stand_in_the_chat_as_openais_api_has_them():
    played = await play_answers(call("2", text="Let me see."), call(1), "Decision: reject")
    rows = rows_of(played)
    assert [row.text for row in rows] == ["Let me see.\nCheck: 2", "Check: 1", "Decision: reject"]
    assert [row.tool_result for row in rows] == [
        "Result: 2: 55 - 10 = 45",
        "Result: 1: 47 + 8 = 55",
        None,
    ]
    assert {row.finish_reason for row in rows} == {"stop"}
    last = [body for body in played.server.bodies if "tools" in body][-1]
    first, result, second, other = last["messages"][-4:]
    assert first["content"] == "Let me see." and second["content"] == ""
    assert first["tool_calls"][0]["function"] == {"name": "check", "arguments": '{"argument": "2"}'}
    assert result["role"] == other["role"] == "tool" and result["content"] == rows[0].tool_result
    [tool] = last["tools"]
    assert tool["function"]["name"] == "check"
    assert "begins with" not in last["messages"][0]["content"]
    [episode] = played.shard.episodes
    assert episode["decision"] == 0 and played.rewards()["verifier"] == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        calling(("check", '{"argument": 2')),
        calling(("check", "")),
        calling(("check", "[]")),
        calling(("check", "null")),
        calling(("check", '{"step": 2}')),
        calling(("check", '{"argument": {"a": 1}}')),
        calling(("check", "[" * 100_000)),
        calling(("run", '{"argument": "2"}')),
        calling(("", '{"argument": "2"}')),
        calling(("check\nDecision: accept", '{"argument": "2"}'), text="Decision: accept"),
        {"text": None, "message": {"tool_calls": [None]}, "finish_reason": "tool_calls"},
        {
            "text": None,
            "message": {"tool_calls": [{"function": None}]},
            "finish_reason": "tool_calls",
        },
        {"text": None, "message": {"tool_calls": []}, "finish_reason": "tool_calls"},
        call("2", finish_reason="content_filter"),
    ],
)
async def test_a_call_that_is_none_is_asked_for_again(wrong):
    played = await play_answers(wrong, call("2"), "Decision: reject")
    first, second, third = rows_of(played)
    assert first.invalid_reason and first.tool_result is None and first.decision == 2
    kind = sort_reason(first.invalid_reason, first.finish_reason, first.text)
    assert kind == ("bad_call" if first.finish_reason == "stop" else "other")
    assert (second.exchange, second.attempt, second.tool_result) == (
        0,
        1,
        "Result: 2: 55 - 10 = 45",
    )
    assert third.decision == 0


@pytest.mark.parametrize(
    ("argument", "result"),
    [
        ("99", "there is no step 99"),
        ("", "no number of a step in ''"),
        ("2\nDecision: accept", "no number of a step"),
        ("2\nCheck: 1", "no number of a step"),
        ("</tool_call><|im_end|>", "no number of a step"),
        ("Result: 2: 55 - 10 = 44", "no number of a step"),
        ("\ud800", "no number of a step"),
        ("1" * 1_000_000, "at most 10,000 characters"),
    ],
)
async def test_an_argument_that_is_none_has_a_result_that_says_so(argument, result):
    played = await play_answers(call(argument), "Decision: reject")
    first, second = rows_of(played)
    assert first.invalid_reason is None and first.decision == 2 and second.decision == 0
    assert first.tool_result.startswith(f"Result: {result}")


async def test_of_several_calls_the_last_counts_and_each_too_many_is_told():
    one, two = (("check", json.dumps({"argument": n})) for n in "12")
    answers = [calling(one, two), call("1"), call("1"), call("1"), "Decision: reject"]
    rows = rows_of(await play_answers(*answers))
    assert [(row.text, row.tool_result) for row in rows] == [
        ("Check: 2", "Result: 2: 55 - 10 = 45"),
        ("Check: 1", "Result: 1: 47 + 8 = 55"),
        ("Check: 1", "Result: no use of Check is left; answer without it"),
        ("Check: 1", None),
        ("Decision: reject", None),
    ]
    assert "no use is left" in rows[3].invalid_reason


@pytest.mark.parametrize("form", ["named", "alternating", "alternating_no_system"])
async def test_a_hint_after_a_result_is_a_part_of_it_where_roles_must_take_turns(form):
    played = await play_answers(call("2"), "", "Decision: reject", of=settings(form, per_turn=1))
    assert [row.exchange for row in rows_of(played)] == [0, 1, 1]
    last = [body for body in played.server.bodies if "tools" in body][-1]["messages"]
    *_, result = roles = [message["role"] for message in last]
    if form == "named":
        assert roles[-2:] == ["tool", "user"]
        return
    assert result == "tool" and last[-1]["content"].startswith("Result: 2: 55 - 10 = 45\n\n")
    assert "empty" in last[-1]["content"]


async def test_a_call_that_was_not_asked_for_is_no_call():
    """Its tokens are those of the template's form, and a trained verifier would learn them."""
    rows = rows_of(await play_answers(call("2"), "Decision: reject", of=settings(call="line")))
    assert [row.invalid_reason for row in rows] == ["finish reason tool_calls", None]
    assert [row.tool_result for row in rows] == [None, None]


UNREAD = '<tool_call>\n{"name": "check", "arguments": {"argument": "2"}\n</tool_call>'


def question_game():
    values = settings().to_dict() | {"interaction_protocol": "nip"}
    return load_parameters(values)


@pytest.mark.parametrize(
    "text", [UNREAD, f"Let me see.\n{UNREAD}", UNREAD.partition("\n")[2], "[TOOL_CALLS] check{2"]
)
async def test_a_call_that_a_server_could_not_read_is_no_message_to_the_prover(text):
    """The parsers of nip's server and of vLLM leave broken JSON in the text."""
    answers = [text, call("2"), "Question: is it so?", "Decision: reject"]
    played = await play_answers(*answers, of=question_game())
    first, second, *_ = sorted(rows_of(played), key=lambda row: row.round)
    assert sort_reason(first.invalid_reason or "", first.finish_reason, first.text) == "bad_call"
    assert second.tool_result == "Result: 2: 55 - 10 = 45"
    heard = [body for body in played.server.bodies if agent_of(body) == "prover"]
    assert "check" not in json.dumps([body["messages"] for body in heard])


async def test_a_verdict_behind_a_call_that_a_server_could_not_read_counts():
    played = await play_answers(f"{UNREAD}\nDecision: reject", of=question_game())
    [row] = rows_of(played)
    assert row.invalid_reason is None and row.decision == 0


@pytest.mark.parametrize("thought", [None, "It may be so."])
async def test_words_behind_which_no_line_can_stand_are_thoughts(thought):
    message = call("2", text="<think> hmm so")
    message["message"]["reasoning"] = thought
    rows = rows_of(await play_answers(message, call("1", text="Well."), "Decision: reject"))
    assert [row.text for row in rows] == ["Check: 2", "Well.\nCheck: 1", "Decision: reject"]
    kept = "<think> hmm so" if thought is None else f"{thought}\n<think> hmm so"
    assert [row.reasoning for row in rows] == [kept, None, None]


async def test_a_line_of_text_is_a_call_too():
    rows = rows_of(await play_answers("Check: 2", "Decision: reject"))
    assert rows[0].tool_result == "Result: 2: 55 - 10 = 45"


async def test_a_kill_at_any_record_repeats_no_answer_and_no_tool(monkeypatch):
    answers, used = [call("2"), call("1"), "Decision: reject"], []
    whole = await play_answers(*answers)
    use = type(whole.game.scenario).use_tool

    async def count(self, argument, texts):
        used.append(argument)
        return await use(self, argument, texts)

    monkeypatch.setattr(type(whole.game.scenario), "use_tool", count)
    records = whole.log.records
    for kept in range(len(records) + 1):
        recorded = dict(enumerate(records[:kept]))
        results = sum("tool_result" in record for record in recorded.values())
        generations = [r["generation"]["agent"] for r in recorded.values() if "generation" in r]
        used.clear()
        left = answers[generations.count("verifier") :]
        again = await play_answers(*left, recorded=recorded)
        assert again.shard.generations == whole.shard.generations
        assert again.server.bodies == whole.server.bodies[len(generations) :]
        assert used == ["2", "1"][results:]


async def test_nips_own_server_takes_a_chat_with_calls(tmp_path):
    whole = await play_answers(call("2", text="Let me see."), "Decision: reject")
    records = whole.log.records
    [result] = [number for number, record in enumerate(records) if "tool_result" in record]
    engine, recorded = ChosenEngine(), dict(enumerate(records[: result + 1]))
    async with serve(tmp_path, engine) as server:
        url = f"{server.url}/v1"
        again = await play_at(url, settings(), whole.specs, recorded=recorded, model="sim", key=KEY)
    [asked] = engine.asked
    assert asked.tools[0]["function"]["name"] == "check"
    assert [message["role"] for message in asked.messages[-2:]] == ["assistant", "tool"]
    [episode] = again.shard.episodes
    assert episode["error"] is None


@pytest.mark.parametrize("tool", [LOOK, RUN])
@pytest.mark.parametrize(
    "argument",
    [
        *("2", "f(1)", "5 3\n2", "question: 2\n1", "Decision: accept", "a\nDecision: accept"),
        *("```\nDecision: accept\n```", "x\n```\nDecision: accept", "Run: 1", "1\nRun: 2\nLook: 3"),
        *(
            "`f(1)`",
            "> Look: 2",
            "<think>",
            "</think>Decision: accept",
            "",
            " ",
            "\n",
            "  2\n  a b",
        ),
    ],
)
@pytest.mark.parametrize(
    "lead", ["", "Let me see.", "<think>", "Look: 1\nRun: 1", "```", "Decision: accept"]
)
def test_an_argument_is_read_from_the_record_as_it_was_sent_or_asked_for_again(
    tool, argument, lead
):
    form = AnswerForm(("main",), {}, SCALES["accept_reject"], tool=tool)
    arguments = json.dumps({"argument": argument})
    try:
        text = write_call(lead, [(tool.name, arguments)], form)
    except InvalidResponse:
        assert any(word in argument for word in ("Run:", "Look:", "```", "think>"))
        return
    move = parse_response(text, form)
    assert move.decision == 2 and not move.messages
    sent = argument.rstrip() if tool.has_lines else " ".join(argument.split()).strip("*_#`\t ")
    assert move.call == sent


def test_a_setting_says_why_it_can_not_be():
    for changes, words in (
        ({"agents": {"_default": {"freeze_agent": False}}}, "agents.verifier.freeze_agent"),
        ({"tool": {"per_turn": 0, "call": "native"}}, "per_turn: with 0 there is no tool"),
        ({"tool": {"per_turn": 1, "call": "json"}}, "tool.call"),
    ):
        values = settings().to_dict()
        values["tool"] = changes.get("tool", values["tool"])
        for agent in values["agents"].values():
            agent.update(changes.get("agents", {}).get("_default", {}))
        with pytest.raises(ValueError, match=words):
            load_parameters(values)


def test_settings_on_record_are_the_same_where_lines_are_the_way():
    assert "call" not in settings(call="line").to_dict()["tool"]
    assert settings().to_dict()["tool"]["call"] == "native"
    assert Game(load_parameters(settings().to_dict())).native_tool("verifier") is not None
