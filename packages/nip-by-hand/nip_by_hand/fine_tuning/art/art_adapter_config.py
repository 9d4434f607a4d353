"""The settings of the ART trainer adapter, every one of them checked before anything is sent.

ARTBackendConfig         the place of training, and its subject; the names are NeMo's
ARTTrainerAdapterConfig  that, how is trained, and where the adapter keeps its jobs
"""

import contextlib
import os
from ipaddress import IPv6Address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AliasChoices,
    ConfigDict,
    Field,
    SecretStr,
    field_serializer,
    model_validator,
)

from nip_by_hand.fine_tuning.art.art_options import (
    is_train_option,
    model_options,
    train_options,
)
from nip_by_hand.fine_tuning.interface import ByFields, TrainerAdapterConfig
from nip_by_hand.fine_tuning.job_data import Setting
from nip_core.errors import SettingsError
from nip_core.parameters.basis.addresses import check_plain_address
from nip_core.redaction import read_key

DEFAULT_KEY = "default"
DEFAULT_LEARNING_RATE = 5e-5
DEFAULT_PROJECT = "trainer_project"
DEFAULT_STATE_DIR = ".art/lm_server"
KEY_VARIABLE = "NIP_API_KEY"


def environment_key(key: str) -> str:
    """The key, or the environment's where it is "default" or empty."""
    return (read_key(os.environ, KEY_VARIABLE) or key) if key in ("", DEFAULT_KEY) else key


def _address(host: str) -> str:
    """An address without a port, of a host with or without its scheme and the brackets of IPv6."""
    scheme, _, name = host.rpartition("://")
    with contextlib.suppress(ValueError):
        name = f"[{IPv6Address(name)}]"
    return f"{scheme or 'http'}://{name}"


def _host(value: str) -> str:
    """Refuse a name that is more than a host. Raises ValueError without showing it."""
    host = value.removesuffix("/")
    try:
        parts = urlsplit(check_plain_address(_address(host)))
        is_host = not (parts.path or parts.port is not None or parts.netloc.endswith(":"))
    except ValueError:
        is_host = False
    if not is_host:
        raise ValueError(
            "a host like 10.0.0.7 or gpu-box is needed, or https://gpu-box for one behind TLS; its "
            "port goes into `port`, a key into `api_key`, and a path it has none"
        )
    return host


def _name(value: str) -> str:
    """Refuse a text that is no part of ``project/name@step``. Raises ValueError."""
    if "/" in value or not value.isprintable() or not value.strip():
        raise ValueError("a name without slashes, line ends and control characters is needed")
    return value


class ARTBackendConfig(ByFields):
    """A server and a model on it."""

    model_config = ConfigDict(hide_input_in_errors=True)

    ip: Annotated[str, AfterValidator(_host)]
    """Host name or address, as NeMo has it; ``https://`` before it for a server behind TLS."""
    port: Annotated[int, Field(strict=True, ge=1, le=65535)]
    name: Annotated[str, AfterValidator(_name)] = "trainer_run"
    """ART's name of the model."""
    project: Annotated[str, AfterValidator(_name)] = DEFAULT_PROJECT
    base_model: Annotated[str, Field(min_length=1)] = "Qwen/Qwen2.5-7B-Instruct"
    api_key: SecretStr = SecretStr(DEFAULT_KEY)
    """"default": the environment's NIP_API_KEY, if it is set."""
    delete_old_checkpoints: bool = False
    """Before each submission, delete all models of earlier steps but the newest and the best."""
    init_args: dict[str, Any] | None = None
    """Of the model: max_seq_length, load_in_4bit ... See docs/art.md."""
    engine_args: dict[str, Any] | None = None
    """Of the inference server, as the next. An lm_server runs already: a warning names them."""
    server_config: dict[str, Any] | None = None

    @field_serializer("api_key")
    def _hide(self, key: SecretStr) -> str:
        return str(key)

    def key(self) -> str:
        """The key itself."""
        return environment_key(self.api_key.get_secret_value())

    @property
    def url(self) -> str:
        """The server's address, without a path."""
        return f"{_address(self.ip)}:{self.port}"


class ARTTrainerAdapterConfig(TrainerAdapterConfig):
    """The whole configuration, also as NeMo's own object. Unknown keys are errors."""

    model_config = ConfigDict(hide_input_in_errors=True)

    type: Literal["openpipe_art_trainer_adapter", "nip_art_trainer_adapter"] = Field(
        default="openpipe_art_trainer_adapter",
        validation_alias=AliasChoices("_type", "type"),
        serialization_alias="_type",
        repr=False,
    )
    """``_type`` in NeMo's files: the name of its adapter, or of this one there."""
    backend: ARTBackendConfig
    training: dict[str, Any] | None = None
    """learning_rate (default 5e-5), beta (that is kl_penalty_coef) and everything else of
    `art_options.TrainOptions`; and of the trainer's own arguments num_train_epochs,
    per_device_train_batch_size, weight_decay ... Names and values are checked here."""
    strict: bool = True
    """Whether an episode's order must keep all four documented rules. False: those that NeMo's
    code checks, see docs/art.md; and a trajectory that can't be converted is left out."""
    state_dir: Annotated[str, Field(min_length=1)] = DEFAULT_STATE_DIR
    """Directory of steps and jobs. Processes that share it know each other's."""
    deadline_s: Annotated[float, Field(gt=0)] = 24 * 3600.0
    """Longest life of a job, from submission, in seconds, above 0."""

    @model_validator(mode="after")
    def _check(self) -> "ARTTrainerAdapterConfig":
        self.options()
        return self

    def options(self) -> dict[str, Setting]:
        """Check the options of `train` and give them their types. Raises SettingsError for
        impossible ones in `training`.
        """
        model_options({"trainer_args": self.trainer_args()})
        training = dict(self.training or {})
        if "beta" in training:
            if "kl_penalty_coef" in training:
                raise SettingsError("training: beta and kl_penalty_coef are the same; give one")
            training["kl_penalty_coef"] = training.pop("beta")
        training.setdefault("learning_rate", DEFAULT_LEARNING_RATE)
        options = {name: value for name, value in training.items() if is_train_option(name)}
        return train_options(options).model_dump(include=set(options))

    def trainer_args(self) -> dict[str, Setting]:
        """The options for the model's configuration."""
        training = self.training or {}
        return {n: v for n, v in training.items() if n != "beta" and not is_train_option(n)}
