"""The user's own files that settings name, and their contents.

A run's identity has digests of the same things as they were read (`contents`); these here are of
files as they lie there, so that a user can compute them.

Not covered: files that these import or read by themselves, data on the Hugging Face Hub, and the
models of other runs.
"""

import hashlib
import inspect
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.hashing import digest
from nip_core.models import BUNDLED, KNOWN
from nip_core.parameters.services.providers import find_provider
from nip_core.protocols import find_protocol
from nip_core.scenarios import find_scenario
from nip_core.session.attack_files import list_named_files
from nip_core.session.contents import digest_directory

_GAMES = find_spec("nip_games")
_NIP = tuple(
    Path(folder).resolve()
    for folder in (
        Path(__file__).parents[1],
        *((_GAMES and _GAMES.submodule_search_locations) or ()),
    )
)
"""The folders of nip's own files: its code, and the problems of its games."""


def find_user_files(game: Game) -> dict[str, Path]:
    """Find by name the files and folders from outside of nip that the settings of a game name.

    A name is the path as the settings have it, or the module; a file that a scenario or a protocol
    brings is named by its place beside that. So it is the same on every machine.
    """
    listed = [*_list_code(game), *list_named_files(game), *_list_templates(game)]
    listed += [*_list_data(game), *_list_models(game)]
    return {
        name: path
        for name, path in listed
        if (path.is_file() or path.is_dir())
        and not any(path.resolve().is_relative_to(folder) for folder in _NIP)
    }


def digest_user_files(files: Mapping[str, Path]) -> dict[str, str]:
    """Digest by SHA-256 the content of each file; of a folder, names and files together.

    Of a model's folder that is as in a run's identity: names, sizes, and the beginning of each
    file. Raises SettingsError for a file that can't be read.
    """
    digests = {}
    for name, path in sorted(files.items()):
        try:
            digests[name] = _digest_folder(path) if path.is_dir() else _digest_file(path)
        except OSError as error:
            raise SettingsError(f"{path}: can't be read ({error.strerror})") from None
    return digests


def _list_code(game: Game) -> Iterator[tuple[str, Path]]:
    """List the Python files with a scenario, a protocol, a provider or a reward function."""
    for address, kind in _list_classes(game):
        yield _place_of(address), Path(inspect.getfile(kind))
    if (function := game.reward_function) is not None:
        yield _place_of(function.address), Path(function.file)


def _list_classes(game: Game) -> Iterator[tuple[str, type]]:
    """List the user's classes, by the addresses in the settings."""
    scenario, protocol = game.parameters.scenario, game.parameters.interaction_protocol
    if ":" in scenario:
        yield scenario, find_scenario(scenario)
    if ":" in protocol:
        yield protocol, find_protocol(protocol)
    for agent in game.parameters.model_agents.values():
        if ":" in agent.model_provider:
            yield agent.model_provider, find_provider(agent.model_provider)


def _place_of(address: str) -> str:
    return address.rpartition(":")[0]


def _list_templates(game: Game) -> Iterator[tuple[str, Path]]:
    for name, agent in game.parameters.model_agents.items():
        path = game.prompts.paths[name]
        yield str(agent.system_prompt_template_path or _name_beside(game, path)), path


def _name_beside(game: Game, path: Path) -> str:
    """Name a file by where it lies beside the user's class that brings it."""
    for address, kind in _list_classes(game):
        folder, place = Path(inspect.getfile(kind)).resolve().parent, _place_of(address)
        if path.resolve().is_relative_to(folder):
            relative = path.resolve().relative_to(folder).as_posix()
            is_file = place.endswith(".py")
            return (
                os.path.join(os.path.dirname(place), relative) if is_file else f"{place}:{relative}"
            )
    return str(path)


def _list_data(game: Game) -> Iterator[tuple[str, Path]]:
    parameters, scenario = game.parameters, game.scenario
    dataset = parameters.dataset
    if dataset in scenario.bundled:
        path = scenario.bundled[dataset]
        yield _name_beside(game, path), path
    elif dataset not in scenario.generated:
        yield dataset, Path(os.path.expanduser(dataset))
    if parameters.lm_server.replies is not None:
        yield parameters.lm_server.replies, Path(parameters.lm_server.replies)


def _list_models(game: Game) -> Iterator[tuple[str, Path]]:
    for agent in game.parameters.model_agents.values():
        model = agent.model_name
        if agent.provider.names_weights and model not in {*BUNDLED, *KNOWN}:
            yield model, Path(os.path.expanduser(model))


def _digest_file(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _digest_folder(folder: Path) -> str:
    if (folder / "config.json").is_file():
        return digest_directory(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return digest([[_name_in(folder, path), _digest_file(path)] for path in files])


def _name_in(folder: Path, path: Path) -> str:
    """Name a file by its place in the folder, for any bytes in it."""
    return os.fsencode(path.relative_to(folder).as_posix()).decode(errors="backslashreplace")
