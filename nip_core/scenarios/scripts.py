"""Scripts: functions that write a prover's messages in the place of its model.

ScriptedTurn        the argument of a script: the request that a model would get, and nothing else
Script              such a function
LoadedScript        one that is loaded, with its name and digest
load_script         of a scenario, by name, or a user's, by its address
check_script_named  refuse a name that no script has
name_as_model       its name in the place of a model's
call_script         the message that a script writes; a fault is an error that names it
describe_turn       name a script and the turn in which something is wrong

A user's script is code that runs as the user's own: it may read and do all that they may. Its
argument keeps an honest script from knowing more than a prover by accident, and stops no other.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol

from nip_base.importing import find_line
from nip_core.hashing import half_pair
from nip_core.importing import find_source, import_function
from nip_core.nearest import did_you_mean

_SHOWN = 12  # characters of a digest
USUAL_SETTING = "attack.script"
OF_SCRIPT = "script:"
"""The beginning of a script's name in the place of a model's."""


@dataclass(frozen=True)
class ScriptedTurn:
    """A prover's turn as a script is given it.

    It has all that the request to a model prover has. It has no label, nothing that the verifier
    alone is shown, and no seed from which the game draws.
    """

    agent: str
    """The prover's name, such as "prover" or "prover0"."""
    argues_for: int
    """The verdict that it argues for, 1 accept or 0 reject."""
    round: int
    """Counted from 0."""
    texts: Mapping[str, str]
    """The texts of the problem that provers are shown, by column: `question`, `solution`, …"""
    chat: Sequence[Mapping[str, str]]
    """The messages as a model prover is asked with, each with `role` and `content`, and perhaps a
    `name`."""
    seed: int
    """With which a model would sample this message; for scripts that draw."""

    @property
    def said(self) -> tuple[str, ...]:
        """Return its own earlier messages."""
        return tuple(m["content"] for m in self.chat if m["role"] == "assistant")


Script = Callable[[ScriptedTurn], str]


class _WithScripts(Protocol):
    """A scenario, as far as it is looked at here."""

    name: ClassVar[str]
    scripts: ClassVar[Any]


@dataclass(frozen=True)
class LoadedScript:
    """A script that is loaded."""

    name: str
    """As the settings name it."""
    function: Script
    file: str
    """In which it stands."""
    digest: str | None
    """Of that file; None for a script that comes with nip."""
    setting: str = USUAL_SETTING
    """That names it, for errors."""

    @property
    def called(self) -> str:
        """Return the function's own name."""
        return self.name.rpartition(":")[2]

    @property
    def model(self) -> str:
        """Name it where a model's name would stand."""
        # A run may go on from another folder; attacks on record have the path in the name.
        name = self.name if self.setting.startswith("attack.") else os.path.basename(self.name)
        return name_as_model(name, self.digest)


def name_as_model(script: str, digest: str | None) -> str:
    """Name a script, with the digest of its file if it is a user's, as a model is named."""
    return f"{OF_SCRIPT}{script}" + ("" if digest is None else f"@{digest[:_SHOWN]}")


def check_script_named(
    scenario: _WithScripts, name: str | None, setting: str = USUAL_SETTING
) -> None:
    """Raise ValueError for a name that is no script's of the scenario and no address."""
    scripts: Mapping[str, Script] = scenario.scripts
    if name is None or name in scripts or ":" in name:
        return
    listed = f"there are {', '.join(scripts)}" if scripts else "it has none"
    raise ValueError(
        f"{setting}: scenario {scenario.name} has no script {name!r}"
        f"{did_you_mean(name, tuple(scripts))}; {listed}, and one of your own is named like "
        '"path/to/file.py:function" or "package.module:function"'
    )


def load_script(scenario: _WithScripts, name: str, setting: str = USUAL_SETTING) -> LoadedScript:
    """Load a script. Raises ValueError, naming the setting, where there is none."""
    check_script_named(scenario, name, setting)
    scripts: Mapping[str, Script] = scenario.scripts
    if name in scripts:
        return LoadedScript(name, scripts[name], find_source(scripts[name]), None, setting)
    function = import_function(setting, name, "takes a turn and returns a message (docs/attack.md)")
    file = find_source(function)
    return LoadedScript(name, function, file, digest_file(file), setting)


def digest_file(file: str | Path) -> str:
    """Digest a file by SHA-256."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def describe_turn(script: LoadedScript, turn: ScriptedTurn, question: str) -> str:
    """Name a script and the turn in which something is wrong."""
    return (
        f"{script.setting}: {script.name} on question {question} ({turn.agent}, round {turn.round})"
    )


def call_script(script: LoadedScript, turn: ScriptedTurn, question: str) -> str:
    """Return the message that the script writes for `turn` of the problem `question`.

    Raises ValueError that names file, function and question, for errors and wrong results of the
    script.
    """
    place = describe_turn(script, turn, question)
    try:
        message = script.function(turn)
    except Exception as error:  # any error of a user's function
        line = find_line(error, script.file)
        text = " ".join(str(error).encode("utf-8", "backslashreplace").decode().split())
        has = ""
        if isinstance(error, AttributeError | LookupError):
            field_names = ", ".join(field.name for field in fields(turn))
            has = f"; a turn has {field_names}, and its texts are {', '.join(turn.texts)}"
        raised = f"{type(error).__name__}: {text:.500}"
        raise ValueError(f"{place} raised {raised} ({script.file}{line}){has}; mend it") from error
    if not isinstance(message, str) or not message.strip():
        raise ValueError(
            f"{place} returned {message!r:.80} ({script.file}); it has to return the message, a "
            "text that is not empty; mend it"
        )
    if half := half_pair(message):
        raise ValueError(f"{place} returned {half} ({script.file}); mend it")
    return message
