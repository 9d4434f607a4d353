"""Whoever is asked again is told what was wrong, in fixed words, and nothing else changes."""

import ast
import json
from pathlib import Path

import pytest
from playing import agent_of, play
from stored_rows import typed_generations

from nip_core.evaluation.episode_transcripts import transcript_of
from nip_core.game.answer_rows import place_of
from nip_core.game.answers import reasons
from nip_core.game.answers.reasons import KINDS, sort_reason
from nip_core.game.render import Game, make_situation
from nip_core.parameters import load_parameters
from nip_view.episode_page import _render_chats

ROOT = Path(__file__).parents[2]


def settings(hint=True, version="v1", chat_format="named", **more):
    agent = {
        "model_provider": "SelfHosted",
        "model_name": "m",
        "max_tokens_per_message": 40,
        "num_invalid_generation_retries": 3,
        "chat_format": chat_format,
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
            "agents": {"_default": {**agent, "retry_hint": hint}},
            **more,
        }
    )


def in_turn(**texts):
    """Each agent says its next text, whichever of its calls it is."""
    left = {agent: list(said) for agent, said in texts.items()}
    return lambda body: left[agent_of(body)].pop(0)


VERIFIER = ["Question: a?", "Decision: maybe", "So reject, or accept", "Decision: reject"]


def chats(played, agent="verifier"):
    return [body["messages"] for body in played.server.bodies if agent_of(body) == agent]


async def test_a_retry_is_told_what_was_wrong_behind_the_same_chat():
    played = await play(settings(), in_turn(verifier=VERIFIER, prover=["", "Answer: b"]))
    _, first, second, third = chats(played)
    assert second[:-1] == third[:-1] == first
    assert second[-1] == {
        "role": "user",
        "content": "Your answer to this, which is not shown here, could not be used: it was not "
        "clear what it decides. Write exactly one of the lines "
        '"Decision: accept" and "Decision: reject" and nothing else.',
    }
    asked, again = chats(played, "prover")
    assert again == [
        *asked,
        {
            "role": "user",
            "content": "Your answer to this, which is not shown here, could not be used: it was "
            "empty. Answer again, in the form that your instructions ask for.",
        },
    ]
    assert played.episodes[0]["decision"] == 0
    rows = played.generations()
    assert [body["seed"] for body in played.server.bodies] == [
        played.seed("p0", row["round"], row["agent"], row["attempt"]) for row in rows
    ]


async def test_without_the_setting_a_retry_has_the_same_chat():
    played = await play(settings(hint=False), in_turn(verifier=VERIFIER, prover=["", "Answer: b"]))
    _, first, second, third = chats(played)
    assert first == second == third


async def test_no_later_chat_and_no_training_example_has_the_hint_or_the_invalid_answer():
    said = ["Decision: maybe", "Question: a?", "Decision: accept"]
    hinted = await play(settings(), in_turn(verifier=said, prover=["", "Answer: b"]))
    plain = await play(settings(), in_turn(verifier=said[1:], prover=["Answer: b"]))
    assert chats(hinted)[-1] == chats(plain)[-1]
    spec, game = hinted.specs[0], hinted.game
    turns = game.turns(hinted.answers(), spec.seed)
    situation = make_situation(spec.problem, spec.stance, spec.seed)
    # What trainers render: the chats without `wrong`.
    assert game.render("verifier", situation, turns[:2], 2) == chats(plain)[-1]
    assert game.render("verifier", situation, [], 0) == chats(plain)[0]


async def test_a_run_that_was_killed_between_two_tries_goes_on_with_the_same_hint():
    whole = await play(settings(), in_turn(verifier=VERIFIER, prover=["Answer: b"]))
    kept = {
        record["generation"]["key"]: record
        for record in whole.log.records
        if record["generation"]["attempt"] == 0
    }
    left = whole.server.bodies[-2:]
    resumed = await play(settings(), in_turn(verifier=VERIFIER[2:]), recorded=kept)
    assert resumed.server.bodies == left
    assert resumed.generations() == whole.generations()


async def test_the_hint_of_every_call_follows_from_the_tables():
    played = await play(settings(), in_turn(verifier=VERIFIER, prover=["", "Answer: b"]))
    spec, game = played.specs[0], played.game
    rows = typed_generations(json.loads(json.dumps(played.generations())))
    hints = game.find_mistakes(rows)
    turns = game.turns(played.answers(), spec.seed)
    situation = make_situation(spec.problem, spec.stance, spec.seed)
    for row, body in zip(rows, played.server.bodies, strict=True):
        place = place_of(row)
        chat = game.render_at(place, situation, turns, hints.get(place))
        assert chat == body["messages"]


async def test_transcripts_and_the_viewer_show_with_what_each_answer_was_asked_for():
    played = await play(settings(), in_turn(verifier=VERIFIER, prover=["", "Answer: b"]))
    tables, (episode,) = played.tables(), played.episodes
    shown, rows = transcript_of(episode["key"], tables.episodes, tables.generations, played.game)
    hints = [m["messages"][-1]["content"] for m in played.server.bodies]
    told = {(m.agent, m.round, m.attempt): m.told for m in shown.messages}
    assert told["prover", 1, 0] is None
    assert [told[place] for place in (("prover", 1, 1), ("verifier", 2, 1), ("verifier", 2, 2))] == [
        hints[2], hints[4], hints[5],
    ]  # fmt: skip
    chats_by_key, _ = _render_chats(played.typed.episodes[0], rows, played.game)
    assert [list(chats_by_key[row.key][0]) for row in rows] == [
        body["messages"] for body in played.server.bodies
    ]


async def test_in_a_strict_chat_the_hint_is_the_supervisors():
    played = await play(
        settings(chat_format="alternating"), in_turn(verifier=VERIFIER, prover=["Answer: b"])
    )
    _, first, second, _ = chats(played)
    assert len(first) == len(second)
    assert second[-1]["content"].startswith(
        first[-1]["content"] + "\n\nSupervisor: Your answer to this"
    )


@pytest.mark.parametrize("version", ["v1", "v2", "short"])
@pytest.mark.parametrize("protocol", ["nip", "debate", "mnip", "solo_verifier", "merlin_arthur"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_hint_names_a_form_that_is_read(kind, protocol, version):
    more = {"nip_protocol": {}} if protocol != "nip" else {}
    if protocol == "solo_verifier":
        more["agents"] = {"_default": {"model_name": "m"}}
    game = Game(settings(version=version, interaction_protocol=protocol, **more))
    last = game.protocol.max_message_rounds - 1
    for round_ in (0, last):
        for agent, channels in game.protocol.movers(round_, 0, []).items():
            words = game.hint(agent, round_, 0, [], kind)
            form = game.form(agent, round_, 0, [])
            assert words.isprintable() and len(words) < 400
            if form.scale is None:
                assert "Decision" not in words
            elif reasons.is_about_decision(kind) or form.must_decide:
                assert '"Decision: accept"' in words
            assert all(h in words for h in form.headers.values()) or form.must_decide
            assert channels == form.channels


@pytest.mark.parametrize(("version", "told"), [("v1", True), ("v4", True), ("short", False)])
def test_by_default_models_that_follow_instructions_are_told(version, told):
    parameters = settings(hint=None, version=version)
    assert [parameters.gives_hint(name) for name in parameters.model_agents] == [told, told]
    chosen = settings(hint=not told, version=version)
    assert [chosen.gives_hint(name) for name in chosen.model_agents] == [not told] * 2


# The kinds.


def reasons_in_the_code():
    """Texts with which answers are refused: arguments of InvalidResponse and its kinds."""
    for path in sorted((ROOT / "nip_core" / "game").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if named and node.func.id in ("InvalidResponse", "InvalidDecision", "MissingPart"):
                (text,) = node.args
                if isinstance(text, ast.JoinedStr):
                    parts = [getattr(part, "value", None) for part in text.values]
                    yield "".join(p if isinstance(p, str) else "100" for p in parts)
                elif isinstance(text, ast.Constant):
                    yield text.value


def test_every_reason_of_the_parser_has_a_kind():
    found = {reason: sort_reason(reason) for reason in reasons_in_the_code()}
    others = {reason for reason, kind in found.items() if kind == "other"}
    assert len(found) >= 15
    assert others == {"half a surrogate pair at character 100"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Question: why?", "no_decision"),
        ("Decision: accept\nDecision: reject", "two_verdicts"),
        ("Decision: accept or reject", "two_verdicts"),
        ("Decision: accept, if n > 0", "taken_back"),
        ("Decision: accept? Hm", "taken_back"),
        ("Decision: accept\nWait, no.", "taken_back"),
        ("You wrote:\nDecision: accept", "not_own"),
        ('{"decision": "accept", "reason": "but reject"}', "json"),
        ("Decision: maybe", "unclear"),
        ("", "empty"),
    ],
)
async def test_an_answer_is_invalid_for_the_reason_that_a_reader_would_give(text, kind):
    played = await play(
        settings(), in_turn(verifier=["Question: a?", text, "Decision: accept"], prover=["b"])
    )
    invalid = played.generations()[2]
    assert sort_reason(invalid["invalid_reason"], "stop", invalid["text"]) == kind


def test_what_was_cut_off_is_called_that():
    assert sort_reason("a verdict that is not clear", "length") == "cut_off"
    assert sort_reason("anything else", "content_filter") == "other"


def test_the_hint_of_an_answer_that_was_cut_off_names_the_limit():
    words = Game(settings()).hint("prover", 1, 0, [], "cut_off")
    assert "cut off at 40 tokens, so be much shorter" in words
