"""MALT: from trees of responses to pairs of a better and a worse answer to one prompt, for DPO.

The value of an answer is its agent's expectation after it: the mean over the values of the node's
children, and of a leaf its total reward. The mean is over answers, not over leaves, so that an
answer counts the same whether its subtree ends early or late. (The ancestor of this method, in
neural-interactive-proofs, takes the mean over all leaves below.) Failed leaves, and nodes above
nothing else, are in no mean and in no pair.

At every node with two children or more, the root included, at most one pair is drawn for each
trained agent, of two answers that it gave there. Which ones may be a pair is
`pure_text_malt.pair_selection_method`. Where an agent's answers are trained behind the hints after
which they were given, the two must have been given in one chat: after the same hint, or after none.
DPO compares answers to one prompt, and any other difference would be learned as if it were their
merit. The order of the rows in the tables does not matter, nor does the run's name. Episodes that
were played without branching are no trees and give no pairs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import pyarrow.compute as pc

from nip_core.errors import StageError
from nip_core.game.answer_rows import SpokenRow, place_of
from nip_core.game.answers.reasons import Kind
from nip_core.game.render import Game, InvalidResponse, Situation, parse_columns
from nip_core.hashing import derive_key, derive_seed
from nip_core.parameters.blocks.opponents import split_agents
from nip_core.protocols.reward_function import bound_reward, halve_reward
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.table_rows import read_rows, row_columns
from nip_core.rollouts.trees import (
    Path,
    Tree,
    expected_rewards,
    group_children,
    parse_path,
    tree_of,
)
from nip_core.tolerance import at_least, more_than
from nip_core.trainers.base import Choice, Pair, Rollouts
from nip_core.trainers.conversations import keeps_hints, keeps_reasoning

_Rule = Callable[[float, float], bool]
"""Whether two answers of these expected rewards, the better one first, may be a pair."""


class _Leaf(NamedTuple):
    """The parts of an episode that pairs are made of; the fields are columns."""

    key: str
    run: str
    split: str
    iteration: int
    problem: str
    sample: int
    branch_path: str
    question_id: str
    question: str
    solution: str
    columns: str | None
    y: int
    seed: int
    prover_stance: int | None
    outcome: str
    rewards: Mapping[str, float]
    opponent: str | None


@dataclass(slots=True, kw_only=True)
class _TreeAnswer(SpokenRow):
    """The parts of a generation that pairs are made of; the fields are columns."""

    key: str
    episode: str
    branch_path: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    reasoning: str | None


def choose_pairs(
    game: Game, group: str, iteration: int, rollouts: Rollouts, agents: Sequence[str]
) -> Choice:
    """Choose the pairs to prefer by: see `nip_core.trainers.base.Chooser`.

    Counts: ``candidates`` are trees, ``nodes`` their nodes that branch, ``turns`` the
    times that one of `agents` was asked at one of these. Of the turns each gave one of the
    ``pairs`` or is left out: ``earlier_model`` (the agent played with one), ``unanswered`` (fewer
    than two valid answers from which an episode came to its end), ``too_close`` (no two answers far
    enough apart), ``other_hints`` (such two were given after different hints, where these are
    trained), ``identical`` (such two have the same text, and the same thoughts where these are
    trained on), ``unasked`` (the chat before them ends with the agent's own message). ``failed``
    are leaves.
    """
    names = ("candidates", "nodes", "turns", "pairs")
    counts = dict.fromkeys((*names, "unanswered", "too_close", "identical", "failed"), 0)
    pairs = _make_pairs(game, iteration, rollouts, agents, counts)
    keeps = any(keeps_reasoning(game, agent) for agent in agents)
    return Choice("dpo", pairs, counts, has_reasoning=keeps)


@dataclass(frozen=True)
class _Candidate:
    """A valid answer of an agent, and the node after it."""

    node: Path
    generation: _TreeAnswer
    value: float  # the agent's expectation there
    wrong: Kind | None = None  # the fault that the hint before it named, where hints are trained


class _Tree:
    """The leaves of a tree, and the generations at its nodes."""

    def __init__(self, leaves: Sequence[_Leaf], generations: Mapping[str, Sequence[_TreeAnswer]]):
        self.leaves = {parse_path(row.branch_path): row for row in leaves}
        self.facts = leaves[0]  # in which all of them agree
        self.generations = {parse_path(path): rows for path, rows in generations.items()}
        self.children = group_children(self.leaves)
        self.values = expected_rewards(
            {
                path: None if row.outcome == "failed" else row.rewards
                for path, row in self.leaves.items()
            }
        )

    def was_asked(self, node: Path, agent: str) -> bool:
        """Say whether the agent moved after `node`, validly or not."""
        return any(
            row.agent == agent
            for child in self.children[node]
            for row in self.generations.get(child, ())
        )

    def candidates(self, game: Game, node: Path, agent: str) -> list[_Candidate]:
        """Find the agent's valid answers after `node` with a known value.

        Of a turn only the first exchange: its others answer messages that differ by child.
        """
        answers = []
        for child in self.children[node]:
            value, rows = self.values[child], self.generations.get(child, ())
            hints = game.find_mistakes(rows) if keeps_hints(game, agent) else {}
            for row in rows:
                if value is None or row.agent != agent or row.invalid_reason is not None:
                    continue
                if row.exchange:
                    continue
                wrong = hints.get(place_of(row))
                answers.append(_Candidate(child, row, value[agent], wrong))
        return answers

    def leaf_below(self, node: Path) -> _Leaf:
        """Find the first episode below `node` with an end other than failure."""
        return next(
            self.leaves[path]
            for path in sorted(self.leaves)
            if path[: len(node)] == node and self.leaves[path].outcome != "failed"
        )

    def before(self, node: Path) -> list[_TreeAnswer]:
        """List the generations on the way to `node`."""
        lengths = range(1, len(node) + 1)
        return [row for length in lengths for row in self.generations.get(node[:length], ())]


def _make_pairs(
    game: Game, iteration: int, rollouts: Rollouts, agents: Sequence[str], counts: dict[str, int]
) -> Iterator[Pair]:
    seed = (game.parameters.seed, iteration)
    rules = {agent: _make_rule(game, agent) for agent in agents}
    for shard in rollouts.shards():
        for tree in _read_trees(shard):
            counts["candidates"] += 1
            counts["failed"] += sum(row.outcome == "failed" for row in tree.leaves.values())
            for node in sorted(tree.children):
                if len(tree.children[node]) < 2:
                    continue
                counts["nodes"] += 1
                for agent in agents:
                    if not tree.was_asked(node, agent):
                        continue
                    counts["turns"] += 1
                    if agent in split_agents(tree.facts.opponent):
                        counts["earlier_model"] = counts.get("earlier_model", 0) + 1
                        continue
                    choice = _choose(game, tree, node, agent, rules[agent], seed)
                    if isinstance(choice, str):
                        counts[choice] = counts.get(choice, 0) + 1
                        continue
                    pair = _make_pair(game, tree, node, agent, *choice)
                    # After a verdict that came too early to count the agent goes on by itself.
                    # Servers train no answer to an answer, and would refuse the whole file.
                    if pair.messages[-1]["role"] == "assistant":
                        counts["unasked"] = counts.get("unasked", 0) + 1
                        continue
                    counts["pairs"] += 1
                    yield pair


def _read_trees(shard: RolloutTables) -> Iterator[_Tree]:
    """Read the trees of a shard in the order of their first leaves."""
    is_leaf = pc.not_equal(shard.episodes["branch_path"], "")
    episodes = shard.episodes.select(_Leaf._fields).filter(is_leaf)
    leaves: dict[Tree, list[_Leaf]] = defaultdict(list)
    tree_at: dict[str, Tree] = {}
    for leaf in read_rows(episodes, _Leaf):
        tree = tree_at[leaf.key] = tree_of(leaf)
        leaves[tree].append(leaf)
    of_leaf = pc.is_in(shard.generations["episode"], value_set=episodes["key"])
    columns = [name for name in row_columns(_TreeAnswer) if name != "token_logprobs"]
    generations = shard.generations.select(columns).filter(of_leaf)
    at_node: dict[Tree, dict[str, list[_TreeAnswer]]] = defaultdict(lambda: defaultdict(list))
    for answer in read_rows(generations, _TreeAnswer):
        at_node[tree_at[answer.episode]][answer.branch_path].append(answer)
    for tree, rows in leaves.items():
        yield _Tree(rows, at_node[tree])


def _choose(
    game: Game, tree: _Tree, node: Path, agent: str, makes_pair: _Rule, seed: Sequence[int]
) -> tuple[_Candidate, _Candidate] | str:
    """Choose a better and a worse answer of the agent after `node`, or say why there are none."""
    # 1. Two valid answers are needed, after which an episode came to its end.
    candidates = tree.candidates(game, node, agent)
    if len(candidates) < 2:
        return "unanswered"
    # 2. They must be far enough apart, given in one chat, and not the same text.
    possible = [
        (better, worse)
        for better, worse in permutations(candidates, 2)
        if makes_pair(better.value, worse.value)
    ]
    if not possible:
        return "too_close"
    possible = [(better, worse) for better, worse in possible if better.wrong == worse.wrong]
    if not possible:
        return "other_hints"
    thinks = keeps_reasoning(game, agent)
    possible = [
        (better, worse)
        for better, worse in possible
        if better.generation.text != worse.generation.text
        or (thinks and better.generation.reasoning != worse.generation.reasoning)
    ]
    if not possible:
        return "identical"
    # 3. Draw one pair, by the place in the tree and the seed alone.
    facts = tree.facts
    place = (facts.split, facts.iteration, facts.problem, facts.sample, node)
    draw = derive_seed("pair", *seed, *place, agent)
    return possible[draw % len(possible)]


def _make_rule(game: Game, agent: str) -> _Rule:
    settings = game.parameters.pure_text_malt
    if settings.pair_selection_method == "positive_negative":
        # Not the middle of the least and the most: a high price of no verdict, or of an invalid
        # answer, would take it below what a wrong verdict pays.
        middle = halve_reward(game.protocol, agent)
        return lambda better, worse: at_least(better, middle) and not at_least(worse, middle)
    lowest, highest = bound_reward(game.protocol, agent)
    distance = settings.interval_threshold_proportion * (highest - lowest)
    return lambda better, worse: more_than(better - worse, distance)


def _make_pair(
    game: Game, tree: _Tree, node: Path, agent: str, better: _Candidate, worse: _Candidate
) -> Pair:
    # Leaves differ in the solution and its label where it was written on the way.
    facts, rejected = tree.leaf_below(better.node), worse.generation
    better_answer = better.generation
    columns = parse_columns(facts.columns)
    situation = Situation(facts.question, facts.solution, facts.prover_stance, facts.seed, columns)
    try:
        turns = game.turns(tree.before(node), facts.seed)
    except InvalidResponse as invalid:
        raise StageError(
            f"episode {better_answer.episode}: an answer that counted as valid when it was played "
            f"is not ({invalid.reason}); another version of nip has played it: train with that one"
        ) from None
    keeps = keeps_reasoning(game, agent)
    counts = [
        better_answer.prompt_tokens,
        better_answer.completion_tokens,
        rejected.completion_tokens,
    ]
    return Pair(
        key=derive_key("pair", better_answer.key, rejected.key),
        agent=agent,
        episode=facts.key,
        generations=(better_answer.key, rejected.key),
        iteration=facts.iteration,
        problem=facts.problem,
        question_id=facts.question_id,
        y=facts.y,
        reward=better.value,
        reason=game.parameters.pure_text_malt.pair_selection_method,
        tokens=sum(counts) if counts[0] and sum(counts[1:]) else None,
        messages=tuple(game.render(agent, situation, turns, len(node), better.wrong)),
        chosen=better_answer.text,
        rejected=rejected.text,
        rejected_reward=worse.value,
        chosen_reasoning=better_answer.reasoning if keeps else None,
        rejected_reasoning=rejected.reasoning if keeps else None,
    )
