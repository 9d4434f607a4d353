"""Checks of a gateway: its service, and the tokenizers of its models.

check_service     asks the service once
load_model_text   loads a tokenizer

Each raises an error that names the option or the variable to set.
"""

from pathlib import Path

from nip_core.errors import ServerError, SettingsError
from nip_core.jobs.job import Busy, NoAnswer, Refused
from nip_core.parameters.services.providers import Tinker
from nip_lm_server.client import training_text
from nip_tinker.datums import load_text
from nip_tinker.gateway.samples import SampleClient

_PATIENCE_S = 3.0
_TIMEOUT_S = 10.0


async def check_service(address: str, key: str) -> None:
    """Raise SettingsError unless the service speaks this wire and takes the key, and ServerError
    where it does not answer."""
    client = SampleClient(address, key, patience_s=_PATIENCE_S, timeout_s=_TIMEOUT_S)
    options = f"--address or {Tinker.address_variable}"
    try:
        await client.check_wire(options)
    except (Busy, NoAnswer) as error:
        raise ServerError(
            f"{error}: start the gateway when the service is up, or name another by {options}"
        ) from None
    except Refused as error:  # the account has no money
        raise ServerError(str(error)) from None
    finally:
        await client.aclose()


def load_model_text(base: str, folder: str | None) -> training_text.Text:
    """Load the tokenizer of a base model: of `folder`, or by its name. Raises SettingsError."""
    if folder is not None and not Path(folder).expanduser().is_dir():
        raise SettingsError(f"--tokenizer {folder}: there is no such folder")
    try:
        return load_text(base, folder, None)
    except SettingsError as error:
        reason = error.__context__
        if not isinstance(reason, ValueError):
            raise
        words = " ".join(str(reason).split())[:500]
        if folder is not None:
            raise SettingsError(f"--tokenizer {folder}: {words}") from None
        raise SettingsError(
            f"the tokenizer of the base model {base!r} is not on this machine ({words}): start the "
            "gateway with --tokenizer and a folder that has its files"
        ) from None
