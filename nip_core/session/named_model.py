"""Whether a name means a model, before anything is started.

find_model     where a model is: bundled, added, in a directory, in the Hub's cache, on the Hub
SilentHubError the Hub gave no answer, so that nothing can be said

Most names need no network. The Hub is asked one question, for the file that every engine reads
first, and only for a name that nothing on this machine has.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from nip_core.bridges import find_hub
from nip_core.errors import ServerError, SettingsError
from nip_core.models import BUNDLED, KNOWN, resolve_model
from nip_core.nearest import did_you_mean, nearest_first

DEADLINE_S = 10.0
"""As long as transformers itself waits for such an answer."""
CONFIG = "config.json"
CONFIGS = (CONFIG, "params.json")  # the second one is Mistral's, which vLLM reads
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}"
_NAME = re.compile(rf"{_PART}(/{_PART})?")


class SilentHubError(ServerError):
    """The Hub did not say whether it has the model, so the name may still be right."""


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
        if not any((directory / config).is_file() for config in CONFIGS):
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
        raise SettingsError(f"{name!r} is no name of a model: {list_names(name, _names())}")
    if asks_hub and (hub := find_hub()) is not None:
        hub.check_name(name, _names(), environment, deadline_s)
    return place


def _names() -> list[str]:
    return [*BUNDLED, *KNOWN]


def list_names(name: str, names: Sequence[str]) -> str:
    """Say which names mean a model, the nearest to `name` first."""
    return (
        f"a name is one of {', '.join(nearest_first(name, names))}, a directory, or OWNER/NAME "
        "as on the Hub"
    )


def _suggest_beside(directory: Path) -> str:
    try:
        neighbours = [path.name for path in directory.parent.iterdir() if path.is_dir()]
    except OSError:
        return ""
    return did_you_mean(directory.name, neighbours)
