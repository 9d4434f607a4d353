"""Judges that are a function of the user's own.

FunctionJudge  a judge that calls ``f(question, response, reference=None, **columns)``
make_function  the judge of a file's `function`

The function gets the arguments that it names, and with ``**kwargs`` all columns. It returns a bool,
a number, a word, an object with a `value` as Inspect's scores have, or None. It may be async.
"""

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_base.importing import find_line, import_object
from nip_core.errors import SettingsError
from nip_core.hashing import digest
from nip_core.nearest import did_you_mean
from nip_core.rollouts.client.answer_parts import make_storable
from nip_judges.judges.calling import HangsError, call_with_timeout
from nip_judges.judges.filling import list_values
from nip_judges.judges.values import ValueForms, read_value
from nip_judges.parts import JudgeAnswer, ShownText

if TYPE_CHECKING:
    from nip_judges.settings.judge_file import JudgeFile

DEFAULT_TIMEOUT_S = 120.0
_LONGEST_REASON = 500
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class FunctionJudge:
    """A judge that is a function."""

    name: str
    digest: str
    function: Callable[..., Any]
    source: str
    """The file in which it stands; "" where there is none."""
    forms: ValueForms = field(default_factory=ValueForms)
    data: Any = None
    """The block of the judge's file that names the columns of question, response and reference."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    accept_forms: Sequence[str] = ()
    """The word that its file names. Those of a model that it may ask are not known here."""
    is_paid: bool = False

    @property
    def scores(self) -> bool:
        return self.forms.threshold is not None

    def compose(self, shown_text: ShownText) -> str:
        """Write the arguments as text."""
        arguments = self.list_arguments(shown_text)
        return "\n".join(f"{name}: {value}" for name, value in arguments.items())

    def list_arguments(self, shown_text: ShownText) -> dict[str, str | None]:
        """List the arguments of a call.

        Raises SettingsError for an argument without a default that no field or column is called,
        and for one that has no name.
        """
        values: dict[str, str | None] = {**list_values(shown_text, self.data)}
        if shown_text.reference is None:
            values["reference"] = None
        parameters = inspect.signature(self.function).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return values
        arguments: dict[str, str | None] = {}
        for parameter in parameters:
            if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
                raise SettingsError(
                    f"{self.name}: its argument {parameter.name!r} can't be given by name; leave "
                    "out the '/' behind it"
                )
            if parameter.kind not in _NAMED:
                continue
            if parameter.name in values:
                arguments[parameter.name] = values[parameter.name]
            elif parameter.default is parameter.empty:
                raise SettingsError(
                    f"{self.name}: no field or column for its argument {parameter.name!r}"
                    f"{did_you_mean(parameter.name, values)}"
                )
        return arguments

    async def ask(self, shown_text: ShownText, seed: int) -> JudgeAnswer:
        """Call the function. An error of it, or no answer in time, is no verdict with its line."""
        arguments = self.list_arguments(shown_text)
        try:
            value = await call_with_timeout(self.function, arguments, self.timeout_s)
            answer = read_value(value, self.forms)
            reason = None if answer.reason is None else make_storable(answer.reason)
            return replace(answer, words=make_storable(answer.words), reason=reason)
        except HangsError as error:
            return JudgeAnswer("none", "", f"{self.name}: {error}")
        except Exception as error:  # whatever a function of the user's raises
            return JudgeAnswer("none", "", self._describe(error))

    def _describe(self, error: Exception) -> str:
        line = find_line(error, self.source) if self.source else ""
        place = f" ({Path(self.source).name}{line})" if line else ""
        message = " ".join(str(error).split())
        return make_storable(f"{type(error).__name__}: {message}"[:_LONGEST_REASON]) + place


def make_function(file: "JudgeFile") -> FunctionJudge:
    """Make the judge of a file's `function`. Raises SettingsError where there is none."""
    block = file.judge
    assert block.function is not None
    function = import_judge(block.function, file.path.parent, file.path.name)
    source = _find_source(function)
    accept, reject = block.accept or "accept", block.reject or "reject"
    forms = ValueForms(accept, reject, block.threshold)
    content = Path(source).read_bytes() if source and Path(source).is_file() else b""
    return FunctionJudge(
        name=block.function.rpartition("/")[2],
        digest=digest(
            [
                "function",
                block.function.rpartition(":")[2],
                hashlib.sha256(content).hexdigest(),
                [accept, reject, block.threshold],
            ]
        ),
        function=function,
        source=source,
        forms=forms,
        data=file.data,
        timeout_s=getattr(file, "timeout_s", DEFAULT_TIMEOUT_S),
        accept_forms=() if block.accept is None else (accept,),
    )


def import_judge(address: str, folder: Path, place: str) -> Callable[..., Any]:
    """Import the function at an address; a file's path is relative to `folder`."""
    path, colon, name = address.rpartition(":")
    if not colon:
        raise SettingsError(
            f"{place}: judge.function: {address!r} has no name; write it as file.py:name"
        )
    if path.endswith(".py"):
        address = f"{folder / Path(path).expanduser()}:{name}"
    try:
        function: object = import_object(address, type(import_judge))
    except ValueError as error:
        raise SettingsError(f"{place}: judge.function: {error}") from None
    if not callable(function) or isinstance(function, type):
        raise SettingsError(f"{place}: judge.function: {address!r} is no function")
    return function


def _find_source(function: Callable[..., Any]) -> str:
    unwrapped = inspect.unwrap(function)
    try:
        return inspect.getsourcefile(unwrapped) or ""
    except TypeError:  # an object that can be called, or a function of C
        try:
            return inspect.getsourcefile(type(unwrapped)) or ""
        except TypeError:
            return ""
