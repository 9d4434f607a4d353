"""Whether a name means a model, before anything is started.

find_model     where a model is: bundled, added, in a directory, in the Hub's cache, on the Hub
SilentHubError the Hub gave no answer, so that nothing can be said

Most names need no network. The Hub is asked one question, for the file that every engine reads
first, and only for a name that nothing on this machine has.
"""

import importlib.util
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path

from nip_core.errors import NipError, ServerError, SettingsError
from nip_core.hub.client import Found, Hub, UnclearError, connect
from nip_core.models import BUNDLED, KNOWN, resolve_model
from nip_core.nearest import did_you_mean, nearest_first
from nip_core.parameters.services.published import Reference

DEADLINE_S = 10.0
"""As long as transformers itself waits for such an answer."""
CONFIG = "config.json"
_CONFIGS = (CONFIG, "params.json")  # the second one is Mistral's, which vLLM reads
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}"
_NAME = re.compile(rf"{_PART}(/{_PART})?")


class SilentHubError(ServerError):
    """The Hub was not asked, or gave no answer: the name may be right."""


def find_model(
    name: str,
    environment: Mapping[str, str] = os.environ,
    *,
    asks_hub: bool = True,
    deadline_s: float = DEADLINE_S,
) -> str:
    """Return the directory of a model of this machine, and `name` for one of the Hub.

    Raises SettingsError if there is no such model, SilentHubError if only the Hub could tell, and
    does not within `deadline_s`.
    """
    place = resolve_model(name)
    directory = Path(os.path.expanduser(place))
    if directory.is_dir():
        if not any((directory / config).is_file() for config in _CONFIGS):
            raise SettingsError(
                f"{name} is a directory without {CONFIG}, so no model; name the one that has "
                "config.json, weights and a tokenizer in it"
            )
        return place
    if name.startswith((".", "/", "~")):
        raise SettingsError(
            f"there is no directory {name}; give the path of a model, a Hugging Face name, or a "
            f'bundled one like "tiny"{_suggest_beside(directory)}'
        )
    if directory.is_file():
        raise SettingsError(f"{name} is a file; name the directory of a model")
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{name!r} is no name of a model: {_list_names(name)}")
    # Without the library an engine of another environment may load it, which is not asked here.
    if asks_hub and importlib.util.find_spec("huggingface_hub") is not None:
        _ask_hub(name, environment, deadline_s)
    return place


def _ask_hub(name: str, environment: Mapping[str, str], deadline_s: float) -> None:
    """Raise unless the Hub has the model, or had it, so that it lies in the cache."""
    hub, reference = connect(environment), Reference(name)
    if any(hub.find_cached(reference, config) for config in _CONFIGS):
        return
    try:
        answer = _ask_within(hub, reference, deadline_s)
    except (UnclearError, SettingsError) as error:
        near = did_you_mean(name, _names())
        raise SilentHubError(
            f"there is no model {name!r} on this machine{f'{near} The' if near else '; the'} Hub, "
            f"which may have it, gives no answer ({_shorten(str(error), reference)}): run where it "
            "can be reached, or name the directory of a model"
        ) from error
    if answer is Found.gated:
        raise SettingsError(
            f"{name!r} asks for its terms to be accepted on its page at the Hub; do that, and set "
            "HF_TOKEN or run `hf auth login`"
        )
    if answer is Found.no_file:
        raise SettingsError(
            f"{name!r} is a repository of the Hub without {CONFIG}, so no model that is loaded by "
            "its name; name the one it was made from"
        )
    if answer is Found.no_repository:
        raise SettingsError(
            f"there is no model {name!r} here, and none on the Hub that this machine may see"
            f"{did_you_mean(name, _names())} ({_list_names(name)})"
        )


def _ask_within(hub: Hub, reference: Reference, deadline_s: float) -> Found:
    """Ask in a thread: no limit of the library's holds for looking up a host, or for all in all."""
    answers: list[Found | NipError] = []

    def ask() -> None:
        try:
            answers.append(hub.find_file(reference, CONFIG, deadline_s))
        except NipError as error:
            answers.append(error)

    asking = threading.Thread(target=ask, name="ask the Hub", daemon=True)
    asking.start()
    asking.join(deadline_s)
    if not answers:
        raise UnclearError(f"no answer within {deadline_s:g} s")
    if isinstance(answers[0], NipError):
        raise answers[0]
    return answers[0]


def _names() -> list[str]:
    return [*BUNDLED, *KNOWN]


def _list_names(name: str) -> str:
    return (
        f"a name is one of {', '.join(nearest_first(name, _names()))}, a directory, or OWNER/NAME "
        "as on the Hub"
    )


def _suggest_beside(directory: Path) -> str:
    try:
        beside = [path.name for path in directory.parent.iterdir() if path.is_dir()]
    except OSError:
        return ""
    return did_you_mean(directory.name, beside)


def _shorten(text: str, reference: Reference) -> str:
    return text.removeprefix(f"{reference}: ").partition("; run again")[0]
