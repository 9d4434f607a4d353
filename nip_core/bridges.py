"""The Hugging Face Hub and trackers, which another distribution brings to a run.

find_hub, find_trackers   its module, by the entry points ``hub`` and ``trackers`` of the group
                          `nip.bridges`
HubBridge, TrackersBridge the functions of that module

The distribution nip-bridges has both. Without it a run has no tracker, and names no model of the
Hub.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from nip_core.distribution import how_to_install
from nip_core.errors import SettingsError
from nip_core.importing import load_bridge

if TYPE_CHECKING:
    from nip_core.parameters import HyperParameters
    from nip_core.parameters.blocks.tracking import TrackerParameters
    from nip_core.records.models import ServedModel
    from nip_core.run_store.run import RunStore

GROUP = "nip.bridges"
"""Of entry points."""
DISTRIBUTION = "nip-bridges"


class PublishedAdapter(Protocol):
    """A downloaded adapter of the Hub."""

    def model(self) -> "ServedModel":
        """Return the model that it makes for a group, not proved yet."""


class HubBridge(Protocol):
    """The functions by which a run asks the Hub."""

    def check_name(
        self, name: str, names: Sequence[str], environment: Mapping[str, str], deadline_s: float
    ) -> None:
        """Raise SettingsError if the Hub has no model `name`, ServerError if it does not answer.

        `names` are models of this machine, for a name that is nearly right.
        """

    def find_published(self, parameters: "HyperParameters", agent: str) -> PublishedAdapter:
        """Find the adapter that an agent begins with. Raises SettingsError."""

    def bring_published(self, models: Iterable[Any], state_dir: Path) -> None:
        """Copy adapters of `find_published` into the state of a server that does not run."""


class RunFeeders(AbstractAsyncContextManager["RunFeeders"], Protocol):
    """The processes that feed a run's trackers; leaving it lets them send the rest."""

    def look(self) -> None:
        """Tell all of them of a commit."""


class TrackersBridge(Protocol):
    """The functions by which a run feeds trackers."""

    def check_trackers(
        self, trackers: "Iterable[TrackerParameters]", environment: Mapping[str, str]
    ) -> None:
        """Raise SettingsError if a tracker is not installed, or lacks a key."""

    def feed(self, run: "RunStore", trackers: "Sequence[TrackerParameters]") -> RunFeeders:
        """Return the feeders of a run; no process is started before the first `look`."""


def find_hub() -> HubBridge | None:
    """Find the module that speaks with the Hub; None where it is not installed."""
    return cast("HubBridge | None", load_bridge(GROUP, "hub"))


def need_hub(place: str) -> HubBridge:
    """Find the module that speaks with the Hub. Raises SettingsError with `place`, a setting."""
    if (hub := find_hub()) is None:
        raise SettingsError(f"{place}: {_say_how('the Hub')}")
    return hub


def find_trackers() -> TrackersBridge | None:
    """Find the module that feeds trackers; None where it is not installed."""
    return cast("TrackersBridge | None", load_bridge(GROUP, "trackers"))


def check_trackers(trackers: "Sequence[TrackerParameters]", environment: Mapping[str, str]) -> None:
    """Raise SettingsError for a tracker that this machine can't feed."""
    if not trackers:
        return
    if (bridge := find_trackers()) is None:
        raise SettingsError(f"tracking: {_say_how(trackers[0].kind)}, or leave it out")
    bridge.check_trackers(trackers, environment)


def _say_how(target: str) -> str:
    return f"{target} needs the package {DISTRIBUTION}: {how_to_install(name=DISTRIBUTION)}"
