"""The user's files that a run is made of: an attack's class, scripts, chats to imitate.

digest_files        of each its digest, for the run's identity
name_changed_files  of each the words for a user who has changed it
list_named_files   of each its path, as the settings name it
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nip_core.attacks import find_attack_file
from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.hashing import digest
from nip_core.rollouts.plan import ATTACK, TEST, TRAIN, episode_spec, plan_episodes
from nip_core.rollouts.scripted_call import TRIED, check_script, find_scripts
from nip_core.scenarios import Problem
from nip_core.scenarios.scripts import USUAL_SETTING, LoadedScript, load_script
from nip_core.session.imitated import read_start_file

_OF_ATTACK = "script"


def digest_files(game: Game) -> dict[str, Any]:
    """Digest a class and chats as texts, and a script's file as it lies there."""
    digests: dict[str, Any] = {}
    attack = game.parameters.attack
    if (file := find_attack_file(attack.by)) is not None:
        digests["attack"] = digest(file.read_text(encoding="utf-8", errors="replace"))
    of_agents = {}
    for key, script in _list_scripts(game):
        if key == _OF_ATTACK:
            digests[key] = script.digest
        else:
            of_agents[key.partition(".")[2]] = script.digest
    if of_agents:
        digests["scripts"] = of_agents
    if game.parameters.imitated_file is not None:
        digests["start_from"] = digest(read_start_file(game.parameters))
    return digests


def name_changed_files(game: Game) -> dict[str, str]:
    """Name these files by the keys of `digest_files`."""
    places, attack = {}, game.parameters.attack
    if (file := find_attack_file(attack.by)) is not None:
        places["attack"] = f"{file}, in which class {attack.by.rpartition(':')[2]} stands,"
    for key, script in _list_scripts(game):
        places[key] = f"{script.file}, in which function {script.called} stands,"
    if (chats := game.parameters.imitated_file) is not None:
        places["start_from"] = f"{chats}, which agents imitate first,"
    return places


def try_script(game: Game, problems: Mapping[str, list[Problem]]) -> None:
    """Try the scripts of an attack and of agents before anything is paid for.

    An attack's on all that it is to play, an agent's on some problems for training and tests.
    Raises SettingsError for one that is not there, and for its errors and wrong results.
    """
    parameters = game.parameters
    try:
        scripts = find_scripts(game)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if not scripts:
        return
    if parameters.target_run is not None:
        specs = plan_episodes(parameters, problems[TEST], ATTACK, 0)
    else:
        specs = [
            episode_spec(parameters, split, 0, problem, 0)
            for split in (TRAIN, TEST)
            for problem in problems[split][:: max(1, len(problems[split]) // TRIED)]
        ]
    for agent, script in scripts.items():
        check_script(game, script, specs, (agent,))


def _list_scripts(game: Game) -> Iterator[tuple[str, LoadedScript]]:
    """List the user's own scripts, each with the key of its digest."""
    for agent, script in find_scripts(game).items():
        if script.digest is not None:
            is_attack = script.setting == USUAL_SETTING
            yield (_OF_ATTACK if is_attack else f"scripts.{agent}"), script


def list_named_files(game: Game) -> Iterator[tuple[str, Path]]:
    """List these files, each with its path, or its module, as the settings have it."""
    attack = game.parameters.attack
    if (file := find_attack_file(attack.by)) is not None:
        yield attack.by.rpartition(":")[0], file
    named = (entry.script for entry in game.parameters.opponents.runs)
    met = [load_script(game.scenario, name, "opponents.runs") for name in named if name is not None]
    for script in (*(script for _, script in _list_scripts(game)), *met):
        if script.digest is not None:
            yield script.name.rpartition(":")[0], Path(script.file)
    if (chats := game.parameters.imitated_file) is not None:
        yield chats, Path(chats)
