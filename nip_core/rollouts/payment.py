"""The payments of an episode in the end: the sum of its rounds, or a reward function's values."""

from collections.abc import Sequence

from nip_core.errors import StageError
from nip_core.game.render import Game, make_situation
from nip_core.protocols import RoundResult, Turn
from nip_core.rollouts.plan import EpisodeSpec
from nip_core.rollouts.storage.table_rows import RoundReward


def pay_episode(
    game: Game,
    spec: EpisodeSpec,
    turns: Sequence[Turn],
    rounds: int,
    result: RoundResult,
    paid: Sequence[RoundReward],
) -> list[RoundReward]:
    """Return the payments of an episode that ended with `result` after so many rounds.

    `paid` are the payments of its rounds by the protocol. A reward function replaces all of them by
    its own payments in the last round. Raises StageError that names function, problem and remedy.
    """
    if game.reward_function is None:
        return list(paid)
    situation = make_situation(spec.problem, spec.stance, spec.seed)
    rewards = add_up_rewards(game, paid)
    try:
        by_agent = game.pay(
            spec.problem.id, spec.problem.y, situation, turns, rounds, result, rewards
        )
    except ValueError as error:
        raise StageError(
            f"{error}, and start anew under another name, as a changed function pays otherwise"
        ) from error
    return [RoundReward(rounds - 1, agent, reward) for agent, reward in by_agent.items() if reward]


def add_up_rewards(game: Game, paid: Sequence[RoundReward]) -> dict[str, float]:
    """Add up the payments of rounds by agent."""
    rewards = dict.fromkeys(game.protocol.agent_names, 0.0)
    for _, agent, reward in paid:
        rewards[agent] += reward
    return rewards
