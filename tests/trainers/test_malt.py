"""Which answers in a tree make a pair: by hand, and the laws for any tree."""

import random
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import InMemory
from playing import agent_of, play, problems
from stored_rows import rows_by_episode

from nip_core.errors import StageError
from nip_core.game.render import Game, Situation
from nip_core.parameters import load_parameters
from nip_core.protocols import Move, Turn
from nip_core.rollouts.branching import Branching
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.schema import EPISODES, GENERATIONS
from nip_core.rollouts.trees import list_ancestors, parse_path
from nip_core.trainers.expert_iteration import choose_examples
from nip_core.trainers.malt import choose_pairs

ACCEPT, REJECT = "Decision: accept", "Decision: reject"


def make_game(protocol="nip", malt=None, **more):
    return Game(
        load_parameters(
            {
                "run_name": "a",
                "dataset": "x",
                "trainer": "pure_text_malt",
                "interaction_protocol": protocol,
                "nip_protocol": {"max_message_rounds": 3},
                "debate_protocol": {"max_message_rounds": 3},
                "code_validation": {"system_prompt_version": "short"},
                "pure_text_malt": malt or {},
                **more,
            }
        )
    )


class Trees:
    """Tables of trees that are written by hand."""

    def __init__(self, protocol="nip", run="a"):
        self.protocol, self.run = protocol, run
        self.episodes, self.generations = [], []
        self._first = {}

    def leaf(self, path, failed=False, problem=0, iteration=0, sample=0, **rewards):
        """An episode that ended; before the answers on its way."""
        key = f"{self.run}-e{iteration}-{problem}-{sample}-{path}"
        for node in list_ancestors(path):
            place = (iteration, problem, sample, node)
            known = self._first.get(place)
            if known is None or parse_path(path) < parse_path(known[1]):
                self._first[place] = (key, path)
        self.episodes.append(
            {
                "key": key,
                "run": self.run,
                "split": "train",
                "iteration": iteration,
                "problem": f"p{problem}",
                "question_id": f"q{problem}",
                "sample": sample,
                "branch_path": path,
                "protocol": self.protocol,
                "question": f"Return x plus {problem}.",
                "solution": f"x + {problem}",
                "y": problem % 2,
                "difficulty": None,
                "mutation": None,
                "seed": 7,
                "prover_stance": None,
                "rounds": max(len(parse_path(path)), 1),
                "decision": 1,
                "decision_value": 1.0,
                "outcome": "failed" if failed else "finished",
                "error": "too long" if failed else None,
                "rewards": [{"agent": a, "reward": float(r)} for a, r in rewards.items()],
            }
        )
        return self

    def said(self, path, agent, text, invalid=None, attempt=0, problem=0, iteration=0, sample=0):
        """What an agent answered on the way to a node."""
        self.generations.append(
            {
                "key": f"{self.run}-{iteration}-{problem}-{sample}-{path}-{agent}-{attempt}",
                "parent_key": None,
                "episode": (iteration, problem, sample, path),
                "branch_path": path,
                "round": max(len(parse_path(path)) - 1, 0),
                "agent": agent,
                "attempt": attempt,
                "model_asked": "m",
                "model_served": "m",
                "text": text,
                "decision": 2,
                "decision_value": None,
                "finish_reason": "stop",
                "invalid_reason": invalid,
                "prompt_tokens": 100,
                "completion_tokens": len(text),
            }
        )
        return self

    def tables(self, shuffle_seed=None):
        episodes = list(self.episodes)
        generations = [
            {**row, "episode": self._first[row["episode"]][0]} for row in self.generations
        ]
        if shuffle_seed is not None:
            random.Random(shuffle_seed).shuffle(episodes)
            random.Random(shuffle_seed).shuffle(generations)
        return RolloutTables(
            pa.Table.from_pylist(episodes, schema=EPISODES),
            pa.Table.from_pylist(generations, schema=GENERATIONS),
        )


def choose(game, trees, agents, iteration=0, shuffle_seed=None):
    rollouts = InMemory((trees.tables(shuffle_seed),))
    choice = choose_pairs(game, "group", iteration, rollouts, agents)
    assert choice.method == "dpo"
    pairs = list(choice.examples)
    assert list(choice.examples) == []  # they can be gone through once
    left_out = ("unanswered", "too_close", "identical")
    assert len(pairs) == choice.counts["pairs"]
    left_out += ("other_hints",) if "other_hints" in choice.counts else ()
    assert choice.counts["turns"] == len(pairs) + sum(choice.counts[name] for name in left_out)
    return pairs, choice.counts


def brief(pair):
    return (pair.agent, pair.chosen, pair.rejected, pair.reward, pair.rejected_reward)


def question_tree():
    """nip with three rounds, on a buggy problem. What the verifier can expect:

        root  0.25
        "0"   rejects at once:  1
        "1"   asks:            -0.5, the mean of
            "1.0" -1     three verdicts, all -1
            "1.1"  0     three: 1, -1 and one that failed
    The mean over the leaves below "1" would be -0.6, over those below the root -1/3.
    """
    trees = Trees()
    for path, text in (("0", REJECT), ("1", "Question: why?")):
        trees.said(path, "verifier", text)
    for path, text in (("1.0", "Answer: so."), ("1.1", "Answer: thus.")):
        trees.said(path, "prover", text)
    trees.leaf("0", prover=0, verifier=1)
    for path, reward in (("1.0.0", -1), ("1.0.1", -1), ("1.0.2", -1), ("1.1.0", 1), ("1.1.1", -1)):
        trees.said(path, "verifier", ACCEPT if reward < 0 else REJECT)
        trees.leaf(path, prover=float(reward < 0), verifier=reward)
    trees.leaf("1.1.2", failed=True, prover=0, verifier=0)
    trees.said("1.1.2", "verifier", "Decision: perhaps", invalid="no such decision")
    return trees


def test_pairs_of_both_agents_at_every_depth_the_root_included():
    pairs, counts = choose(make_game(), question_tree(), ["prover", "verifier"])
    assert [brief(pair) for pair in pairs] == [
        ("verifier", REJECT, "Question: why?", 1.0, -0.5),
        ("prover", "Answer: so.", "Answer: thus.", 1.0, 0.5),
        ("verifier", REJECT, ACCEPT, 1.0, -1.0),
    ]
    assert counts == {
        "candidates": 1,
        "nodes": 4,
        "turns": 4,
        "pairs": 3,
        "unanswered": 0,
        "too_close": 1,  # the two verdicts after "1.0"
        "identical": 0,
        "failed": 1,
    }


def test_answers_after_a_verdict_that_came_too_early_are_no_pair():
    """A server refuses the whole file for one prompt that ends with the answer before."""
    trees = Trees()
    trees.said("0", "verifier", "Question: why?").said("0.0", "prover", "Answer: so.")
    trees.said("0.0.0", "verifier", REJECT)  # in the third round of at least five
    for path, text, reward in (("0.0.0.0", "Answer: a.", 1), ("0.0.0.1", "Answer: b.", 0)):
        trees.said(path, "prover", text).said(f"{path}.0", "verifier", ACCEPT if reward else REJECT)
        trees.leaf(f"{path}.0", prover=reward, verifier=-reward)
    rounds = {"min_message_rounds": 5, "max_message_rounds": 5}
    choice = choose_pairs(
        make_game(nip_protocol=rounds), "group", 0, InMemory((trees.tables(),)), ["prover"]
    )
    assert [*choice.examples] == []
    assert (choice.counts["turns"], choice.counts["pairs"], choice.counts["unasked"]) == (1, 0, 1)


def test_a_pair_is_the_prompt_that_was_asked_and_two_raw_answers():
    game = make_game()
    pair = choose(game, question_tree(), ["verifier"])[0][1]
    situation = Situation("Return x plus 0.", "x + 0", None, 7)
    turns = [
        Turn(0, "verifier", "Question: why?", Move({"main": "Question: why?"})),
        Turn(1, "prover", "Answer: thus.", Move({"main": "Answer: thus."})),
    ]
    assert list(pair.messages) == game.render("verifier", situation, turns, 2)
    assert [m["role"] for m in pair.messages][-2:] == ["user", "system"]
    assert (pair.chosen, pair.rejected) == (REJECT, ACCEPT)
    assert pair.generations == ("a-0-0-0-1.1.0-verifier-0", "a-0-0-0-1.1.1-verifier-0")
    assert pair.episode == "a-e0-0-0-1.1.0"
    assert (pair.problem, pair.question_id, pair.y, pair.iteration) == ("p0", "q0", 0, 0)
    assert pair.tokens == 100 + len(REJECT) + len(ACCEPT)
    assert pair.reason == "interval"


def test_a_prompt_in_a_strict_chat_format_ends_where_the_agent_is_asked():
    """The prover was silent, so the verifier's own question is the last that was said."""
    trees = Trees().said("0", "verifier", "Question: why?")
    trees.said("0.0", "prover", "", invalid="empty")
    for child, reward in (("0.0.0", 1), ("0.0.1", -1)):
        trees.said(child, "verifier", REJECT if reward > 0 else ACCEPT)
        trees.leaf(child, prover=0, verifier=reward)
    game = make_game(
        nip_protocol={"max_message_rounds": 5},
        protocol_common={"prover_invalid_response_penalty": -1.0},
        agents={"_default": {"chat_format": "alternating"}},
    )
    [pair] = choose(game, trees, ["verifier"])[0]
    assert [m["role"] for m in pair.messages][-2:] == ["assistant", "user"]


def solo(*answers, failed=(), **settings):
    """One node of a verifier alone: (text, reward) of each child."""
    trees = Trees("solo_verifier")
    for i, (text, reward) in enumerate(answers):
        trees.said(str(i), "verifier", text)
        trees.leaf(str(i), verifier=reward, failed=i in failed)
    game = make_game("solo_verifier", malt=settings)
    return choose(game, trees, ["verifier"])


def test_an_interval_has_to_be_wider_than_the_share_of_the_range():
    # The range is 2, so a quarter of it is 0.5, and just as much is not more.
    assert solo(("a", 0.5), ("b", 0.0))[1]["too_close"] == 1
    [pair] = solo(("a", 0.51), ("b", 0.0))[0]
    assert brief(pair) == ("verifier", "a", "b", 0.51, 0.0)
    assert solo(("a", 0.9), ("b", 0.8), interval_threshold_proportion=0.01)[0]
    assert not solo(("a", 0.98), ("b", -1), interval_threshold_proportion=0.99)[0]
    # A rounding error decides nothing.
    assert not solo(("a", 0.1 + 0.2), ("b", 0.0), interval_threshold_proportion=0.15)[0]


def test_positive_and_negative_lie_on_two_sides_of_the_middle():
    method = {"pair_selection_method": "positive_negative"}
    assert solo(("a", 1.0), ("b", 0.1), **method)[1]["too_close"] == 1
    assert solo(("a", -0.1), ("b", -1.0), **method)[1]["too_close"] == 1
    [pair] = solo(("a", 0.0), ("b", -0.1), **method)[0]
    assert (*brief(pair)[1:3], pair.reason) == ("a", "b", "positive_negative")
    # The middle itself is positive, also where a mean falls short of it by a rounding error.
    assert solo(("a", 0.1 + 0.2 - 0.3 - 1e-16), ("b", -0.5), **method)[0]


def pair_of_two(protocol, agent, better, worse, **more):
    """Of two answers of `agent` in its first turn, worth this much, the pair; None: too close."""
    trees = Trees(protocol)
    for i, reward in enumerate((better, worse)):
        text = f"Decision: {'accept' if i else 'reject'}" if agent == "verifier" else f"Answer: {i}"
        trees.said(str(i), agent, text)
        trees.leaf(str(i), **{agent: reward})
    game = make_game(protocol, malt={"pair_selection_method": "positive_negative"}, **more)
    pairs, counts = choose(game, trees, [agent])
    assert len(pairs) + counts["too_close"] == 1
    return (pairs[0].reward, pairs[0].rejected_reward) if pairs else None


PROTOCOLS = ("nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier", "multi_channel_test")
ODD = {
    "verifier_terminated_penalty": -4.0,
    "verifier_reward": 3.0,
    "verifier_incorrect_penalty": 1.0,
    "verifier_no_guess_reward": -0.5,
    "prover_reward": 2.0,
    "prover_invalid_response_penalty": -7.0,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_middle_is_that_of_right_and_wrong_whatever_no_verdict_costs(protocol):
    def of(agent, better, worse):
        return pair_of_two(protocol, agent, better, worse, protocol_common=ODD)

    assert of("verifier", 3.0, 1.0) == (3.0, 1.0)  # right to wrong: the middle is 2
    assert of("verifier", 1.0, -4.0) is None  # wrong is nothing to prefer, not even to silence
    assert of("verifier", 2.0, 1.9) and of("verifier", 1.9, -4.0) is None
    if protocol in ("solo_verifier", "multi_channel_test"):
        return  # no prover is paid
    prover = "prover" if protocol in ("nip", "adp") else "prover0"
    assert of(prover, 2.0, 0.0) == (2.0, 0.0)  # the middle is 1
    assert of(prover, 0.0, -7.0) is None


def test_with_a_shared_reward_a_prover_s_middle_is_the_verifier_s():
    shared = {"protocol_common": {**ODD, "shared_reward": True}}
    assert pair_of_two("nip", "prover", 3.0, 1.5, **shared) == (3.0, 1.5)
    assert pair_of_two("nip", "prover", 1.5, -4.0, **shared) is None


def test_in_a_zero_knowledge_game_players_keep_the_middle_of_the_wrapped_protocol():
    more = {
        "protocol_common": {**ODD, "zero_knowledge": True},
        "zk_protocol": {"aux_prover_reward_coefficient": 5.0},
        "merlin_arthur_protocol": {"pay_silent_prover": False},
    }
    for protocol in ("nip", "merlin_arthur"):
        zk = make_game(protocol, **more).protocol
        provers = {agent: 1.0 for agent in zk.provers}
        middles = {agent: zk.reward_mid_point(agent) for agent in zk.agent_names}
        extra = {"adversarial_verifier": 0.0, "simulator": 0.0}
        assert middles == {**provers, "verifier": 2.0, **extra}


def test_equal_texts_make_no_pair_and_are_counted():
    pairs, counts = solo(("same", 1), ("same", -1))
    assert pairs == [] and counts["identical"] == 1
    for seed in range(5):
        pairs, counts = solo(("same", 1), ("same", -1), ("other", -1 + seed / 100))
        assert [pair.rejected for pair in pairs] == ["other"] and counts["identical"] == 0


def test_failed_leaves_are_in_no_pair():
    pairs, counts = solo(("a", 1), ("b", -1), failed=(1,))
    assert pairs == [] and (counts["unanswered"], counts["failed"]) == (1, 1)


def test_only_agents_that_gave_a_valid_answer_are_paired():
    trees = Trees("debate")
    everything = ("prover0", "prover1", "verifier")
    for child, verdict in ((0, 1), (1, -1)):
        path = f"0.{child}"
        if child == 0:
            trees.said("0", "verifier", "Question for Expert_1: a\nQuestion for Expert_2: b")
        trees.said(path, "prover0", f"Answer: {child}")
        trees.said(path, "prover1", "", invalid="empty", attempt=0)
        if child == 0:
            trees.said(path, "prover1", "Answer: at last", attempt=1)
        paid = {"prover0": float(verdict > 0), "prover1": float(verdict < 0), "verifier": verdict}
        trees.leaf(path, **paid)
    pairs, counts = choose(make_game("debate"), trees, everything)
    assert [brief(pair) for pair in pairs] == [("prover0", "Answer: 0", "Answer: 1", 1.0, 0.0)]
    # The verifier was not asked there; prover1 was, but was silent once.
    assert (counts["nodes"], counts["turns"], counts["unanswered"]) == (1, 2, 1)


def test_both_provers_of_a_round_are_paired_each_by_its_own_reward():
    trees = Trees("debate")
    trees.said("0", "verifier", "Question for Expert_1: a\nQuestion for Expert_2: b")
    for child, rewards in enumerate(((1, 0), (0, 1), (0, 1))):
        for prover in (0, 1):
            trees.said(f"0.{child}", f"prover{prover}", f"Answer: {prover} {child}")
        trees.leaf(f"0.{child}", prover0=rewards[0], prover1=rewards[1], verifier=0)
    pairs, _ = choose(make_game("debate"), trees, ["prover0", "prover1"])
    first, second = pairs
    assert (first.agent, first.chosen) == ("prover0", "Answer: 0 0")
    assert (second.agent, second.rejected) == ("prover1", "Answer: 1 0")
    only = choose(make_game("debate"), trees, ["prover1"])[0]
    assert [brief(pair) for pair in only] == [brief(second)]


def test_which_of_the_possible_pairs_is_drawn_by_the_seed():
    answers = [(f"good {i}", 1) for i in range(4)] + [(f"bad {i}", -1) for i in range(4)]
    trees = Trees("solo_verifier")
    for problem in range(40):
        for i, (text, reward) in enumerate(answers):
            trees.said(str(i), "verifier", text, problem=problem)
            trees.leaf(str(i), verifier=reward, problem=problem)

    def drawn(seed, iteration=0):
        pairs, _ = choose(make_game("solo_verifier", seed=seed), trees, ["verifier"], iteration)
        assert len(pairs) == 40  # one for each node
        return [(pair.chosen, pair.rejected) for pair in pairs]

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1) != drawn(1, iteration=1)  # where earlier rollouts are used again
    assert len(set(drawn(1))) > 10


def test_plain_episodes_are_no_trees():
    trees = Trees("solo_verifier")
    trees.leaf("", verifier=1).leaf("", verifier=-1, sample=1)
    pairs, counts = choose(make_game("solo_verifier"), trees, ["verifier"])
    assert pairs == [] and set(counts.values()) == {0}


def test_an_answer_that_this_version_reads_otherwise_stops_the_stage():
    trees = question_tree()
    trees.generations[1]["text"] = ""
    with pytest.raises(StageError, match=r"counted as valid .* another version of nip"):
        choose(make_game(), trees, ["verifier"])


# Laws


@st.composite
def forests(draw):
    """Trees of nip with any shapes, rewards, failures and invalid answers."""
    trees = Trees()
    texts = st.sampled_from(["Answer: a", "Answer: b", "Answer: c"])

    def grow(path, problem, iteration):
        for child in range(draw(st.integers(1, 3))):
            here = f"{path}.{child}" if path else str(child)
            place = {"problem": problem, "iteration": iteration}
            agent = "verifier" if len(parse_path(here)) % 2 else "prover"
            ends = len(parse_path(here)) == 3 or draw(st.booleans())
            if draw(st.integers(0, 5)) == 0:
                trees.said(here, agent, "", invalid="empty", **place)
                trees.leaf(here, failed=True, prover=0, verifier=0, **place)
                continue
            trees.said(here, agent, draw(texts), **place)
            if ends:
                rewards = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])
                trees.leaf(here, failed=draw(st.integers(0, 5)) == 0,
                           prover=draw(rewards), verifier=draw(rewards), **place)  # fmt: skip
            else:
                grow(here, problem, iteration)

    for problem in range(draw(st.integers(1, 3))):
        grow("", problem, draw(st.integers(0, 1)))
    return trees


def naive_value(leaves, path, agent):
    """The expected reward, by its definition."""
    if path in leaves:
        row = leaves[path]
        paid = {entry["agent"]: entry["reward"] for entry in row["rewards"]}
        return None if row["outcome"] == "failed" else paid[agent]
    depth = len(parse_path(path)) + 1
    below = {parse_path(leaf)[:depth] for leaf in leaves if f"{leaf}.".startswith(f"{path}.")}
    values = [naive_value(leaves, ".".join(map(str, node)), agent) for node in sorted(below)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@settings(max_examples=60)
@given(forests(), st.sampled_from(["interval", "positive_negative"]), st.integers(0, 10**6))
def test_the_laws_of_pairs_hold_for_any_trees(trees, method, shuffle_seed):
    game = make_game(malt={"pair_selection_method": method}, seed=shuffle_seed)
    agents = ["prover", "verifier"]
    pairs, counts = choose(game, trees, agents)
    tables = trees.tables()
    rows = {row["key"]: row for row in tables.generations.to_pylist()}
    episodes = {row["key"]: row for row in tables.episodes.to_pylist()}
    seen = set()
    for pair in pairs:
        better, worse = (rows[key] for key in pair.generations)
        tree = episodes[better["episode"]]
        assert tree["problem"] == episodes[worse["episode"]]["problem"] == pair.problem
        parents = [row["branch_path"].rpartition(".")[0] for row in (better, worse)]
        assert parents[0] == parents[1]
        assert {better["agent"], worse["agent"]} == {pair.agent}
        assert better["invalid_reason"] is worse["invalid_reason"] is None
        assert (better["text"], worse["text"]) == (pair.chosen, pair.rejected)
        assert pair.chosen != pair.rejected
        leaves = {
            row["branch_path"]: row
            for row in episodes.values()
            if row["problem"] == pair.problem and row["iteration"] == pair.iteration
        }
        for row, value in ((better, pair.reward), (worse, pair.rejected_reward)):
            expected = naive_value(leaves, row["branch_path"], pair.agent)
            assert value == pytest.approx(expected, abs=1e-12)
        assert pair.reward > pair.rejected_reward
        below = episodes[pair.episode]
        assert f"{below['branch_path']}.".startswith(f"{better['branch_path']}.")
        assert below["outcome"] != "failed"
        place = (pair.problem, pair.iteration, parents[0], pair.agent)
        assert place not in seen
        seen.add(place)
    assert counts["candidates"] == len({(e["problem"], e["iteration"]) for e in episodes.values()})
    # Neither the order of rows nor how they are cut into shards matters, nor the run's name.
    shuffled, _ = choose(game, trees, agents, shuffle_seed=shuffle_seed)
    assert sorted(p.key for p in shuffled) == sorted(p.key for p in pairs)
    parts = []
    for problem in sorted(set(tables.episodes["problem"].to_pylist())):
        own = tables.episodes.filter(pc.equal(tables.episodes["problem"], problem))
        is_own = pc.is_in(tables.generations["episode"], value_set=own["key"])
        parts.append(RolloutTables(own, tables.generations.filter(is_own)))
    assert list(choose_pairs(game, "group", 0, InMemory(tuple(parts)), agents).examples) == pairs
    other = Trees(run="b")
    other.episodes = [{**e, "key": "b" + e["key"][1:], "run": "b"} for e in trees.episodes]
    other.generations = [{**g, "key": "b" + g["key"][1:]} for g in trees.generations]
    other._first = {node: ("b" + k[1:], path) for node, (k, path) in trees._first.items()}
    assert [brief(p) for p in choose(game, other, agents)[0]] == [brief(p) for p in pairs]


async def test_the_prompt_of_a_pair_is_what_the_server_was_asked():
    """Played for real: for every pair there is a request with these messages."""
    game = make_game(
        agents={"_default": {"model_provider": "SelfHosted", "model_name": "m"}},
        rl={"rollouts_per_iteration": None},
        malt={"interval_threshold_proportion": 0.01},
    )

    def script(body):
        asked = sum(m["role"] == "assistant" for m in body["messages"])
        number = len(body["messages"][-1]["content"])
        if agent_of(body) == "prover":
            return [f"Answer: {number} {i}" for i in range(body.get("n", 1))]
        if not asked:
            return [f"Question: {i}?" for i in range(body.get("n", 1))]
        return [ACCEPT, REJECT][: body.get("n", 1)]

    branch = Branching(game.parameters, game.protocol, 0)
    played = await play(game.parameters, script, on=problems(3), branch=branch)
    tables = played.tables()
    shards = InMemory((RolloutTables(tables.episodes, tables.generations),))
    pairs = list(choose_pairs(game, "group", 0, shards, ["prover", "verifier"]).examples)
    assert len(pairs) == 3 * 4  # the verdicts; what came before is worth the same
    asked = [body["messages"] for body in played.server.bodies if agent_of(body) == "verifier"]
    assert all(list(pair.messages) in asked for pair in pairs)
    by_episode = rows_by_episode(tables)
    for pair in pairs:
        mine = [row["key"] for row in by_episode[pair.episode]]
        assert pair.generations[0] in mine and pair.generations[1] not in mine
    assert all(a.problem != b.problem or a.key != b.key for a, b in pairwise(pairs))


async def test_expert_iteration_over_earlier_trees_learns_whole_conversations():
    """A run that goes on from MALT may imitate: what leaves share is part of each of them."""
    game = make_game(
        agents={"_default": {"model_provider": "SelfHosted", "model_name": "m"}},
        rl={"rollouts_per_iteration": None},
    )

    def script(body):
        count = body.get("n", 1)
        if agent_of(body) == "prover":
            return [f"Answer: {i}" for i in range(count)]
        if any(m["role"] == "assistant" for m in body["messages"]):
            return [ACCEPT, REJECT][:count]
        return [f"Question: {i}?" for i in range(count)]

    branch = Branching(game.parameters, game.protocol, 0)
    tables = (await play(game.parameters, script, on=problems(3), branch=branch)).tables()
    shards = InMemory((RolloutTables(tables.episodes, tables.generations),))
    for agent, own in (("verifier", [0, 2]), ("prover", [1])):
        choice = choose_examples(game, agent, 1, shards, [agent])
        examples = list(choice.examples)
        assert len(examples) == 3 * 4 and choice.counts.get("silent") is None
        rows = {row["key"]: row for row in tables.generations.to_pylist()}
        paths = {row["key"]: row["branch_path"] for row in tables.episodes.to_pylist()}
        for example in examples:
            found = [rows[key] for key in example.generations]
            assert [row["round"] for row in found] == own
            leaf = list_ancestors(paths[example.episode])
            assert [row["branch_path"] for row in found] == [leaf[r] for r in own]
            said = [m["content"] for m in example.messages if m["role"] == "assistant"]
            assert said == [row["text"] for row in found]


async def test_the_prompt_of_a_pair_after_hints_is_what_the_server_was_asked_again():
    agent = {"model_provider": "SelfHosted", "model_name": "m"}
    game = make_game(
        agents={"_default": {**agent, **HINTED["_default"]}}, rl={"rollouts_per_iteration": None}
    )

    def script(body):
        if agent_of(body) == "prover":
            return ["Answer: b"] * body.get("n", 1)
        if "could not be used" in body["messages"][-1]["content"]:
            return [(ACCEPT, REJECT)[body["seed"] % 2]]
        asks = len(body["messages"]) == 1
        return ["Question: a?" if asks else "Decision: maybe"] * body.get("n", 1)

    branch = Branching(game.parameters, game.protocol, 0)
    played = await play(game.parameters, script, on=problems(3), branch=branch)
    tables = played.tables()
    shards = InMemory((RolloutTables(tables.episodes, tables.generations),))
    pairs = list(choose_pairs(game, "group", 0, shards, ["verifier"]).examples)
    asked = [body["messages"] for body in played.server.bodies]
    assert pairs and all(list(pair.messages) in asked for pair in pairs)
    assert all("could not be used" in pair.messages[-1]["content"] for pair in pairs)


HINTED = {"_default": {"retry_hint": True, "train_hints": "keep"}}


def test_two_answers_after_the_same_hint_are_a_pair_behind_it():
    def tree(*reasons):
        trees = Trees()
        for path, reason, text in zip(
            "012", reasons, (ACCEPT, REJECT, "Question: a?"), strict=True
        ):
            if reason is not None:
                trees.said(path, "verifier", "", invalid=reason)
            trees.said(path, "verifier", text, attempt=int(reason is not None))
            trees.leaf(path, prover=0, verifier=float(text == REJECT))
        return trees

    def pairs_and_counts(trees, agents):
        game = make_game(malt={"num_responses_per_timestep": 3}, agents=agents)
        return choose(game, trees, ["verifier"])

    empty, unclear = "empty answer", "a verdict that is not clear"
    # 1. Behind the same hint, as both were asked for.
    [pair], _ = pairs_and_counts(tree(empty, empty, None), HINTED)
    assert (pair.chosen, pair.rejected) == (REJECT, ACCEPT)
    assert "could not be used: it was empty" in pair.messages[-1]["content"]
    # 2. Behind none, where neither had one.
    [pair], _ = pairs_and_counts(tree(empty, None, None), HINTED)
    assert (pair.chosen, pair.rejected) == (REJECT, "Question: a?")
    assert "could not be used" not in str(pair.messages)
    # 3. Answers to different chats are no pair: what they were told would count as their merit.
    pairs, counts = pairs_and_counts(tree(empty, unclear, None), HINTED)
    assert pairs == [] and counts["other_hints"] == 1
    # 4. Where hints are not trained, all are taken for answers to the chat without them.
    for reasons in ((empty, empty, None), (empty, unclear, None)):
        [pair], counts = pairs_and_counts(tree(*reasons), {"_default": {"retry_hint": True}})
        assert "could not be used" not in str(pair.messages) and "other_hints" not in counts


def test_the_thoughts_before_both_answers_are_kept_if_they_are_asked_for():
    trees = question_tree()
    for row in trees.generations:
        row |= {"reasoning": f"thought {row['branch_path']}"}
    hosted = {"model_provider": "SelfHosted", "model_name": "m"}
    keeps = {"_default": hosted, "verifier": {"train_reasoning": "keep"}}
    pairs, _ = choose(make_game(agents=keeps), trees, ["prover", "verifier"])
    assert [(p.agent, p.chosen_reasoning, p.rejected_reasoning) for p in pairs] == [
        ("verifier", "thought 0", "thought 1"),
        ("prover", None, None),
        ("verifier", "thought 1.1.0", "thought 1.1.1"),
    ]
    plain, _ = choose(make_game(agents={"_default": hosted}), trees, ["prover", "verifier"])
    assert {p.chosen_reasoning for p in plain} == {None}
    assert [brief(pair) for pair in plain] == [brief(pair) for pair in pairs]
