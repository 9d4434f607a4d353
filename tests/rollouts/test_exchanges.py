"""A turn is a list of exchanges, calls of a tool and a move: each is in its place wherever an
episode is played or read."""

from functools import partial

import pyarrow as pa
import pytest
from in_memory import InMemory
from playing import agent_of, play, problems

from nip_core.costs.loads import AT_MOST, EXPECTED, reckon_episode_loads
from nip_core.evaluation.episode_transcripts import transcript_of
from nip_core.game.answer_rows import AnswerPlace, place_of
from nip_core.game.answers.reasons import USED_UP
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.rollouts.branching import Branching
from nip_core.rollouts.storage.row_tables import RolloutTables, canonical_digest
from nip_core.rollouts.storage.schema import GENERATIONS
from nip_core.rollouts.storage.table_rows import Generation, read_rows
from nip_core.showing.episodes.episode_rows import _render_asked
from nip_core.trainers.conversations import make_conversations
from nip_core.trainers.episodes import read_played
from nip_core.trainers.grpo import _find_valid_rows
from nip_core.trainers.malt import choose_pairs
from nip_view.episode_page import _render_chats

VERIFIER = ["Check: 1", "Question: b?", "I am not sure.\n**Check:** step 2.", "Decision: reject"]
PROVER = ["", "Answer: d"]
RESULTS = ["Result: 1: 47 + 8 = 55", None, None, None, "Result: 2: 55 - 10 = 45", None]
PLACES = [
    *(AnswerPlace(0, "verifier"), AnswerPlace(0, "verifier", exchange=1)),
    *(AnswerPlace(1, "prover"), AnswerPlace(1, "prover", attempt=1)),
    *(AnswerPlace(2, "verifier"), AnswerPlace(2, "verifier", exchange=1)),
]
REJECTS = ("Decision: accept", "Decision: reject")
CHAIN = {
    "question": "Start with 47. Add 8. Subtract 10.",
    "solution": "1: 47 + 8 = 55\n2: 55 - 10 = 44",
    "y": 0,
}


def settings(per_turn=2, **more):
    agent = {
        "model_provider": "SelfHosted",
        "model_name": "m",
        "max_tokens_per_message": 40,
        "num_invalid_generation_retries": 3,
        "retry_hint": True,
    }
    tool = {"tool": {"per_turn": per_turn}} if per_turn else {}
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "chains",
            "scenario": "arithmetic",
            "interaction_protocol": "nip",
            "nip_protocol": {"max_message_rounds": 3},
            "rl": {"rollouts_per_iteration": None},
            "rollouts": {"failure_threshold": 1.0},
            "agents": {"_default": agent},
            **tool,
            **more,
        }
    )


def in_turn(**texts):
    """Each agent says its next text, whichever of its calls it is."""
    left = {agent: list(answers) for agent, answers in texts.items()}
    return lambda body: left[agent_of(body)].pop(0)


async def play_two(**more):
    script = in_turn(verifier=VERIFIER, prover=PROVER)
    return await play(settings(), script, on=problems(1, **CHAIN), **more)


@pytest.fixture
async def played():
    return await play_two()


def rows_of(played):
    return [*read_rows(played.tables().generations, Generation)]


def said(messages):
    return [m["content"] for m in messages if m["role"] == "assistant"]


async def test_a_turn_has_its_exchanges_one_after_another_and_the_last_one_is_its_move(played):
    rows, [episode] = rows_of(played), played.episodes
    assert [place_of(row) for row in rows] == PLACES
    assert [row.text for row in rows] == [*VERIFIER[:2], *PROVER, *VERIFIER[2:]]
    assert [row.tool_result for row in rows] == RESULTS
    assert episode["decision"] == 0 and episode["outcome"] == "finished"
    seed = partial(played.specs[0].generation_seed, played.parameters.seed)
    assert [body["seed"] for body in played.server.bodies] == [seed(place) for place in PLACES]
    assert len({row.key for row in rows}) == len(PLACES)
    # Calls and their results stand in the chat of the agent that made them, and in no other one.
    bodies = [body["messages"] for body in played.server.bodies]
    assert [said(chat) for chat in bodies] == [[], VERIFIER[:1], [], [], VERIFIER[:2], VERIFIER[:3]]
    told = [[m["content"] for m in chat if m["content"].startswith("Result")] for chat in bodies]
    assert told == [[], RESULTS[:1], [], [], RESULTS[:1], [RESULTS[0], RESULTS[4]]]
    assert "b?" in bodies[2][-1]["content"] and "Check" not in str(bodies[2])
    assert "Your answer to this" in bodies[3][-1]["content"]
    system = bodies[0][0]["content"]
    assert "at most 2 times" in system and '"Check: 2"' in system


async def test_a_kill_at_any_record_repeats_no_answer_and_no_tool(played, monkeypatch):
    records = played.log.records
    assert len(records) == len(PLACES) + 2  # a call is on record before its result is
    used = []
    use = type(played.game.scenario).use_tool

    async def count(self, argument, texts):
        used.append(argument)
        return await use(self, argument, texts)

    monkeypatch.setattr(type(played.game.scenario), "use_tool", count)
    for done in range(len(records) + 1):
        recorded = dict(enumerate(records[:done]))
        results = sum("tool_result" in record for record in recorded.values())
        answers = done - results
        texts = {"verifier": [*VERIFIER], "prover": [*PROVER]}
        for place in PLACES[:answers]:
            texts[place.agent].pop(0)
        used.clear()
        resumed = await play(
            played.parameters, in_turn(**texts), recorded=recorded, on=problems(1, **CHAIN)
        )
        assert resumed.server.bodies == played.server.bodies[answers:]
        assert rows_of(resumed) == rows_of(played)
        assert used == ["1", "step 2."][results:]


async def test_a_second_exchange_has_a_key_and_a_seed_of_its_own_and_is_in_the_digest(played):
    place, [spec] = AnswerPlace(2, "verifier", 1), played.specs
    later = place._replace(exchange=1)
    assert spec.generation_key(place) != spec.generation_key(later)
    assert spec.generation_seed(7, place) != spec.generation_seed(7, later)
    tables = played.tables()
    episodes, generations = tables.episodes, tables.generations
    at, zeros = GENERATIONS.get_field_index("exchange"), [0] * generations.num_rows
    all_first = generations.set_column(at, GENERATIONS.field(at), pa.array(zeros, pa.int16()))
    before_the_column = canonical_digest(episodes, generations.drop_columns("exchange"))
    assert canonical_digest(episodes, all_first) == before_the_column
    assert canonical_digest(episodes, generations) != before_the_column


async def test_every_reader_shows_each_exchange_in_its_place(played):
    tables, [episode] = played.tables(), played.typed.episodes
    bodies = {
        row.key: body["messages"]
        for row, body in zip(rows_of(played), played.server.bodies, strict=True)
    }
    # 1. Transcripts: who was told what, and which answer went to a channel.
    shown, rows = transcript_of(episode.key, tables.episodes, tables.generations, played.game)
    assert [place_of(message) for message in shown.messages] == PLACES
    channels = [("main",) if place in (PLACES[1], PLACES[3]) else () for place in PLACES]
    assert [message.channels for message in shown.messages] == channels
    assert [message.tool_result for message in shown.messages] == RESULTS
    told = [place for place, m in zip(PLACES, shown.messages, strict=True) if m.told is not None]
    # A result, the hint, that the turn is the last, a result.
    assert told == [PLACES[1], *PLACES[3:]]
    # 2. The viewer's chats are those that were sent.
    chats, why_not = _render_chats(episode, rows, played.game)
    assert not why_not and {key: list(chat) for key, (chat, _) in chats.items()} == bodies
    # 3. A row that is taken away has the chat of the answer that decided.
    assert _render_asked(episode, rows, played.game) == bodies[rows[-1].key]


async def test_every_exchange_is_trained_on_in_the_chat_that_it_answered(played):
    tables = played.tables()
    part, keys = InMemory((RolloutTables(tables.episodes, tables.generations),)), ["key"]
    [episode] = read_played(played.game, part, part.episodes(keys)["key"].to_pylist())
    [side] = make_conversations(played.game, "verifier", episode)
    assert said(side.messages) == VERIFIER
    assert [answer.text for answer in side.learned] == VERIFIER
    assert list(side.messages[:-1]) == played.server.bodies[-1]["messages"]
    rows = rows_of(played)
    found = _find_valid_rows(part.tables[0])[episode.key, "verifier"]
    assert [rows[number].text for number in found] == VERIFIER


async def test_pairs_are_made_of_first_exchanges_alone():
    parameters = settings(
        **{"trainer": "pure_text_malt", "pure_text_malt": {"interval_threshold_proportion": 0.01}}
    )
    game = Game(parameters)

    def script(body):
        chat, count = body["messages"], body.get("n", 1)
        if agent_of(body) == "prover":
            return [f"Answer: {len(said(chat))} {i}" for i in range(count)]
        if chat[-1]["content"].startswith("Result"):
            return "Question: why?" if len(said(chat)) == 1 else REJECTS[body["seed"] % 2]
        return [f"Because {i}.\nCheck: {i % 2 + 1}" for i in range(count)]

    branch = Branching(parameters, game.protocol, 0)
    played = await play(parameters, script, on=problems(6, **CHAIN), branch=branch, game=game)
    tables = played.tables()
    rows = {row.key: row for row in read_rows(tables.generations, Generation)}
    shards = InMemory((RolloutTables(tables.episodes, tables.generations),))
    pairs = [*choose_pairs(game, "group", 0, shards, ["prover", "verifier"]).examples]
    # Each child of a node goes on from its own first exchange.
    begun = {tuple(said(body["messages"])) for body in played.server.bodies}
    assert {(f"Because {i}.\nCheck: {i + 1}",) for i in range(2)} < begun
    assert pairs
    for pair in pairs:
        assert {place_of(rows[key]).exchange for key in pair.generations} == {0}


async def test_calls_beyond_the_limits_are_answered_once_then_invalid_and_the_others_have_a_price():
    texts = ["Check: 1", "Check: 2", "Check: 2", "Question: b?", "check : 9", "Decision: reject"]
    parameters = settings(tool={"per_turn": 1, "per_episode": 5, "price": 0.25})
    script = in_turn(verifier=texts, prover=["Answer: d"])
    played = await play(parameters, script, on=problems(1, **CHAIN))
    rows = [row for row in rows_of(played) if row.agent == "verifier"]
    assert [row.tool_result for row in rows] == [
        *(RESULTS[0], "Result: no use of Check is left; answer without it", None, None),
        *("Result: there is no step 9; give the number of a step, 1 to 2", None),
    ]
    assert [row.invalid_reason for row in rows] == [None, None, USED_UP, None, None, None]
    assert (
        "it used a tool of which no use is left"
        in played.server.bodies[3]["messages"][-1]["content"]
    )
    # Two calls were within the limits; one of them said that there is no such step.
    assert played.rewards() == {"prover": 0.0, "verifier": 1 - 2 * 0.25}
    [episode] = played.typed.episodes
    assert [*episode.round_rewards] == [(0, "verifier", -0.25), (2, "verifier", 0.75)]


async def test_an_episode_has_no_more_calls_than_its_limit():
    texts = ["Check: 1", "Question: b?", "Check: 1", "Decision: reject"]
    parameters = settings(tool={"per_turn": 1, "per_episode": 1, "price": 0.25})
    script = in_turn(verifier=texts, prover=["Answer: d"])
    played = await play(parameters, script, on=problems(1, **CHAIN))
    results = [row.tool_result for row in rows_of(played) if row.agent == "verifier"]
    assert results == [RESULTS[0], None, "Result: no use of Check is left; answer without it", None]
    assert played.rewards()["verifier"] == 0.75


async def test_a_verifier_that_only_calls_ends_without_a_verdict():
    retries = settings().to_dict()["agents"]["verifier"]["num_invalid_generation_retries"]
    texts = ["Question: b?", "Check: 1", *["Check: 2"] * (2 + retries)]
    parameters = settings(tool={"per_turn": 1})
    script = in_turn(verifier=texts, prover=["Answer: d"])
    played = await play(parameters, script, on=problems(1, **CHAIN))
    [episode] = played.typed.episodes
    assert (episode.outcome, episode.decision) == ("terminated", 2)
    assert played.rewards()["verifier"] == -1
    [*_, last] = played.game.turns(rows_of(played), episode.seed)
    assert last.text == "Check: 2" and len(last.earlier) == 2
    resumed = await play(
        parameters,
        in_turn(verifier=[], prover=[]),
        on=problems(1, **CHAIN),
        recorded=dict(enumerate(played.log.records)),
    )
    assert rows_of(resumed) == rows_of(played)


async def test_a_turn_of_calls_alone_fails_where_a_question_was_due_and_its_chats_are_shown():
    texts = ["Check: 1", *["Check: 2"] * 5]
    script = in_turn(verifier=texts, prover=[])
    played = await play(settings(tool={"per_turn": 1}), script, on=problems(1, **CHAIN))
    [episode], rows = played.typed.episodes, rows_of(played)
    assert episode.outcome == "failed" and USED_UP in (episode.error or "")
    bodies = {
        row.key: body["messages"] for row, body in zip(rows, played.server.bodies, strict=True)
    }
    chats, why_not = _render_chats(episode, rows, played.game)
    assert not why_not and {key: list(chat) for key, (chat, _) in chats.items()} == bodies


def test_a_short_prompt_has_the_limits_and_the_price_too():
    tool = {"per_turn": 2, "per_episode": 3, "price": 0.5}
    short = {"scenario_settings": {"system_prompt_version": "short"}}
    game = Game(settings(tool=tool, **short))
    told = game.tools["verifier"].describe(is_short=True)
    assert told.endswith("at most 2 times in a turn and 3 times in all, for 0.5 each.")
    assert told in game.prompts.template("verifier").template


async def test_no_episode_has_more_calls_than_the_estimate_says_at_most():
    texts = ["Check: 1", "Check: 2", "Check: 2", "Question: b?"]
    texts += ["Check: 1", "Check: 2", "Decision: reject"]
    parameters = settings(tool={"per_turn": 2, "per_episode": 3})
    script = in_turn(verifier=texts, prover=["Answer: d"])
    played = await play(parameters, script, on=problems(1, **CHAIN))
    made = sum(row.agent == "verifier" for row in rows_of(played))
    prompts = dict.fromkeys(("verifier", "prover"), 100.0)
    loads = reckon_episode_loads(played.game, 0, prompts, AT_MOST)
    assert made == 7 and loads["verifier"].calls == 7
    expected = reckon_episode_loads(played.game, 0, prompts, EXPECTED)
    assert 2 < expected["verifier"].calls < 7


async def test_a_decision_before_a_call_too_many_is_read_again_as_it_was_played():
    texts = ["Question: b?", "Check: 1", "Check: 1", "Decision: reject\nCheck: 2"]
    script = in_turn(verifier=texts, prover=["Answer: d"])
    played = await play(settings(tool={"per_turn": 1}), script, on=problems(1, **CHAIN))
    [episode], rows = played.typed.episodes, rows_of(played)
    assert (episode.outcome, episode.decision, rows[-1].decision) == ("finished", 0, 0)
    [*_, last] = played.game.turns(rows, episode.seed)
    assert last.move.decision == 0 and len(last.earlier) == 2
    resumed = await play(
        played.parameters,
        in_turn(verifier=[], prover=[]),
        on=problems(1, **CHAIN),
        recorded=dict(enumerate(played.log.records)),
    )
    assert rows_of(resumed) == rows and resumed.typed.episodes == played.typed.episodes
