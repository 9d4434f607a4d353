"""Expert iteration: train each agent on its side of the episodes that went well for it.

Pure functions from rollouts to examples. Every example names the episode and the generations it
came from and why it was chosen. The order of the rows in the tables does not matter, nor does
the run's name: each choice depends on which problem was played when, on rewards and on seeds.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from nip_core.agents.render import ChatMessage, Game, InvalidResponse, Situation, Turn
from nip_core.errors import StageError
from nip_core.hashing import derive_key, derive_seed
from nip_core.parameters import HyperParameters, PureTextEiParameters, TextRlParameters
from nip_core.protocols import make_protocol


@dataclass(frozen=True)
class Example:
    """One training conversation. Its assistant messages are learned."""

    key: str
    agent: str
    episode: str
    generations: tuple[str, ...]  # keys of the agent's generations in it
    iteration: int
    problem: str
    y: int
    reward: float
    reason: str  # threshold, weighted, true_label
    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True)
class _Side:
    """An episode from one agent's side."""

    place: str  # which episode it is, without the run's name
    episode: Mapping[str, Any]
    turns: Sequence[Turn]
    generations: tuple[str, ...]
    reward: float


_PLACE = ("split", "iteration", "problem", "sample", "branch_path")


def choose_examples(
    game: Game,
    group: str,
    iteration: int,
    episodes: pa.Table,
    generations: pa.Table,
    agents: Sequence[str] | None = None,
) -> list[Example]:
    """Training examples of a shared model group, in a stable order without a pattern.

    `episodes` and `generations` are the training rollouts to choose from (one iteration's or
    several's, see `nip_core.rollouts.schema`). Failed episodes are left out, and so are those
    in which the agent never spoke. `agents` are those of the group that are trained (None: all).
    Raises StageError for rollouts whose answers this version of nip reads otherwise.
    """
    parameters = game.parameters
    agents = parameters.groups[group] if agents is None else agents
    chosen: list[tuple[_Side, str, str, int]] = []
    sides = _sides(game, agents, episodes, generations)
    for agent in agents:
        replaced, others = _split_for_replacement(
            sides[agent],
            0.0 if agent != "verifier" else replacement_proportion(parameters.text_rl, iteration),
            parameters.seed,
            iteration,
            agent,
        )
        drawn = select(
            [side.reward for side in others],
            [side.place for side in others],
            parameters.pure_text_ei,
            derive_seed("select", parameters.seed, iteration, agent),
        )
        method = parameters.pure_text_ei.rollout_selection_method
        reason = "threshold" if method == "threshold" else "weighted"
        picked = [(others[i], reason, draw) for i, draw in drawn]
        if parameters.pure_text_ei.balance_decisions and agent == "verifier":
            picked = _balanced(picked)
        picked += [(side, "true_label", 0) for side in replaced]
        chosen += [(side, agent, reason, draw) for side, reason, draw in picked]
    chosen.sort(key=lambda choice: (choice[0].place, *choice[1:]))
    return [_example(game, side, agent, reason, draw) for side, agent, reason, draw in chosen]


def replacement_proportion(parameters: TextRlParameters, iteration: int) -> float:
    """Share of rollouts whose last verifier message becomes the true label, in [0, 1]."""
    start = parameters.verifier_guess_replacement_proportion
    rate = parameters.verifier_guess_replacement_annealing_rate
    match parameters.verifier_guess_replacement_annealing:
        case "linear":
            return float(max(start - iteration * rate, 0.0))
        case "exponential":
            return float(start * (1 - rate) ** iteration)
    return start


def never_chosen(parameters: HyperParameters) -> dict[str, float]:
    """The agents that are to be trained but can't earn the threshold, with the most they can."""
    settings = parameters.pure_text_ei
    if settings.rollout_selection_method != "threshold":
        return {}
    protocol = make_protocol(parameters)
    trained = [a for group in parameters.trainable_groups for a in parameters.groups[group]]
    most = {agent: protocol.max_reward(agent) for agent in trained}
    if parameters.text_rl.verifier_guess_replacement_proportion > 0:
        most.pop("verifier", None)  # its right answers are written for it
    return {agent: reward for agent, reward in most.items() if reward < settings.reward_threshold}


def select(
    rewards: Sequence[float], keys: Sequence[str], parameters: PureTextEiParameters, seed: int
) -> list[tuple[int, int]]:
    """Indices of the chosen rollouts, each with the number of the draw (0 without repeats).

    Threshold: every reward that reaches it. Weighted: round(n * factor) draws with probability
    growing linearly with the reward above the minimum; equal rewards give equal probability.
    """
    if parameters.rollout_selection_method == "threshold":
        return [(i, 0) for i, r in enumerate(rewards) if r >= parameters.reward_threshold]
    if not rewards:
        return []
    order = sorted(range(len(rewards)), key=lambda i: keys[i])
    values = np.array([rewards[i] for i in order], dtype=np.float64)
    minimum = parameters.weighting_minimum
    floor = float(values.min()) if minimum is None else minimum
    weights = np.maximum(values, floor) - floor
    even = np.full(len(values), 1 / len(values))
    weights = weights / weights.sum() if weights.sum() > 0 else even
    epsilon = parameters.weighting_epsilon
    weights = (weights + epsilon * even) / (1 + epsilon)
    size = round(len(values) * parameters.weighting_sample_size_factor)
    drawn = np.random.default_rng(seed).choice(
        len(values), size=size, replace=parameters.weighting_use_replacement, p=weights
    )
    times: dict[int, int] = defaultdict(int)
    result = []
    for place in drawn:
        index = order[int(place)]
        result.append((index, times[index]))
        times[index] += 1
    return result


def _sides(
    game: Game, agents: Sequence[str], episodes: pa.Table, generations: pa.Table
) -> dict[str, list[_Side]]:
    columns = ["key", "episode", "round", "agent", "text", "invalid_reason", "token_logprobs"]
    by_episode: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in generations.select(columns).to_pylist():
        by_episode[row["episode"]].append(row)
    sides: dict[str, list[_Side]] = {agent: [] for agent in agents}
    for episode in episodes.to_pylist():
        if episode["outcome"] == "failed":
            continue
        rows = by_episode[episode["key"]]
        try:
            turns = game.turns(rows, episode["seed"])
        except InvalidResponse as invalid:
            raise StageError(
                f"episode {episode['key']}: an answer that counted as valid when it was played is "
                f"not ({invalid.reason}); another version of nip has played it: train with that one"
            ) from None
        place = derive_key(*(episode[column] for column in _PLACE))
        rewards = {entry["agent"]: entry["reward"] for entry in episode["rewards"]}
        for agent in agents:
            own = sorted(
                (row["round"], row["key"])
                for row in rows
                if row["agent"] == agent and row["invalid_reason"] is None
            )
            if own:
                keys = tuple(key for _, key in own)
                sides[agent].append(_Side(place, episode, turns, keys, rewards[agent]))
    return sides


def _split_for_replacement(
    sides: list[_Side], proportion: float, seed: int, iteration: int, agent: str
) -> tuple[list[_Side], list[_Side]]:
    shuffled = sorted(sides, key=lambda s: derive_key("replace", seed, iteration, agent, s.place))
    # An annealed share such as 0.5 - 3 * 0.1 may fall short of 0.2 by a rounding error.
    count = int(proportion * len(shuffled) + 1e-9)
    return shuffled[:count], shuffled[count:]


def _balanced(picked: list[tuple[_Side, str, int]]) -> list[tuple[_Side, str, int]]:
    by_decision: dict[int, list[tuple[_Side, str, int]]] = defaultdict(list)
    for item in sorted(picked, key=lambda p: (p[0].place, p[2])):
        by_decision[int(item[0].episode["decision"])].append(item)
    size = min(len(by_decision[0]), len(by_decision[1]))
    return by_decision[0][:size] + by_decision[1][:size]


def own_side(
    game: Game,
    agent: str,
    situation: Situation,
    turns: Sequence[Turn],
    round_: int,
    label: int | None = None,
) -> list[ChatMessage]:
    """The chat of `agent` until its last answer, to be trained on; empty if it never spoke.

    With a true `label` (1 correct, 0 buggy) that answer becomes the right decision, as sure as the
    scale allows and without the reasoning before it, which may have argued for the other one.
    """
    messages = game.render(agent, situation, turns, round_)
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if messages and label is not None:
        verdict = game.protocol.scale.right_answer(label)
        messages[-1] = {"role": "assistant", "content": f"Decision: {verdict}"}
    return messages


def _example(game: Game, side: _Side, agent: str, reason: str, draw: int) -> Example:
    episode = side.episode
    situation = Situation(
        episode["question"], episode["solution"], episode["prover_stance"], episode["seed"]
    )
    label = int(episode["y"]) if reason == "true_label" else None
    messages = own_side(game, agent, situation, side.turns, episode["rounds"] - 1, label)
    return Example(
        key=derive_key("example", episode["key"], agent, reason, draw),
        agent=agent,
        episode=episode["key"],
        generations=side.generations,
        iteration=episode["iteration"],
        problem=episode["problem"],
        y=episode["y"],
        reward=side.reward,
        reason=reason,
        messages=tuple(messages),
    )
