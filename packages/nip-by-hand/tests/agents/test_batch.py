"""A batch says what was played, and gives back the tables that it was made from."""

from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_play import game, play
from thorough import examples

from nip_by_hand.agents.batch import nested_to_rollouts, rollouts_to_nested
from nip_core.errors import SettingsError
from nip_core.game.render import Game, Situation
from nip_core.hashing import derive_key
from nip_core.protocols import Move, protocol_names
from nip_core.rollouts.storage.schema import EPISODES, GENERATIONS
from nip_core.rollouts.storage.table_rows import stored_row

PENALTY = {"prover_invalid_response_penalty": -0.25}
LONG = {"max_message_rounds": 5, "min_message_rounds": 2}

GAMES: tuple[dict[str, Any], ...] = (
    {"interaction_protocol": "nip", "nip_protocol": LONG},
    {"interaction_protocol": "nip", "nip_protocol": LONG, "protocol_common": PENALTY},
    {
        "interaction_protocol": "nip",
        "nip_protocol": {"max_message_rounds": 4},
        "protocol_common": {"verifier_first": False, "randomize_prover_stance": True},
    },
    {
        "interaction_protocol": "nip",
        "nip_protocol": LONG,
        "protocol_common": {"verifier_decision_scale": "likert_scale_5", "shared_reward": True},
    },
    {
        "interaction_protocol": "adp",
        "protocol_common": {"verifier_decision_scale": "out_of_100", "force_guess": "y"},
    },
    {"interaction_protocol": "debate", "debate_protocol": LONG, "protocol_common": PENALTY},
    {
        "interaction_protocol": "debate",
        "debate_protocol": {"max_message_rounds": 7, "sequential": True},
    },
    {
        "interaction_protocol": "mnip",
        "mnip_protocol": LONG,
        "protocol_common": {"randomize_prover_stance": True},
    },
    {"interaction_protocol": "merlin_arthur", "protocol_common": PENALTY},
    {"interaction_protocol": "refereed"},
    {"interaction_protocol": "solo_verifier"},
    {"interaction_protocol": "multi_channel_test", "protocol_common": PENALTY},
    {
        "interaction_protocol": "mnip",
        "mnip_protocol": LONG,
        "protocol_common": {"zero_knowledge": True, **PENALTY},
    },
    {
        "interaction_protocol": "nip",
        "nip_protocol": LONG,
        "protocol_common": {"zero_knowledge": True},
        "zk_protocol": {"similarity": "log_probs"},
    },
    {
        "interaction_protocol": "nip",
        "nip_protocol": LONG,
        "agents": {"prover": {"is_random": True}},
    },
)


@cache
def known_game(number: int) -> Game:
    return game(**GAMES[number])


def test_the_games_here_are_of_all_protocols():
    assert {settings["interaction_protocol"] for settings in GAMES} == set(protocol_names())


RANDOM_GAMES = st.tuples(st.integers(0, len(GAMES) - 1), st.integers(0, 10**6), st.integers(0, 4))


@settings(max_examples=examples(120))
@given(RANDOM_GAMES)
def test_tables_from_a_batch_are_the_tables_that_it_was_made_from(drawn):
    number, seed, episodes = drawn
    tables = play(known_game(number), seed, episodes).tables
    batch = rollouts_to_nested(known_game(number), tables.episodes, tables.generations)
    back = nested_to_rollouts(known_game(number), batch)
    for table, original in zip(back, (tables.episodes, tables.generations), strict=True):
        assert table.schema.equals(original.schema, check_metadata=True)
        for name in original.column_names:
            assert table.column(name).equals(original.column(name)), name
    # A part of the batch is that part of the tables.
    part = nested_to_rollouts(known_game(number), batch[1:])
    assert part[0].equals(tables.episodes.slice(1))
    kept = pa.compute.is_in(tables.generations["episode"], part[0]["key"].combine_chunks())
    assert part[1].equals(tables.generations.filter(kept))


def shapes(known: Game, n: int, k: int) -> dict[Any, tuple[tuple[int, ...], str]]:
    t, a, c = (
        known.protocol.max_message_rounds,
        len(known.protocol.agent_names),
        len(known.protocol.channels),
    )
    numbers = ("round", "seed", "y", "datapoint_id", "prover_stance")
    state: dict[Any, tuple[tuple[int, ...], str]] = {
        **{(key,): ((n, t), "i") for key in numbers},
        **{(key,): ((n, t), "T") for key in ("question", "solution")},
        ("message_history",): ((n, t, t, c), "T"),
        ("message_agent_id",): ((n, t, t, c), "i"),
        ("raw_message_history",): ((n, t, t, a), "T"),
        **{(key,): ((n, t), "b") for key in ("done", "terminated")},
        ("agents", "done"): ((n, t, a), "b"),
    }
    generation = [f.name for f in GENERATIONS]
    return {
        **state,
        **{("next", *key): shape for key, shape in state.items()},
        ("padding",): ((n, t), "b"),
        ("agents", "message"): ((n, t, a, c), "T"),
        ("agents", "raw_message"): ((n, t, a), "T"),
        ("agents", "prompt"): ((n, t, a, 2 * (t * c + 10), 3), "T"),
        ("agents", "decision"): ((n, t, a), "i"),
        ("agents", "continuous_decision"): ((n, t, a), "f"),
        ("agents", "retry_count"): ((n, t, a, c), "i"),
        ("agents", "token_limit"): ((n, t, a, c), "b"),
        ("next", "agents", "reward"): ((n, t, a), "f"),
        **{("episode", f.name): ((n, t), "") for f in EPISODES},
        **{
            ("generation", name): ((n, t, a, k), "")
            for name in generation
            if name not in ("episode", "round", "agent", "attempt")
        },
    }


@settings(max_examples=examples(80))
@given(RANDOM_GAMES)
def test_a_batch_says_round_by_round_what_was_played(drawn):
    number, seed, episodes = drawn
    known = known_game(number)
    protocol = known.protocol
    played = play(known, seed, episodes)
    batch = rollouts_to_nested(known, played.tables.episodes, played.tables.generations)
    attempts = 1 + max((row.attempt for row in played.generations), default=0)
    found = {key: (array.shape, array.dtype.kind) for key, array in batch.items()}
    expected = shapes(known, episodes, attempts)
    assert found.keys() == expected.keys()
    for key, (shape, kind) in expected.items():
        assert found[key][0] == shape and found[key][1].startswith(kind), key

    for n, (row, turns) in enumerate(zip(played.episodes, played.turns, strict=True)):
        stored = stored_row(row)
        done, terminated = played.ends[n]
        for t in range(protocol.max_message_rounds):
            step = batch[n, t]
            for key in ("seed", "y", "question", "solution"):
                assert step[key][()] == step["next", key][()] == stored[key]
            assert step["episode", "rewards"][()] == stored["rewards"]
            assert (step["round"], step["next", "round"]) == (t, t + 1)
            assert step["padding"] == (t >= row.rounds)
            for after, place in ((0, step), (1, step["next"])):
                over = t + after >= row.rounds
                assert place["done"] == (over and done)
                assert place["terminated"] == (over and terminated)
                assert (place["agents", "done"] == (over and done)).all()
                assert_history(protocol, turns, t + after, place)
            pay = played.pay[n][t] if t < len(played.pay[n]) else {}
            rewards = [pay.get(agent, 0.0) for agent in protocol.agent_names]
            assert step["next", "agents", "reward"].tolist() == rewards
            assert_agents(known, played, n, t, step)


def assert_history(protocol, turns, before, place) -> None:
    """The arrays have the turns before a round, and nothing else."""
    said, raw = defaultdict(lambda: (None, -1)), {}
    for turn in (turn for turn in turns if turn.round < before):
        raw[turn.round, turn.agent] = turn.text
        for channel, message in turn.move.messages.items():
            said[turn.round, channel] = message, protocol.agent_names.index(turn.agent)
    rounds = range(protocol.max_message_rounds)
    cells = [[said[t, channel] for channel in protocol.channels] for t in rounds]
    assert place["message_history"].tolist() == [[m for m, _ in row] for row in cells]
    assert place["message_agent_id"].tolist() == [[a for _, a in row] for row in cells]
    expected = [[raw.get((t, agent)) for agent in protocol.agent_names] for t in rounds]
    assert place["raw_message_history"].tolist() == expected


def assert_agents(known, played, n, t, step) -> None:
    protocol, row, turns = known.protocol, played.episodes[n], played.turns[n]
    before = [turn for turn in turns if turn.round < t]
    movers = protocol.movers(t, row.seed, before) if t < row.rounds else {}
    situation = Situation(row.question, row.solution, row.prover_stance, row.seed)
    for a, agent in enumerate(protocol.agent_names):
        turn = next((u for u in turns if (u.round, u.agent) == (t, agent)), None)
        move = turn.move if turn else Move()
        mine = step["agents"]
        assert mine["raw_message"][a] == (turn.text if turn else None)
        assert mine["message"][a].tolist() == [move.messages.get(c) for c in protocol.channels]
        assert mine["decision"][a] == move.decision
        value = mine["continuous_decision"][a]
        assert np.isnan(value) if move.value is None else value == move.value
        calls = played.asked.get((n, t, agent), 0)
        retries = [max(calls - 1, 0) * (c in movers.get(agent, ())) for c in protocol.channels]
        assert mine["retry_count"][a].tolist() == retries
        last = next((g for g in reversed(played.generations) if calls and g.key == derive_key(row.key, t, agent, calls - 1)), None)  # fmt: skip
        long = last is not None and last.finish_reason == "length"
        limits = [long and c in movers[agent] for c in protocol.channels]
        assert mine["token_limit"][a].tolist() == limits
        chat = []
        if agent in movers and agent in known.parameters.model_agents:
            chat = known.render(agent, situation, before, t)
        fields = [[m.get(name) for name in ("role", "content", "name")] for m in chat]
        assert mine["prompt"][a, : len(chat)].tolist() == fields
        assert mine["prompt"][a, len(chat) :].tolist() == [[None] * 3] * (
            mine["prompt"].shape[1] - len(chat)
        )


def test_a_silent_prover_and_the_rows_after_the_end_by_hand():
    script = {(0, "verifier"): "Why?", (2, "verifier"): "Decision: accept"}
    five = game(nip_protocol={"max_message_rounds": 5}, protocol_common=PENALTY)
    played = play(five, 0, 1, lambda round_, agent, attempt: script.get((round_, agent)))
    batch = rollouts_to_nested(five, played.tables.episodes, played.tables.generations)
    y = played.episodes[0].y
    verdict = 1.0 if y == 1 else -1.0
    assert batch["next", "agents", "reward"].tolist() == [
        [[0.0, 0.0], [-0.25, 0.0], [1.0, verdict], [0.0, 0.0], [0.0, 0.0]]
    ]
    assert batch["padding"].tolist() == [[False, False, False, True, True]]
    assert batch["done"].tolist() == [[False, False, False, True, True]]
    assert batch["next", "done"].tolist() == [[False, False, True, True, True]]
    assert batch["agents", "retry_count"].tolist() == [
        [[[0], [0]], [[2], [0]], [[0], [0]], [[0], [0]], [[0], [0]]]
    ]
    assert batch["message_agent_id"][0, 2].tolist() == [[1], [-1], [-1], [-1], [-1]]
    assert batch["message_history"][0, -1].tolist() == [["Why?"], [None], [None], [None], [None]]
    assert batch["raw_message_history"][0, -1, 2].tolist() == [None, "Decision: accept"]
    assert batch["agents", "decision"].tolist() == [[[2, 2], [2, 2], [2, 1], [2, 2], [2, 2]]]
    assert batch["prover_stance"].tolist() == [[1] * 5]


@pytest.mark.parametrize(
    ("protocol", "stance"), [("nip", 1), ("mnip", 1), ("debate", -1), ("solo_verifier", -1)]
)
def test_without_a_drawn_stance_it_is_that_of_the_provers_if_they_share_one(protocol, stance):
    played = play(game(interaction_protocol=protocol), 1, 2)
    batch = rollouts_to_nested(
        game(interaction_protocol=protocol), played.tables.episodes, played.tables.generations
    )
    assert np.unique(batch["prover_stance"]).tolist() == [stance]
    assert set(batch["episode", "prover_stance"].flat) == {None}


def test_a_datapoint_has_one_number_in_every_batch():
    nip = known_game(0)
    tables = play(nip, 5, 6).tables
    whole = rollouts_to_nested(nip, tables.episodes, tables.generations)
    ids = whole["datapoint_id"][:, 0]
    assert len(set(ids.tolist())) == 3 and ids[0] == ids[1] and (ids >= 0).all()
    kept = pa.compute.is_in(
        tables.generations["episode"], tables.episodes["key"][4:].combine_chunks()
    )
    part = rollouts_to_nested(nip, tables.episodes.slice(4), tables.generations.filter(kept))
    assert part["datapoint_id"][:, 0].tolist() == ids[4:].tolist()


def test_rollouts_of_another_game_are_refused():
    tables = play(known_game(0), 5, 8).tables
    assert set(tables.episodes["outcome"].to_pylist()) >= {"finished"}
    key = tables.episodes["key"][0].as_py()

    def refused(other: Game, match: str) -> None:
        with pytest.raises(SettingsError, match=match):
            rollouts_to_nested(other, tables.episodes, tables.generations)

    refused(known_game(4), f"episode {key} was played by protocol 'nip', not 'adp'")
    refused(game(nip_protocol={"max_message_rounds": 1}), "rounds of at most 1")
    dear = game(nip_protocol=LONG, protocol_common={"verifier_reward": 3.0})
    refused(dear, r"recorded the rewards \{.*\}, but its moves earn \{.*3\.0")
    with pytest.raises(SettingsError, match="there is no episode"):
        rollouts_to_nested(known_game(0), tables.episodes[1:], tables.generations)
    twice = pa.concat_tables([tables.generations, tables.generations])
    with pytest.raises(SettingsError, match="two generations"):
        rollouts_to_nested(known_game(0), tables.episodes, twice)


def test_a_batch_without_rounds_or_of_other_agents_gives_no_tables():
    tables = play(known_game(0), 5, 2).tables
    batch = rollouts_to_nested(known_game(0), tables.episodes, tables.generations)
    for known, part in ((known_game(0), batch[:, 0]), (known_game(9), batch)):
        with pytest.raises(ValueError, match=r"size \(N, T\) with the agents"):
            nested_to_rollouts(known, part)


def test_prompts_can_be_left_out_of_a_large_batch():
    nine = game(nip_protocol={"max_message_rounds": 9, "min_message_rounds": 9})
    tables = play(nine, 1, 20, lambda *_: "Because of the bounds of the loop, " * 9).tables
    batch = rollouts_to_nested(nine, tables.episodes, tables.generations, prompts=False)
    assert ("agents", "prompt") not in batch
    assert nested_to_rollouts(nine, batch)[1].equals(tables.generations)
