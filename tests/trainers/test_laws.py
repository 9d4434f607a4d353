"""Laws of expert iteration, whatever was played and whatever the settings are."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from digests import dataset_digest
from handmade import ACCEPT, REJECT, choice, make_game
from handmade import Rollouts as Made
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import InMemory

from nip_core.errors import StageError
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.trainers.base import OfProblems
from nip_core.trainers.dataset import to_table, write_examples
from nip_core.trainers.expert_iteration import choose_examples

EPISODES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(
            [
                (["Question: a?", "Answer: b", ACCEPT], "finished"),
                (["Question: a?", "Answer: b", REJECT], "finished"),
                (["Question: a?", "Answer: b", "Question: c?"], "terminated"),
                ([REJECT], "finished"),
                (["Question: a?"], "failed"),
            ]
        ),
        st.sampled_from([-1.0, 0.0, 0.95, 1.0]),
        st.booleans(),  # of a problem that came before
    ),
    max_size=14,
)
EI = st.fixed_dictionaries(
    {
        "rollout_selection_method": st.sampled_from(["threshold", "weighted_sampling"]),
        "weighting_sample_size_factor": st.sampled_from([0.3, 1.0]),
        "weighting_use_replacement": st.booleans(),
        "balance_decisions": st.booleans(),
        "balance_labels": st.booleans(),
        "deduplicate": st.booleans(),
    }
)
BOOL = pa.bool_()
SHARE = st.sampled_from([0.0, 0.4])
AGENTS = {"_default": {"shared_model_group": "all"}}


def game_of(ei, share, **more):
    text_rl = {"verifier_guess_replacement_proportion": share}
    return make_game(ei=ei, text_rl=text_rl, agents=AGENTS, **more)


def made_of(episodes):
    made = Made()
    for i, (y, (texts, outcome), reward, is_twin) in enumerate(episodes):
        made.add(i, y, texts, (reward, -reward), outcome)
        if is_twin:
            made.episodes[-1] |= {"question": "Return x.", "solution": "x", "question_id": "q"}
    return made


def cut(tables, at):
    """The tables as two shards."""
    episodes, generations = tables
    first = set(episodes["key"].to_pylist()[:at])
    parts = []
    for wanted in (True, False):
        of = [
            table.filter(
                pa.array([(k in first) is wanted for k in table[column].to_pylist()], BOOL)
            )
            for table, column in ((episodes, "key"), (generations, "episode"))
        ]
        parts.append(tuple(of))
    return parts


def digest_of(game, *shards):
    return dataset_digest(to_table(list(choice(game, "all", 0, *shards).examples)).to_pylist())


@settings(max_examples=30, deadline=None)
@given(episodes=EPISODES, ei=EI, share=SHARE, seed=st.integers(0, 99), at=st.integers(0, 14))
def test_rows_shards_and_repetition_change_nothing(episodes, ei, share, seed, at):
    game, made = game_of(ei, share), made_of(episodes)
    usual = digest_of(game, made.tables())
    assert digest_of(game, made.tables()) == usual
    assert digest_of(game, made.tables(shuffle_seed=seed)) == usual
    assert digest_of(game, *cut(made.tables(shuffle_seed=seed), at)) == usual


@pytest.mark.long
def test_the_dataset_is_the_same_however_many_processes_make_it(tmp_path):
    game, made = game_of({"reward_threshold": -1.0}, 0.4), Made()
    for i in range(700):
        made.add(i, i % 2, ["Question: a?", "Answer: b", ACCEPT], (1.0, -1.0))
    shards = [shard for part in cut(made.tables(), 450) for shard in cut(part, 301)]
    written = {}
    for processes in (1, 2):
        file = tmp_path / str(processes)
        found = choice(game, "all", 0, *shards).examples
        written[processes] = write_examples(file, "supervised", found, processes), file.read_bytes()
    assert written[1] == written[2]
    assert written[1][0].examples == 1400
    assert pq.ParquetFile(tmp_path / "2").metadata.num_row_groups == 3


@pytest.mark.long
def test_an_answer_that_counts_no_more_is_the_same_error_from_another_process(tmp_path):
    game, made = game_of({"reward_threshold": -1.0}, 0.0), Made()
    for i in range(4):
        made.add(
            i, 1, ["Question: a?", "Answer: b", "Decision: maybe" if i == 3 else ACCEPT], (1, 1)
        )
    errors = []
    for processes in (1, 2):
        found = choice(game, "all", 0, *cut(made.tables(), 2)).examples
        with pytest.raises(StageError, match="another version of nip has played it") as raised:
            write_examples(tmp_path / "a", "supervised", found, processes)
        errors.append(str(raised.value))
    assert errors[0] == errors[1] and "a-e0-3" in errors[0]


@settings(max_examples=30, deadline=None)
@given(episodes=EPISODES, ei=EI, share=SHARE)
def test_every_candidate_is_an_example_or_counted(episodes, ei, share):
    made = made_of(episodes)
    found = choice(game_of(ei, share), "all", 0, made.tables())
    examples, counts = list(found.examples), Counter(found.counts)
    assert counts["candidates"] == 2 * len(episodes)
    left_out = ("failed", "silent", "below_threshold", "not_drawn", "duplicates", "surplus")
    out = sum(counts[reason] for reason in left_out)
    assert len(examples) == counts["candidates"] + counts["repeated"] - out
    assert len({e.key for e in examples}) == len(examples)
    played = {e["key"]: e for e in made.episodes if e["outcome"] != "failed"}
    by_key = {g["key"]: g for g in made.generations}
    for example in examples:
        assert example.problem == played[example.episode]["problem"]
        learned = [by_key[key] for key in example.generations]
        assert {(g["episode"], g["agent"]) for g in learned} == {(example.episode, example.agent)}
    if ei["deduplicate"]:
        said = [(e.agent, str(e.messages)) for e in examples]
        assert len(set(said)) == len(said)
    if ei["balance_labels"]:
        for agent in ("prover", "verifier"):
            labels = Counter(e.y for e in examples if e.agent == agent)
            assert labels[0] == labels[1]


@settings(max_examples=20, deadline=None)
@given(episodes=EPISODES, kept=st.sets(st.integers(0, 13)), at=st.integers(0, 14))
def test_what_is_chosen_of_some_problems_is_what_is_chosen_where_there_are_no_others(
    episodes, kept, at
):
    made, only = made_of(episodes), Made()
    problems = {f"p{i}" for i in kept}
    only.episodes = [e for e in made.episodes if e["problem"] in problems]
    keys = {e["key"] for e in only.episodes}
    only.generations = [g for g in made.generations if g["episode"] in keys]
    game = game_of({"balance_labels": True}, 0.4)
    everything = InMemory(tuple(RolloutTables(*tables) for tables in cut(made.tables(), at)))
    found = choose_examples(
        game, "all", 0, OfProblems(everything, problems), ["prover", "verifier"]
    )
    expected = choice(game, "all", 0, only.tables())
    assert list(found.examples) == list(expected.examples)
    assert found.counts == expected.counts
