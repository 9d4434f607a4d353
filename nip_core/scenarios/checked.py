"""A scenario's functions as nip calls them: what is wrong with one is an error that names it.

call_scenario       what a function returns, if it returns at all
call_for_text       a text that a function returns
draw_columns        the columns that are drawn for an episode
draw_columns_again  those that provers do not see, drawn anew
list_seen_columns   the columns that an agent of a role is shown
read_own_sentences  what stands for placeholders of templates
find_solution       the solution in a prover's message; label_of: its label

Classes of scenarios are anybody's, so their functions may raise anything and return anything.
"""

import sys
from collections.abc import Mapping
from typing import Any

from nip_base.importing import find_line
from nip_core.errors import NipError, SettingsError
from nip_core.hashing import half_pair
from nip_core.scenarios.base import PROVER, Column, Label, NoLabel, Role, Scenario


def call_scenario(
    scenario: Scenario,
    function: str,
    *arguments: Any,
    place: str = "",
    kind: type[NipError] = SettingsError,
) -> Any:
    """Return what a function of the scenario returns.

    Raises a `kind` of error for whatever it raises; nip's own errors pass. `place` is what to call
    the row or file, if it is about one.
    """
    try:
        return getattr(scenario, function)(*arguments)
    except NipError:
        raise
    except Exception as error:  # whatever a user's class raises
        raise describe_raised(scenario, function, error, place, kind) from error


def describe_raised(
    scenario: Scenario,
    function: str,
    error: Exception,
    place: str = "",
    kind: type[NipError] = SettingsError,
    advice: str = "mend it",
) -> NipError:
    """Return the error for what a function of the scenario raised."""
    text = " ".join(str(error).encode("utf-8", "backslashreplace").decode().split())
    file = getattr(sys.modules.get(type(scenario).__module__), "__file__", None) or ""
    line = find_line(error, file)
    return kind(
        f"{place and f'{place}: '}{function} of scenario {scenario.name} raised "
        f"{type(error).__name__}: {text:.500}{line and f' ({file}{line})'}; {advice}"
    )


def call_for_text(scenario: Scenario, function: str, *arguments: Any) -> str:
    """Call a function of the scenario for a text. Raises SettingsError."""
    return _text(scenario, function, call_scenario(scenario, function, *arguments))


def _text(scenario: Scenario, function: str, text: Any, what: str = "") -> str:
    if not isinstance(text, str):
        raise SettingsError(
            f"scenario {scenario.name}: {function} must return a text{what} (got {text!r:.80})"
        )
    if half := half_pair(text):
        raise SettingsError(f"scenario {scenario.name}: {function} returned {half}{what}")
    return text


def draw_columns(scenario: Scenario, texts: Mapping[str, str], seed: int) -> Mapping[str, str]:
    """Draw the scenario's drawn columns for an episode of this seed, but those in `texts`.

    Raises SettingsError.
    """
    due = {c.name for c in scenario.columns if c.drawn and c.name not in texts}
    if not due:
        return {}
    made = call_scenario(scenario, "draw", texts, seed)
    drawn = {c.name for c in scenario.columns if c.drawn}
    is_whole = isinstance(made, Mapping) and due <= made.keys() <= drawn
    if not is_whole or not all(isinstance(text, str) for text in made.values()):
        raise SettingsError(
            f"scenario {scenario.name}: draw must give a text for each of "
            f"{', '.join(sorted(due))} and for nothing else (got {made!r:.200})"
        )
    return {
        name: _text(scenario, "draw", made[name], f" for {name}") for name in made if name in due
    }


def draw_columns_again(
    scenario: Scenario, texts: Mapping[str, str], seed: int
) -> Mapping[str, str]:
    """Draw anew what the scenario hides from provers; {} where it does not. Raises SettingsError.

    `texts` are all texts of the problem, the drawn ones included.
    """
    made = call_scenario(scenario, "draw_again", texts, seed)
    shown = {column.name for column in list_seen_columns(scenario, PROVER)}
    hidden = {c.name for c in scenario.columns if c.drawn} - shown
    if not isinstance(made, Mapping) or not made.keys() <= hidden:
        raise SettingsError(
            f"scenario {scenario.name}: draw_again must give texts for drawn columns that provers "
            f"do not see ({', '.join(sorted(hidden)) or 'there are none'}) and for nothing else "
            f"(got {made!r:.200})"
        )
    return {
        name: _text(scenario, "draw_again", text, f" for {name}") for name, text in made.items()
    }


def list_seen_columns(scenario: Scenario, role: Role) -> tuple[Column, ...]:
    """Ask the scenario for the columns of a role. Raises SettingsError."""
    made = call_scenario(scenario, "seen", role)
    if not isinstance(made, tuple | list) or not all(isinstance(c, Column) for c in made):
        raise SettingsError(
            f"scenario {scenario.name}: seen must return a tuple of its columns (got {made!r:.80})"
        )
    return tuple(made)


def read_own_sentences(scenario: Scenario, role: Role, stance: int | None) -> Mapping[str, str]:
    """Return the scenario's sentences in the place of nip's. Raises SettingsError."""
    made = call_scenario(scenario, "sentences", role, stance)
    if not isinstance(made, Mapping):
        raise SettingsError(
            f"scenario {scenario.name}: sentences must return texts by placeholder (got "
            f"{made!r:.80})"
        )
    return {name: _text(scenario, "sentences", text, f" for {name}") for name, text in made.items()}


def find_solution(scenario: Scenario, message: str, texts: Mapping[str, str]) -> str:
    """Return the solution in a prover's message.

    Raises ValueError with the reason if there is none, and SettingsError for all else.
    """
    try:
        text = scenario.written(message, texts)
    except ValueError:
        raise
    except Exception as error:  # whatever a user's class raises
        raise describe_raised(scenario, "written", error) from error
    return _text(scenario, "written", text)


async def label_solution(scenario: Scenario, texts: Mapping[str, str]) -> Label:
    """Label the solution among the texts; a prover wrote it in play.

    Raises NoLabel if there is none, and SettingsError for what is no label.
    """
    try:
        label = await scenario.label_written(texts)
    except (NipError, NoLabel):
        raise
    except Exception as error:  # whatever a user's class raises
        raise describe_raised(scenario, "label_written", error) from error
    if not isinstance(label, Label) or label.y not in (0, 1):
        raise SettingsError(
            f"scenario {scenario.name}: label_written must return a Label with y = 1 or 0 (got "
            f"{label!r:.80})"
        )
    if label.mutation is not None:
        _text(scenario, "label_written", label.mutation, " for the kind of mistake")
    return label
