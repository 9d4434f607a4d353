"""The user's files that an attack is made of: a class, a script, chats that provers imitate.

digest_attack       of each its digest, for the run's identity
name_attack_places  of each the words for whoever has changed it
list_attack_files   of each its path, as the settings name it
"""

from collections.abc import Iterator
from pathlib import Path

from nip_core.attacks import find_attack_file
from nip_core.game.render import Game
from nip_core.hashing import digest
from nip_core.rollouts.scripted_call import find_attack_script
from nip_core.session.imitated import read_start_file


def digest_attack(game: Game) -> dict[str, str]:
    """Digest a class and chats as texts, and a script's file as it lies there."""
    digests, attack = {}, game.parameters.attack
    if (file := find_attack_file(attack.by)) is not None:
        digests["attack"] = digest(file.read_text(encoding="utf-8", errors="replace"))
    script = find_attack_script(game)
    if script is not None and script.digest is not None:
        digests["script"] = script.digest
    if attack.start_file is not None:
        digests["start_from"] = digest(read_start_file(attack.start_file))
    return digests


def name_attack_places(game: Game) -> dict[str, str]:
    """Name these files by the keys of `digest_attack`."""
    places, attack = {}, game.parameters.attack
    if (file := find_attack_file(attack.by)) is not None:
        places["attack"] = f"{file}, in which class {attack.by.rpartition(':')[2]} stands,"
    script = find_attack_script(game)
    if script is not None and script.digest is not None:
        places["script"] = f"{script.file}, in which function {script.called} stands,"
    if attack.start_file is not None:
        places["start_from"] = f"{attack.start_file}, which the provers imitate first,"
    return places


def list_attack_files(game: Game) -> Iterator[tuple[str, Path]]:
    """List these files, each with its path, or its module, as the settings have it."""
    attack = game.parameters.attack
    if (file := find_attack_file(attack.by)) is not None:
        yield attack.by.rpartition(":")[0], file
    script = find_attack_script(game)
    if script is not None and script.digest is not None:
        yield str(attack.script).rpartition(":")[0], Path(script.file)
    if attack.start_file is not None:
        yield attack.start_file, Path(attack.start_file)
