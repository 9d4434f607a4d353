"""A scenario's functions as nip calls them: a fault of one is an error that names it.

call_scenario       the result of a function, if it returns at all
call_for_text       a text that a function returns
call_for_rejection  whether a rule of its game rejects
draw_columns        the columns that are drawn for an episode
draw_columns_again  those that provers do not see, drawn anew
list_seen_columns   the columns that an agent of a role is shown
read_own_sentences  its sentences for placeholders of templates
use_tool            the result of its tool, or the reason why there is none
find_solution       the solution in a prover's message; label_of: its label

Any user may write a class of a scenario, so its functions may raise and return anything.
"""

import asyncio
import sys
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from nip_base.importing import find_line
from nip_core.errors import NipError, SettingsError
from nip_core.hashing import half_pair
from nip_core.scenarios.base import PROVER, Column, Label, NoLabel, Role, Scenario

_TOOL_S = 120
"""For which a tool is waited."""


def call_scenario(
    scenario: Scenario,
    function: str,
    *arguments: Any,
    place: str = "",
    kind: type[NipError] = SettingsError,
) -> Any:
    """Return the result of a function of the scenario.

    Raises a `kind` of error for any error of it; nip's own errors pass. `place` names the row or
    file, if it is about one.
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
    """Make the error for an exception from a function of the scenario."""
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


def call_for_rejection(
    scenario: Scenario, texts: Mapping[str, str], messages: Sequence[str]
) -> bool:
    """Ask whether a rule of the scenario's game rejects. Raises SettingsError."""
    answer = call_scenario(scenario, "rejects", texts, messages)
    if not isinstance(answer, bool):
        raise SettingsError(
            f"scenario {scenario.name}: rejects must return True or False (got {answer!r:.80})"
        )
    return answer


def _text(scenario: Scenario, function: str, text: Any, clause: str = "") -> str:
    if not isinstance(text, str):
        raise SettingsError(
            f"scenario {scenario.name}: {function} must return a text{clause} (got {text!r:.80})"
        )
    if half := half_pair(text):
        raise SettingsError(f"scenario {scenario.name}: {function} returned {half}{clause}")
    return text


async def use_tool(scenario: Scenario, argument: str, texts: Mapping[str, str]) -> str:
    """Use the scenario's tool; a ValueError of it is the result, and so is that it does not end.

    Raises SettingsError.
    """
    limit: asyncio.Timeout | None = None
    try:
        result: Any = scenario.use_tool(argument, texts)
        if isinstance(result, Awaitable):  # else a user's is no coroutine
            async with asyncio.timeout(_TOOL_S) as limit:
                result = await result
        return _text(scenario, "use_tool", result)
    except NipError:
        raise
    except TimeoutError as error:
        if limit is None or not limit.expired():  # it is the tool's own
            raise describe_raised(scenario, "use_tool", error) from error
        return f"nothing came within {_TOOL_S} s"
    except ValueError as error:
        return str(error)
    except Exception as error:  # whatever a user's class raises
        raise describe_raised(scenario, "use_tool", error) from error


def draw_columns(scenario: Scenario, texts: Mapping[str, str], seed: int) -> Mapping[str, str]:
    """Draw the scenario's drawn columns for an episode of this seed, but those in `texts`.

    Raises SettingsError.
    """
    due = {c.name for c in scenario.columns if c.drawn and c.name not in texts}
    if not due:
        return {}
    texts_by_column = call_scenario(scenario, "draw", texts, seed)
    drawn_columns = {c.name for c in scenario.columns if c.drawn}
    is_whole = (
        isinstance(texts_by_column, Mapping) and due <= texts_by_column.keys() <= drawn_columns
    )
    if not is_whole or not all(isinstance(text, str) for text in texts_by_column.values()):
        raise SettingsError(
            f"scenario {scenario.name}: draw must give a text for each of "
            f"{', '.join(sorted(due))} and for nothing else (got {texts_by_column!r:.200})"
        )
    return {
        name: _text(scenario, "draw", texts_by_column[name], f" for {name}")
        for name in texts_by_column
        if name in due
    }


def draw_columns_again(
    scenario: Scenario, texts: Mapping[str, str], seed: int
) -> Mapping[str, str]:
    """Draw anew the texts hidden from provers; {} where there are none. Raises SettingsError.

    `texts` are all texts of the problem, the drawn ones included.
    """
    texts_by_column = call_scenario(scenario, "draw_again", texts, seed)
    seen_columns = {column.name for column in list_seen_columns(scenario, PROVER)}
    hidden = {c.name for c in scenario.columns if c.drawn} - seen_columns
    if not isinstance(texts_by_column, Mapping) or not texts_by_column.keys() <= hidden:
        raise SettingsError(
            f"scenario {scenario.name}: draw_again must give texts for drawn columns that provers "
            f"do not see ({', '.join(sorted(hidden)) or 'there are none'}) and for nothing else "
            f"(got {texts_by_column!r:.200})"
        )
    return {
        name: _text(scenario, "draw_again", text, f" for {name}")
        for name, text in texts_by_column.items()
    }


def list_seen_columns(scenario: Scenario, role: Role) -> tuple[Column, ...]:
    """Ask the scenario for the columns of a role. Raises SettingsError."""
    columns = call_scenario(scenario, "seen", role)
    if not isinstance(columns, tuple | list) or not all(isinstance(c, Column) for c in columns):
        raise SettingsError(
            f"scenario {scenario.name}: seen must return a tuple of its columns (got "
            f"{columns!r:.80})"
        )
    return tuple(columns)


def read_own_sentences(scenario: Scenario, role: Role, stance: int | None) -> Mapping[str, str]:
    """Return the scenario's sentences in the place of nip's. Raises SettingsError."""
    sentences = call_scenario(scenario, "sentences", role, stance)
    if not isinstance(sentences, Mapping):
        raise SettingsError(
            f"scenario {scenario.name}: sentences must return texts by placeholder (got "
            f"{sentences!r:.80})"
        )
    return {
        name: _text(scenario, "sentences", text, f" for {name}") for name, text in sentences.items()
    }


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

    Raises NoLabel if there is none, and SettingsError for a result that is no label.
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
