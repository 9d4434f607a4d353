"""The trackers of a run, as its settings and the environment name them.

check_trackers     refuse what is not installed, and W&B without a key
tracker_directory  where the run store keeps what a tracker has received
address            where a tracker is: two of one address are one
is_remote          whether its receiver may not answer
"""

import importlib.metadata
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from nip_core.distribution import how_to_install
from nip_core.errors import SettingsError
from nip_core.hashing import digest
from nip_core.parameters.blocks.tracking import TrackerParameters
from nip_core.redaction import check_address, read_key
from nip_core.run_store.run import RunStore

_DISTRIBUTIONS = {
    "mlflow": ("mlflow", "mlflow-skinny"),
    "tensorboard": ("tensorboardX",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}

_ADDRESSES = {"mlflow": "MLFLOW_TRACKING_URI", "wandb": "WANDB_BASE_URL"}


def check_trackers(
    trackers: Iterable[TrackerParameters], environment: Mapping[str, str] = os.environ
) -> None:
    """Raise SettingsError if a tracker is not installed, or lacks a key; no server is asked."""
    for tracker in trackers:
        variable = _ADDRESSES.get(tracker.kind, "")
        named = environment.get(variable) if tracker.uri is None else None
        if named and named.startswith(("http://", "https://")):
            check_address(f"environment variable {variable}", named)
        if not any(map(_is_installed, _DISTRIBUTIONS[tracker.kind])):
            raise SettingsError(
                f"tracking: {tracker.kind} is not installed; {how_to_install(tracker.kind)}, or "
                "leave it out"
            )
        if not is_remote(tracker, environment):
            continue
        if tracker.kind == "wandb" and not read_key(environment, "WANDB_API_KEY"):
            raise SettingsError(
                "tracking: wandb needs the key in the environment variable WANDB_API_KEY, which is "
                "not set; set it, or mode: offline"
            )
        if tracker.kind == "trackio" and not read_key(environment, "TRACKIO_WRITE_TOKEN"):
            raise SettingsError(
                "tracking: trackio's server needs the token in the environment variable "
                "TRACKIO_WRITE_TOKEN, which is not set"
            )


def _is_installed(distribution: str) -> bool:
    # Not by its module's name: a directory wandb in the working directory looks like a package.
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def tracker_directory(
    run: RunStore, tracker: TrackerParameters, environment: Mapping[str, str] = os.environ
) -> str:
    """Return the directory in the store with the tracker's cursor and lease."""
    name = f"{tracker.kind}-{digest(address(tracker, environment))[:8]}"
    return f"{run.root}/tracking/{name}"


def address(tracker: TrackerParameters, environment: Mapping[str, str] = os.environ) -> str:
    """Name the place of the tracker and its project, without secrets."""
    match tracker.kind:
        case "mlflow":
            uri = tracker.uri or environment.get("MLFLOW_TRACKING_URI") or str(Path.cwd())
            return f"{_remove_user(uri)} {tracker.project}"
        case "wandb" if wandb_mode(tracker, environment) == "offline":
            return f"{wandb_files(tracker, environment)} {tracker.project}"
        case "wandb":
            base = environment.get("WANDB_BASE_URL") or "https://api.wandb.ai"
            entity = tracker.entity or environment.get("WANDB_ENTITY") or ""
            return f"{_remove_user(base)} {entity}/{tracker.project}"
        case "trackio":
            server = trackio_server(tracker, environment)
            files = tracker.directory or environment.get("TRACKIO_DIR") or ""
            return f"{_remove_user(server or files)} {tracker.project}"
        case "tensorboard":
            return str(tensorboard_files(tracker))


def _remove_user(address: str) -> str:
    parts = urlsplit(address)
    if "@" not in parts.netloc:
        return address
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def is_remote(tracker: TrackerParameters, environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the points leave this machine: then an answer may fail to come."""
    match tracker.kind:
        case "mlflow":
            uri = tracker.uri or environment.get("MLFLOW_TRACKING_URI") or ""
            return "://" in uri and not uri.startswith(("file:", "sqlite:"))
        case "wandb":
            return wandb_mode(tracker, environment) == "online"
        case "trackio":
            return trackio_server(tracker, environment) is not None
        case "tensorboard":
            return False


def wandb_mode(tracker: TrackerParameters, environment: Mapping[str, str] = os.environ) -> str:
    """Return "online" or "offline"."""
    mode = tracker.mode or environment.get("WANDB_MODE") or "online"
    return "offline" if mode in ("offline", "dryrun") else "online"


def wandb_files(tracker: TrackerParameters, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory around W&B's directory ``wandb``."""
    place = tracker.directory or environment.get("WANDB_DIR") or "."
    return Path(place).expanduser().absolute()


def tensorboard_files(tracker: TrackerParameters) -> Path:
    """Return the directory with a directory for each run."""
    return Path(tracker.directory or "tensorboard").expanduser().absolute()


def trackio_server(
    tracker: TrackerParameters, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Return the address of trackio's server without its token; None for files of this machine."""
    if tracker.directory is not None:
        return None
    server = tracker.uri or environment.get("TRACKIO_SERVER_URL")
    return server.partition("?")[0] if server else None
