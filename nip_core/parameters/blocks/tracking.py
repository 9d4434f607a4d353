"""The trackers that show the metrics of a run, each with its place and its name of the run."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from nip_core.parameters.basis.base import Parameters
from nip_core.redaction import is_address

TrackerKind = Literal["trackio", "wandb", "mlflow", "tensorboard"]
TRACKERS: tuple[TrackerKind, ...] = get_args(TrackerKind)
_OPTIONS: Mapping[str, frozenset[str]] = {
    "trackio": frozenset({"project", "uri", "directory"}),
    "wandb": frozenset({"project", "entity", "mode", "directory"}),
    "mlflow": frozenset({"project", "uri"}),
    "tensorboard": frozenset({"directory"}),
}
_SCHEMES = {"trackio": ("http", "https")}


class TrackerParameters(Parameters):
    """A tracker, as a name or as a block with its `kind`; see docs/tracking.md."""

    kind: TrackerKind
    """trackio, wandb, mlflow or tensorboard. Each needs the extra of its name."""
    project: Annotated[str, Field(min_length=1)] = "nip"
    """The project of trackio and W&B, the experiment of MLflow."""
    uri: Annotated[str, Field(min_length=1)] | None = None
    """mlflow: the tracking URI; None: that of MLFLOW_TRACKING_URI, else MLflow's own default.
    trackio: the address of a server (its token: TRACKIO_WRITE_TOKEN); None: that of
    TRACKIO_SERVER_URL, else the files of this machine. Without user, password or token."""
    directory: Annotated[str, Field(min_length=1)] | None = None
    """tensorboard: where each run has a directory of its own; None: tensorboard. wandb: where the
    directory wandb is; None: that of WANDB_DIR, else the working directory. trackio: where its
    files are; None: that of TRACKIO_DIR, else trackio's own."""
    entity: Annotated[str, Field(min_length=1)] | None = None
    """wandb: the user or team. None: that of WANDB_ENTITY, else the key's."""
    mode: Literal["online", "offline"] | None = None
    """wandb: online (its key: WANDB_API_KEY), or offline, into files for `wandb sync`. None: that
    of WANDB_MODE, else online."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, dict):
            raise ValueError(
                "a tracker is a name or a block such as {kind: mlflow, uri: ...} (got "
                f"{_shown(value)})"
            )
        kind = value.get("kind")
        if kind is not None and kind not in TRACKERS:
            raise ValueError(f"{_shown(kind)} is no tracker; there are {', '.join(TRACKERS)}")
        return value

    @model_validator(mode="after")
    def _check(self) -> "TrackerParameters":
        for name in ("project", "uri", "directory", "entity", "mode"):
            value = getattr(self, name)
            is_default = value == type(self).model_fields[name].default
            if name not in _OPTIONS[self.kind] and not is_default:
                options = ", ".join(sorted(_OPTIONS[self.kind]))
                raise ValueError(f"{self.kind} has no option {name}; it has {options}")
        if self.uri is not None:
            self._check_address(self.uri)
        return self

    def _check_address(self, uri: str) -> None:
        # No message shows it: it may hold a password.
        is_http = uri.lower().startswith(("http://", "https://"))
        try:
            parts = urlsplit(uri)
        except ValueError:
            raise ValueError("uri is no address like http://host:5000") from None
        if parts.username or parts.password or (is_http and "@" in uri) or "token" in parts.query:
            raise ValueError(
                "uri holds a user, a password or a token; leave them out and set the variables of "
                "the environment: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, "
                "MLFLOW_TRACKING_TOKEN, TRACKIO_WRITE_TOKEN"
            )
        if is_http and not is_address(uri):
            raise ValueError("uri is no address like http://host:5000")
        schemes = _SCHEMES.get(self.kind)
        if schemes and parts.scheme not in schemes:
            raise ValueError(f"uri of {self.kind}: an address with http:// or https:// is needed")
        if self.kind == "trackio" and self.directory is not None:
            raise ValueError("trackio: uri and directory exclude each other; set one")


def _as_list(value: Any) -> Any:
    if value is None:
        return ()
    if isinstance(value, str | Mapping):
        raise ValueError(f"write a list, for example tracking: [trackio] (got {_shown(value)})")
    return value


def _shown(value: Any) -> str:
    """A value for a message; one with an address in it may hold a password."""
    text = repr(value)
    return "a value with an address in it" if "://" in text or "@" in text else text[:200]


def _once(trackers: tuple[TrackerParameters, ...]) -> tuple[TrackerParameters, ...]:
    for number, tracker in enumerate(trackers):
        if tracker in trackers[:number]:
            raise ValueError(f"{tracker.kind} is named twice with the same options; name it once")
    return trackers


Trackers = Annotated[
    tuple[TrackerParameters, ...], BeforeValidator(_as_list), AfterValidator(_once)
]
"""The trackers of a run, none twice."""
