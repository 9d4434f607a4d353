"""Packages that a run's own server needs and that are missing here, before anything is started."""

import importlib.util
import os
from collections.abc import Callable, Mapping

from nip_core.distribution import how_to_install
from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.hosting import find_host, list_loaded
from nip_lm_server.client import VllmMissingError, find_vllm

_LOCAL = ("torch", "transformers", "peft", "trl", "accelerate", "datasets", "safetensors")
"""With which the server trains, for every engine."""


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def list_missing_packages(
    parameters: HyperParameters,
    environment: Mapping[str, str] = os.environ,
    is_installed: Callable[[str], bool] = _is_installed,
) -> list[str]:
    """List the packages missing for the engine of the run's own server, and for its trainings.

    Nothing is imported: a package that is there and broken is found by `nip doctor`.
    """
    if not list_loaded(parameters):
        return []
    settings, lines = parameters.lm_server, []
    plays_apart = not settings.capabilities.runs_on_torch
    trains = any(
        find_host(parameters, parameters.group_parameters(group)).loads_weights
        for group in parameters.trainable_groups
    )
    packages = [name for name in _LOCAL if not is_installed(name)]
    if packages and (trains or not plays_apart):
        purpose = "to train" if plays_apart else "to play and to train"
        lines.append(
            f"lm_server.engine: {settings.engine} needs {', '.join(packages)} {purpose}, which "
            f"{'is' if len(packages) == 1 else 'are'} not installed here: {how_to_install('local')}"
        )
    if settings.engine == "vllm":
        executable = settings.options.get("executable")
        try:
            find_vllm(executable if isinstance(executable, str) else None, environment)
        except VllmMissingError as error:
            lines.append(f"lm_server.engine: {error}")
    return lines


def check_packages(parameters: HyperParameters, environment: Mapping[str, str]) -> None:
    """Raise SettingsError where the run's own server could not start, with the command that helps.

    A server that starts imports for a minute on a slow machine before it notices.
    """
    if lines := list_missing_packages(parameters, environment):
        raise SettingsError("; ".join(lines))
