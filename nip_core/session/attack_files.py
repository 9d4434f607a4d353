"""The user's files that a run is made of: an attack's class and script, chats to imitate.

digest_files        of each its digest, for the run's identity
name_changed_files  of each the words for a user who has changed it
list_named_files   of each its path, as the settings name it
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from nip_core.attacks import find_attack_file
from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.hashing import digest
from nip_core.parameters.checks import list_scripted
from nip_core.rollouts.plan import ATTACK, TEST, plan_episodes
from nip_core.rollouts.scripted_call import check_script, find_attack_script
from nip_core.scenarios import Problem
from nip_core.session.imitated import read_start_file


def digest_files(game: Game) -> dict[str, str]:
    """Digest a class and chats as texts, and a script's file as it lies there."""
    digests, attack = {}, game.parameters.attack
    if (file := find_attack_file(attack.by)) is not None:
        digests["attack"] = digest(file.read_text(encoding="utf-8", errors="replace"))
    script = find_attack_script(game)
    if script is not None and script.digest is not None:
        digests["script"] = script.digest
    if game.parameters.imitated_file is not None:
        digests["start_from"] = digest(read_start_file(game.parameters))
    return digests


def name_changed_files(game: Game) -> dict[str, str]:
    """Name these files by the keys of `digest_files`."""
    places, attack = {}, game.parameters.attack
    if (file := find_attack_file(attack.by)) is not None:
        places["attack"] = f"{file}, in which class {attack.by.rpartition(':')[2]} stands,"
    script = find_attack_script(game)
    if script is not None and script.digest is not None:
        places["script"] = f"{script.file}, in which function {script.called} stands,"
    if (chats := game.parameters.imitated_file) is not None:
        places["start_from"] = f"{chats}, which agents imitate first,"
    return places


def try_script(game: Game, problems: Mapping[str, list[Problem]]) -> None:
    """Try the script of an attack on all that it is to play, before anything is paid for.

    Raises SettingsError for one that is not there, and for its errors and wrong results.
    """
    try:
        script = find_attack_script(game)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if script is not None:
        specs = plan_episodes(game.parameters, problems[TEST], ATTACK, 0)
        check_script(game, script, specs, list_scripted(game.parameters))


def list_named_files(game: Game) -> Iterator[tuple[str, Path]]:
    """List these files, each with its path, or its module, as the settings have it."""
    attack = game.parameters.attack
    if (file := find_attack_file(attack.by)) is not None:
        yield attack.by.rpartition(":")[0], file
    script = find_attack_script(game)
    if script is not None and script.digest is not None:
        yield str(attack.script).rpartition(":")[0], Path(script.file)
    if (chats := game.parameters.imitated_file) is not None:
        yield chats, Path(chats)
