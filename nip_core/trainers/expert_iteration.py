"""Expert iteration: train each agent on its side of the episodes that went well for it.

choose_examples        the trainer, see `nip_core.trainers.base`
select                 by threshold or by weighted sampling
replacement_proportion how many of the verifier's answers become the true label
find_never_chosen           agents that can't earn the threshold
list_price_warnings         whether calls of the tool cost a verifier its threshold

The choice is made from small columns of all rollouts. In this order: the verifier's answers
that become the true label; selection from the others; one of equal conversations, if the setting
`deduplicate` says so, which needs their texts; balance, which leaves out the surplus. Then the
examples are written down shard by shard. Failed episodes are left out, and so are those in which
the agent never spoke, or played with an earlier model. The order of the rows in the tables does not
matter, nor does the run's name: each choice depends on which problem was played when, on rewards
and on seeds.
"""

import hashlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from nip_core.game.render import Game
from nip_core.hashing import canonical_json, derive_key, derive_seed
from nip_core.parameters import HyperParameters, PureTextEiParameters, TextRlParameters
from nip_core.protocols import make_protocol
from nip_core.protocols.reward_function import bound_reward
from nip_core.tolerance import at_least, more_than
from nip_core.trainers.base import Choice, Example, InParts, Rollouts
from nip_core.trainers.conversations import (
    Conversation,
    keeps_hints,
    keeps_reasoning,
    make_conversations,
)
from nip_core.trainers.episodes import PlayedEpisode, Sides, read_played

TRUE_LABEL = "true_label"


class _Pick(NamedTuple):
    """An example to be: an episode from an agent's side."""

    place: int  # where its episode stands in `Sides`
    agent: str
    reason: str  # threshold, weighted, true_label
    draw: int  # how often it was drawn before


def choose_examples(
    game: Game, group: str, iteration: int, rollouts: Rollouts, agents: Sequence[str]
) -> Choice:
    """Choose the conversations to imitate: see `nip_core.trainers.base.Chooser`.

    Counts: ``candidates``, episodes times agents; and of these ``failed``, ``silent`` (the agent
    never spoke), ``earlier_model`` (it played with one), ``by_rule`` (a rule decided for it),
    ``below_threshold`` or ``not_drawn``, ``duplicates`` and ``surplus``, which are left out.
    ``repeated`` are those that weighted sampling has drawn again.
    """
    # 1. Choose each agent's sides, by small columns alone.
    settings = game.parameters.pure_text_ei
    sides = Sides(rollouts, agents)
    counts: Counter[str] = Counter(candidates=len(sides.keys) * len(agents))
    picks = [p for agent in agents for p in _pick_sides(game, agent, iteration, sides, counts)]
    # 2. Keep one of equal conversations.
    if settings.deduplicate:
        unique = _drop_duplicates(game, sides, picks)
        counts["duplicates"] = len(picks) - len(unique)
        picks = unique
    # 3. Leave out the surplus.
    balanced = [p for agent in agents for p in _balance(settings, agent, sides, picks)]
    counts["surplus"] = len(picks) - len(balanced)
    # 4. Make the examples shard by shard, when they are gone through.
    return Choice(
        "supervised",
        InParts(partial(_make_examples, game), _group_by_part(sides, balanced), len(balanced)),
        {name: count for name, count in counts.items() if count or name == "candidates"},
        has_reasoning=any(keeps_reasoning(game, agent) for agent in agents),
        has_weights=any(keeps_hints(game, agent) for agent in agents),
    )


def _pick_sides(
    game: Game, agent: str, iteration: int, sides: Sides, counts: Counter[str]
) -> list[_Pick]:
    """Choose from the agent's sides, without a look at texts or at other agents."""
    parameters = game.parameters
    settings, seed = parameters.pure_text_ei, parameters.seed
    # 1. Leave out the episodes that failed, and those in which the agent never spoke, or an earlier
    #    model or a rule spoke for it.
    failed, spoke, earlier = sides.failed, sides.spoke[agent], sides.was_opponent[agent]
    own, by_rule = ~failed & spoke & ~earlier, sides.by_rule[agent]
    candidates = np.flatnonzero(own & ~by_rule).tolist()
    counts["failed"] += int(failed.sum())
    counts["silent"] += int((~failed & ~spoke).sum())
    counts["earlier_model"] += int((~failed & spoke & earlier).sum())
    counts["by_rule"] += int((own & by_rule).sum())
    # 2. Set aside the verifier's answers that become the true label.
    proportion = replacement_proportion(parameters.text_rl, iteration)
    # An annealed share such as 0.5 - 3 * 0.1 may fall short of 0.2 by a rounding error.
    replaced = int(proportion * len(candidates) + 1e-9) if agent == "verifier" else 0
    if replaced:
        candidates.sort(
            key=lambda i: derive_key("replace", seed, iteration, agent, sides.places[i])
        )
    picks = [_Pick(index, agent, TRUE_LABEL, 0) for index in candidates[:replaced]]
    remaining = candidates[replaced:]
    # 3. Select from the others, by threshold or by weighted draws.
    by_threshold = settings.rollout_selection_method == "threshold"
    selection = select(
        sides.rewards[agent][remaining].tolist(),
        [] if by_threshold else [sides.places[i] for i in remaining],
        settings,
        derive_seed("select", seed, iteration, agent),
    )
    reason = "threshold" if by_threshold else "weighted"
    picks += [_Pick(remaining[i], agent, reason, draw) for i, draw in selection]
    repeated = sum(draw > 0 for _, draw in selection)
    counts["below_threshold" if by_threshold else "not_drawn"] += (
        len(remaining) - len(selection) + repeated
    )
    counts["repeated"] += repeated
    return picks


def replacement_proportion(parameters: TextRlParameters, iteration: int) -> float:
    """Compute the share, in [0, 1], of rollouts whose last verifier message becomes the label."""
    start = parameters.verifier_guess_replacement_proportion
    rate = parameters.verifier_guess_replacement_annealing_rate
    match parameters.verifier_guess_replacement_annealing:
        case "linear":
            return float(max(start - iteration * rate, 0.0))
        case "exponential":
            return float(start * (1 - rate) ** iteration)
    return start


def find_never_chosen(parameters: HyperParameters) -> dict[str, float]:
    """Find the trained agents unable to earn the threshold, with the most they can."""
    settings = parameters.pure_text_ei
    if settings.rollout_selection_method != "threshold":
        return {}
    protocol = make_protocol(parameters)
    trained_agents = [a for group in parameters.trainable_groups for a in parameters.groups[group]]
    highest_rewards = {agent: bound_reward(protocol, agent)[1] for agent in trained_agents}
    if parameters.text_rl.verifier_guess_replacement_proportion > 0:
        highest_rewards.pop("verifier", None)  # its right answers are written for it
    threshold = settings.reward_threshold
    return {
        agent: reward
        for agent, reward in highest_rewards.items()
        if not at_least(reward, threshold)
    }


def list_price_warnings(parameters: HyperParameters) -> list[str]:
    """Warn where a right verdict after all allowed calls of the tool is not trained on."""
    tool, settings = parameters.tool, parameters.pure_text_ei
    is_trained = "verifier" in (
        a for g in parameters.trainable_groups for a in parameters.groups[g]
    )
    is_chosen = parameters.trainer == "pure_text_ei" and is_trained
    if not tool.price or not is_chosen or settings.rollout_selection_method != "threshold":
        return []
    if parameters.text_rl.verifier_guess_replacement_proportion > 0:
        return []  # its right answers are written for it, whatever they earned
    protocol, threshold = make_protocol(parameters), settings.reward_threshold
    if protocol.common.reward_function is not None:
        return []  # it is told the price, and pays as it likes
    rounds = range(protocol.max_message_rounds)
    turns = sum("verifier" in protocol.active(round_, 0) for round_ in rounds)
    allowed = tool.per_turn * turns
    if tool.per_episode is not None:
        allowed = min(allowed, tool.per_episode)
    most = bound_reward(protocol, "verifier")[1]
    if not at_least(most, threshold) or at_least(most - tool.price * allowed, threshold):
        return []
    taught = next(n for n in count(allowed, -1) if at_least(most - tool.price * n, threshold))
    return [
        f"tool.price: a right verdict after {allowed} calls, as many as a game allows, earns the "
        f"verifier at most {most - tool.price * allowed:g}, less than "
        f"pure_text_ei.reward_threshold, {threshold:g}; answers with more than "
        f"{taught} calls are never trained; lower one of them, or set tool.per_episode"
    ]


def select(
    rewards: Sequence[float], keys: Sequence[str], parameters: PureTextEiParameters, seed: int
) -> list[tuple[int, int]]:
    """Select rollouts: their indices, each with the number of the draw (0 without repeats).

    Threshold: every reward that reaches it. Weighted: round(n * factor) draws with probability
    growing linearly with the reward above the minimum; equal rewards give equal probability.
    """
    if parameters.rollout_selection_method == "threshold":
        threshold = parameters.reward_threshold
        return [(i, 0) for i, reward in enumerate(rewards) if at_least(reward, threshold)]
    if not rewards:
        return []
    order = sorted(range(len(rewards)), key=lambda i: keys[i])
    values = np.array([rewards[i] for i in order], dtype=np.float64)
    minimum = parameters.weighting_minimum
    floor = float(values.min()) if minimum is None else minimum
    weights = np.maximum(values, floor) - floor
    even = np.full(len(values), 1 / len(values))
    weights = weights / weights.sum() if more_than(float(values.max()), floor) else even
    epsilon = parameters.weighting_epsilon
    weights = (weights + epsilon * even) / (1 + epsilon)
    size = round(len(values) * parameters.weighting_sample_size_factor)
    places = np.random.default_rng(seed).choice(
        len(values), size=size, replace=parameters.weighting_use_replacement, p=weights
    )
    times: dict[int, int] = defaultdict(int)
    result = []
    for place in places:
        index = order[int(place)]
        result.append((index, times[index]))
        times[index] += 1
    return result


def _drop_duplicates(game: Game, sides: Sides, picks: Sequence[_Pick]) -> list[_Pick]:
    """Keep one of several picks of an agent with the same conversation, in the order given."""
    first: dict[tuple[str, bytes], tuple[Any, _Pick]] = {}
    for part in _group_by_part(sides, picks):
        for episode, (_, pick, _) in _read_picked(game, part):
            conversations = _make_conversations(game, episode, pick)
            texts = [part for c in conversations for part in (*c.messages, *(c.thoughts or ()))]
            text = hashlib.sha256(canonical_json(texts)).digest()
            order = (sides.places[pick.place], pick.reason, pick.draw)
            earlier = first.get((pick.agent, text))
            if earlier is None or order < earlier[0]:
                first[pick.agent, text] = (order, pick)
    unique = {pick for _, pick in first.values()}
    return [pick for pick in picks if pick in unique]


def _balance(
    settings: PureTextEiParameters, agent: str, sides: Sides, picks: Sequence[_Pick]
) -> list[_Pick]:
    """Leave out the surplus of verdicts, or of labels, among the agent's picks.

    An answer that became the true label is no verdict of the agent. With both settings, as many
    right verdicts of the one kind stay as of the other, and as many wrong ones, so that both are
    even.
    """
    of_agent = [pick for pick in picks if pick.agent == agent]
    own_picks = [pick for pick in of_agent if pick.reason != TRUE_LABEL]
    replaced = [pick for pick in of_agent if pick.reason == TRUE_LABEL]

    def order(pick: _Pick) -> tuple[str, int]:
        return sides.places[pick.place], pick.draw

    def label(pick: _Pick) -> int:
        return int(sides.y[pick.place])

    def verdict(pick: _Pick) -> int:
        return int(sides.decision[pick.place])

    if not settings.balance_decisions or agent != "verifier":
        return _even_out(of_agent, label, order) if settings.balance_labels else of_agent
    if not settings.balance_labels:
        return _even_out(own_picks, verdict, order) + replaced
    right = [pick for pick in own_picks if verdict(pick) == label(pick)]
    wrong = [pick for pick in own_picks if verdict(pick) == 1 - label(pick)]
    return [pick for part in (right, wrong, replaced) for pick in _even_out(part, label, order)]


def _even_out(
    picks: Sequence[_Pick],
    kind: Callable[[_Pick], int],
    order: Callable[[_Pick], tuple[str, int]],
) -> list[_Pick]:
    """Keep as many picks of kind 0 as of kind 1, and none of any other."""
    by_kind: dict[int, list[_Pick]] = defaultdict(list)
    for pick in picks:
        by_kind[kind(pick)].append(pick)
    size = min(len(by_kind[0]), len(by_kind[1]))
    # A place is a hash, so their order has nothing to do with the play.
    return [pick for k in (0, 1) for pick in sorted(by_kind[k], key=order)[:size]]


def _make_conversations(game: Game, episode: PlayedEpisode, pick: _Pick) -> list[Conversation]:
    label = episode.y if pick.reason == TRUE_LABEL else None
    return make_conversations(game, pick.agent, episode, label)


class _PickedSide(NamedTuple):
    """A pick with its episode and its reward."""

    episode: str  # its key
    pick: _Pick
    reward: float


_Part = tuple[Rollouts, list[_PickedSide]]


def _group_by_part(sides: Sides, picks: Sequence[_Pick]) -> list[_Part]:
    """Group the picks by shard, in the order of play; shards without picks are left out."""
    ordered = sorted(picks, key=lambda pick: pick.place)
    parts, begin, start = [], 0, 0
    for part, size in zip(sides.parts, sides.sizes, strict=True):
        start += size
        end = bisect_left(ordered, start, begin, key=lambda pick: pick.place)
        picked_sides = [
            _PickedSide(sides.keys[pick.place], pick, float(sides.rewards[pick.agent][pick.place]))
            for pick in ordered[begin:end]
        ]
        if picked_sides:
            parts.append((part, picked_sides))
        begin = end
    return parts


def _read_picked(game: Game, part: _Part) -> Iterator[tuple[PlayedEpisode, _PickedSide]]:
    """Yield the picks from a shard with their episodes, in the order of play."""
    rollouts, picked_sides = part
    by_episode: dict[str, list[_PickedSide]] = defaultdict(list)
    for choice in picked_sides:
        by_episode[choice.episode].append(choice)
    agents = {agent: i for i, agent in enumerate(game.protocol.agent_names)}
    thoughts = any(keeps_reasoning(game, choice.pick.agent) for choice in picked_sides)
    hints = any(keeps_hints(game, choice.pick.agent) for choice in picked_sides)
    for episode in read_played(game, rollouts, by_episode, thoughts=thoughts, hints=hints):
        choices = by_episode[episode.key]
        choices.sort(key=lambda c: (agents[c.pick.agent], c.pick.reason, c.pick.draw))
        for choice in choices:
            yield episode, choice


def _make_examples(game: Game, part: _Part) -> Iterator[Example]:
    for episode, (_, pick, reward) in _read_picked(game, part):
        for conversation in _make_conversations(game, episode, pick):
            hinted_round = conversation.hinted_round
            parts = (pick.reason, pick.draw, *([] if hinted_round is None else [hinted_round]))
            yield Example(
                key=derive_key("example", episode.key, pick.agent, *parts),
                agent=pick.agent,
                episode=episode.key,
                generations=tuple(answer.key for answer in conversation.learned),
                iteration=episode.iteration,
                problem=episode.problem,
                question_id=episode.question_id,
                y=episode.y,
                reward=reward,
                reason=pick.reason,
                tokens=conversation.tokens,
                messages=conversation.messages,
                reasoning=conversation.thoughts,
                weights=conversation.weights,
            )
