"""A reward function, tried on episodes that are made up, before anything is paid for.

The episodes have the protocol's order of play, the problems' own texts and one message that
agents repeat. Not covered: a function that goes wrong for texts that only a model would write.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nip_core.errors import SettingsError
from nip_core.game.render import Game, make_situation
from nip_core.protocols import ACCEPT, REJECT, Move, Turn
from nip_core.protocols.reward_function import SETTING
from nip_core.protocols.scales import round_value
from nip_core.rollouts.plan import SPLITS
from nip_core.scenarios import NO_LABEL, Problem

_TRIED = 4  # problems of a split, about
_SEEDS = (0, 1)
_MESSAGE = "The answer is in the first line."


@dataclass(frozen=True)
class _Course:
    """How an episode goes that is made up."""

    value: float | None  # of the verdict; None: there is none
    is_silent: bool = False  # provers give no valid answer, where the game goes on without


def try_reward_function(game: Game, problems: Mapping[str, list[Problem]]) -> None:
    """Ask the function twice for the rewards of made-up episodes; nothing without a function.

    Raises SettingsError that names function, problem and remedy, for its errors and wrong
    results, and where it returns something else the second time.
    """
    if game.reward_function is None:
        return
    values = game.protocol.scale.values
    courses = [_Course(None), _Course(None, is_silent=True), *map(_Course, values.values())]
    stances = (0, 1) if game.parameters.protocol_common.randomize_prover_stance else (None,)
    for split in SPLITS:
        for problem in problems[split][:: max(1, len(problems[split]) // _TRIED)]:
            for y in (REJECT, ACCEPT) if problem.y == NO_LABEL else (problem.y,):
                for stance in stances:
                    for seed in _SEEDS:
                        for course in courses:
                            _try_episode(game, problem, y, stance, seed, course)


def _try_episode(
    game: Game, problem: Problem, y: int, stance: int | None, seed: int, course: _Course
) -> None:
    """Make up an episode and have it paid twice. Raises SettingsError."""
    turns: list[Turn] = []
    rewards = dict.fromkeys(game.protocol.agent_names, 0.0)
    for round_ in range(game.protocol.max_message_rounds):
        movers = game.protocol.movers(round_, seed, turns)
        moved = [*_make_turns(game, round_, seed, movers, course)]
        turns += moved
        silent = {*movers} - {turn.agent for turn in moved}
        result = game.judge(round_, seed, y, stance, turns, silent)
        for agent, reward in result.rewards.items():
            rewards[agent] += reward
        if result.done or result.terminated:
            situation = make_situation(problem, stance, seed)
            paid = []
            for _ in range(2):
                try:
                    paid.append(
                        game.pay(problem.id, y, situation, turns, round_ + 1, result, rewards)
                    )
                except ValueError as error:
                    raise SettingsError(str(error)) from error
            _compare(game, problem, paid)
            return


def _make_turns(
    game: Game, round_: int, seed: int, movers: Mapping[str, Sequence[str]], course: _Course
) -> Iterator[Turn]:
    """Make up the turns of a round: who may decide does so in the first round that counts."""
    protocol = game.protocol
    for agent in (agent for agent in protocol.agent_names if agent in movers):
        if course.is_silent and protocol.may_be_silent(agent):
            continue
        if course.value is not None and protocol.may_decide(agent) and protocol.counts(round_):
            word = next(w for w, value in protocol.scale.values.items() if value == course.value)
            move = Move(decision=round_value(course.value), value=course.value)
            yield Turn(round_, agent, f"Decision: {word}", move)
        else:
            yield Turn(round_, agent, _MESSAGE, Move(dict.fromkeys(movers[agent], _MESSAGE)))


def _compare(game: Game, problem: Problem, paid: Sequence[Mapping[str, float]]) -> None:
    """Raise SettingsError where one episode was paid in two ways."""
    first, second = paid
    if first != second:
        agent = next(name for name in first if first[name] != second[name])
        function = game.reward_function
        assert function is not None  # it has paid
        raise SettingsError(
            f"{SETTING}: {function.address} on problem {problem.id} returned {first[agent]:g} for "
            f"{agent}, and {second[agent]:g} for the same episode ({function.file}); make it of "
            "its argument alone, without chance, time or files"
        )
