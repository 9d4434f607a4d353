"""`graphs`: with private coins an honest prover always convinces, and a liar in 1 of 2^k."""

import json
import re
import sys

import networkx
import numpy
import pyarrow.parquet as pq
import pytest
from playing import agent_of, play_at
from scripted_server import scripted_server
from small_game import FEW, train_here, write_config

from nip_core.errors import DatasetError, SettingsError
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.rollouts.plan import plan_episodes
from nip_core.scenarios.datasets import check_splits, load_problems

SPLITS = ("train", "validation", "test")


def settings(protocol="adp", **own):
    agents = {"_default": {"model_provider": "SelfHosted", "model_name": "m"}}
    return load_parameters(
        {
            "run_name": "a",
            "scenario": "graphs",
            "dataset": "pairs",
            "interaction_protocol": protocol,
            "scenario_settings": {"train_size": 80, **own},
            "nip_protocol": {"max_message_rounds": 3, "min_message_rounds": 1},
            "agents": agents,
            "rl": {"rollouts_per_iteration": None},
        }
    )


def problems(split="train", path="pairs", **own):
    return load_problems(Game(settings(**own)).scenario, path, split)


def graph(edges):
    return networkx.Graph([tuple(map(int, edge.split("-"))) for edge in edges.split(", ")])


def graphs(text, names=r"[AB]"):
    return {n: graph(e) for n, e in re.findall(rf"^({names}): (\d+-\d.*)$", text, re.MULTILINE)}


def honest(body):
    """The classical players: the prover computes, and the verifier compares with its coins."""
    system, *chat = (message["content"] for message in body["messages"])
    if agent_of(body) == "prover":
        assert "only you know" not in system and "## Your coins" not in system
        a = graphs(system)["A"]
        named = {
            n: "A" if networkx.vf2pp_is_isomorphic(a, challenge) else "B"
            for n, challenge in graphs(system, r"\d+").items()
        }
        return "Answer: " + " ".join(f"{n}: {name}" for n, name in named.items())
    assert "## Challenges" not in system
    answers = [text for text in chat if text.startswith(("Answer:", "1: "))]
    if not answers:
        return "Question: Of which graph is each challenge?"
    coins = re.findall(r"^(\d+: [AB])$", system, re.MULTILINE)
    right = re.findall(r"\d+: [AB]", answers[0]) == coins
    return f"Decision: {'accept' if right else 'reject'}"


@pytest.mark.parametrize(("protocol", "challenges"), [("adp", 1), ("nip", 3)])
async def test_the_truth_always_convinces_and_a_lie_survives_half_of_the_challenges(
    protocol, challenges
):
    parameters = settings(protocol, challenges=challenges)
    pairs = problems(challenges=challenges)
    async with scripted_server(honest) as server:
        specs = plan_episodes(parameters, pairs, "train", 0)
        played = await play_at(server.url, parameters, specs)
    assert len(played.episodes) == 80
    assert {e["outcome"] for e in played.episodes} == {"finished"}
    accepted = {y: [e["decision"] == 1 for e in played.episodes if e["y"] == y] for y in (0, 1)}
    assert all(accepted[1]) and len(accepted[1]) == 40
    # Three deviations of as many tosses of a coin; seeds are fixed, so the number is, too.
    chance = 0.5**challenges
    assert abs(sum(accepted[0]) - 40 * chance) < 3 * (40 * chance * (1 - chance)) ** 0.5


def test_problems_are_regular_balanced_labelled_rightly_and_the_same_again():
    splits = {split: problems(split) for split in SPLITS}
    check_splits(splits)
    assert {split: len(found) for split, found in splits.items()} == dict(
        zip(SPLITS, (80, 50, 100), strict=True)
    )
    for found in splits.values():
        assert sum(p.y for p in found) * 2 == len(found)
        for problem in found[:20]:
            pair = list(graphs(problem.question).values())
            assert all({d for _, d in g.degree} == {3} and len(g) == 14 for g in pair)
            assert networkx.vf2pp_is_isomorphic(*pair) == (problem.y == 0)
    assert problems("test") == splits["test"] != problems("test", seed=1)


def test_no_graph_stands_in_two_splits_under_any_names():
    def spectra(split):
        return {
            tuple(numpy.linalg.eigvalsh(networkx.to_numpy_array(g)).round(6) + 0.0)
            for problem in problems(split)
            for g in graphs(problem.question).values()
        }

    assert not spectra("train") & spectra("test")


def test_coins_follow_from_the_seed_and_challenges_are_made_with_them():
    scenario = Game(settings(challenges=16)).scenario
    problem = next(p for p in problems() if p.y == 1)
    drawn = scenario.draw(problem.texts, 5)
    assert drawn == scenario.draw(problem.texts, 5) != scenario.draw(problem.texts, 6)
    coins = dict(re.findall(r"^(\d+): ([AB])$", drawn["coin"], re.MULTILINE))
    challenges = graphs(drawn["challenge"], r"\d+")
    assert coins.keys() == challenges.keys() and len(coins) == 16 and len({*coins.values()}) == 2
    for number, challenge in challenges.items():
        assert networkx.vf2pp_is_isomorphic(challenge, graphs(problem.question)[coins[number]])


@pytest.mark.parametrize("y", [0, 1])
def test_coins_that_are_tossed_again_go_with_the_challenges(y):
    """Where the graphs differ they are what they were, else they are new."""
    scenario = Game(settings(challenges=8)).scenario
    problem = next(p for p in problems() if p.y == y)
    texts = {**problem.texts, **scenario.draw(problem.texts, 5)}
    again = {scenario.draw_again(texts, seed)["coin"] for seed in range(6)}
    assert again == {texts["coin"]} if y else len(again) == 6


async def test_a_whole_run_has_its_coins_and_challenges_in_prompts_examples_and_tables(tmp_path):
    config = write_config(
        tmp_path,
        scenario="graphs",
        dataset="pairs",
        scenario_settings={"train_size": 40, "test_size": 4},
        rl=FEW,
        dataset_options={"max_test_size": 4},
    )
    assert (await train_here(config))["run"] == "small"
    folder = tmp_path / "runs" / "small"
    [shard, *_] = folder.rglob("rollouts/train/episodes-*.parquet")
    scenario = Game(settings()).scenario
    for row in pq.read_table(shard).to_pylist():
        assert row["columns"] is None
        texts = {"question": row["question"], "solution": row["solution"]}
        assert json.loads(row["drawn"]) == scenario.draw(texts, row["seed"])
    [examples] = folder.rglob("datasets/verifier/examples.*.parquet")
    for row in pq.read_table(examples).to_pylist():
        assert re.search(r"only you know.*?\\n1: [AB]\\n2: [AB]", str(row))
    assert "Your coins" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"nodes": 15}, ["scenario_settings", "no graph of 15 nodes of degree 3"]),
        ({"nodes": 6, "degree": 7}, ["no graph of 6 nodes of degree 7"]),
        ({"challenges": 0}, ["scenario_settings.challenges"]),
        ({"coins": 1}, ["scenario_settings.coins"]),
    ],
)
def test_settings_that_make_no_game_are_refused(own, words):
    with pytest.raises(SettingsError) as refused:
        settings(**own)
    assert all(word in str(refused.value) for word in words), refused.value


def test_few_different_graphs_and_a_system_without_networkx_are_refused(monkeypatch):
    with pytest.raises(DatasetError, match=r"^scenario_settings: .* of 6 nodes .*; raise nodes"):
        problems("test", nodes=6)
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(SettingsError, match=r"graphs needs networkx.*install.*graphs"):
        settings()


@pytest.mark.parametrize(
    ("question", "solution", "words"),
    [
        ("A: 0-1, 1-2", "The graphs A and B are not isomorphic.", ['"B: 0-1, ..."']),
        ("A: 0-1\nB: 0-1", "They are isomorphic.", ["the solution must be"]),
    ],
)
def test_a_dataset_of_ones_own_is_labelled_or_the_row_named(tmp_path, question, solution, words):
    path = tmp_path / "own.jsonl"
    row = {"question": question, "solution": solution, "split": "train"}
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DatasetError) as refused:
        problems(path=str(path))
    assert all(word in str(refused.value) for word in ["line 1", *words]), refused.value


def test_a_dataset_of_ones_own_needs_no_labels(tmp_path):
    path, claim = tmp_path / "own.jsonl", "The graphs A and B are not isomorphic."
    texts = ["A: 0-1, 1-2\nB: 0-2, 0-1", "A: 0-1, 1-2, 2-3\nB: 0-1, 0-2, 0-3"]
    rows = [{"question": text, "solution": claim, "split": "train"} for text in texts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [p.y for p in problems(path=str(path))] == [0, 1]
