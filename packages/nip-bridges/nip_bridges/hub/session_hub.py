"""A run's requests to the Hub, see `nip_core.bridges.HubBridge`.

check_name        whether the Hub has a model: one question, for the file that every engine reads
find_published    the adapter that an agent begins with
bring_published   such adapters among the models of a server's state
"""

import importlib.util
import threading
from collections.abc import Mapping, Sequence

from nip_bridges.hub import adapters_to_start_from
from nip_bridges.hub.adapters_to_start_from import PublishedModel, bring_published
from nip_bridges.hub.client import Found, Hub, UnclearError, connect
from nip_core.errors import NipError, SettingsError
from nip_core.nearest import did_you_mean
from nip_core.parameters import HyperParameters
from nip_core.parameters.services.published import Reference
from nip_core.session.named_model import CONFIG, CONFIGS, SilentHubError, list_names

__all__ = ["bring_published", "check_name", "find_published"]


def find_published(parameters: HyperParameters, agent: str) -> PublishedModel:
    """Find the adapter that an agent begins with. Raises SettingsError if it can't play here."""
    return adapters_to_start_from.find_published(parameters, agent, connect)


def check_name(
    name: str, names: Sequence[str], environment: Mapping[str, str], deadline_s: float
) -> None:
    """Raise unless the Hub has the model, or had it, so that it lies in the cache.

    `names` are those of this machine. Raises SettingsError if there is none, SilentHubError if the
    Hub gives no answer within `deadline_s`.
    """
    # Without the library an engine of another environment may load it, which is not asked here.
    if importlib.util.find_spec("huggingface_hub") is None:
        return
    hub, reference = connect(environment), Reference(name)
    if any(hub.find_cached(reference, config) for config in CONFIGS):
        return
    try:
        answer = _ask_within(hub, reference, deadline_s)
    except (UnclearError, SettingsError) as error:
        hint = did_you_mean(name, names)
        raise SilentHubError(
            f"there is no model {name!r} on this machine{f'{hint} The' if hint else '; the'} Hub, "
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
            f"{did_you_mean(name, names)} ({list_names(name, names)})"
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


def _shorten(text: str, reference: Reference) -> str:
    return text.removeprefix(f"{reference}: ").partition("; run again")[0]
