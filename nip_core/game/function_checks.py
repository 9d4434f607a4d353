"""A scenario's functions tried before anything is paid for, as one of the user's may be wrong."""

from collections.abc import Mapping, Sequence

from nip_core.errors import SettingsError
from nip_core.game.render import Game, make_situation
from nip_core.scenarios import Problem, Scenario
from nip_core.scenarios.checked import (
    call_for_rejection,
    call_for_text,
    call_scenario,
    describe_raised,
    draw_columns,
    draw_columns_again,
    find_solution,
)

_TRIED = 8  # problems of a split, about, and what a prover might write about them
_MESSAGE = "The answer is in the first line."


def check_system(game: Game) -> None:
    """Raise SettingsError if this system can't play the scenario."""
    try:
        game.scenario.check_system()
        if game.tools:
            game.scenario.check_tool()
    except ValueError as error:
        raise SettingsError(f"scenario {game.parameters.scenario}: {error}") from None
    except Exception as error:  # whatever a user's class raises
        raise describe_raised(game.scenario, "check_system", error) from error


def check_functions(game: Game, problems: Mapping[str, Sequence[Problem]]) -> None:
    """Try what episodes will call of the scenario on some problems of each split.

    Raises SettingsError for what a user's class raises or returns wrongly. What labels a solution
    takes its time, so that is not tried.
    """
    scenario, randomize = game.scenario, game.parameters.protocol_common.randomize_prover_stance
    for stance in (0, 1) if randomize else (None,):
        for split in problems.values():
            for problem in split[:: max(1, len(split) // _TRIED)]:
                rounds = range(game.protocol.max_message_rounds if game.announces else 1)
                for agent in game.parameters.model_agents:
                    for round_ in rounds:
                        game.told(agent, make_situation(problem, stance, 0), (), round_)
                texts = {**problem.texts, **_drawn_twice(scenario, problem)}
                draw_columns_again(scenario, texts, 0)
                for function in ("as_read", "remark", "kind_of_message"):
                    call_for_text(scenario, function, _MESSAGE, texts)
                call_scenario(scenario, "checks_answers", _MESSAGE)
                for messages in ((), (_MESSAGE,)):
                    call_for_rejection(scenario, texts, messages)
                if scenario.labels_in_play:
                    _try_written(scenario, problem)


def _drawn_twice(scenario: Scenario, problem: Problem) -> Mapping[str, str]:
    """Return what is drawn for an episode. Raises SettingsError if it is not the same twice."""
    first, second = (draw_columns(scenario, problem.texts, 0) for _ in range(2))
    if first != second:
        name = next(name for name in first if first[name] != second[name])
        raise SettingsError(
            f"scenario {scenario.name}: draw gave two texts for {name} with one problem and one "
            f"seed ({first[name]!r:.60}, {second[name]!r:.60}); make it of its arguments alone"
        )
    return first


def _try_written(scenario: Scenario, problem: Problem) -> None:
    try:
        find_solution(scenario, _MESSAGE, problem.texts)
    except SettingsError:
        raise
    except ValueError:
        pass  # no solution stands in the message, so that another one would be asked for
