"""Rules that the options of an attack keep, with the judge's file and with each other.

check_options  refuses options that mean nothing together, or that no rows can follow
name_attack    the name of an attack: that of the options, or one made of its file and identity
keep_surfaces  the wordings on the surfaces that the judge's file allows
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_core.errors import SettingsError
from nip_core.hashing import digest
from nip_core.run_store.run import RUN_NAME
from nip_judges.parts import Wording
from nip_judges.rows.row_checks import LEAST_QUESTIONS
from nip_judges.settings.judge_file import JudgeFile
from nip_judges.wordings.writing import KINDS
from nip_judges.writers.model_attacks import find_attacker

if TYPE_CHECKING:
    from nip_judges.play.attack import JudgeOptions

BEST_OF_N, TRAINED = "best-of-n", "sneaky"
_LONGEST_STEM = 20
_LONGEST_TRAINED = 41 - len("-seat-sneaky")
"""A trained attacker has runs of its own, named after the attack's."""


def check_options(file: JudgeFile, options: "JudgeOptions") -> None:
    """Raise SettingsError for options that mean nothing together."""
    if options.by not in (None, BEST_OF_N, TRAINED):
        raise SettingsError(
            f"--by {options.by}: against a judge it is {BEST_OF_N} or {TRAINED}; without it "
            "wordings are tried, and --script names your own"
        )
    wordings = {"--kinds": options.kinds, "--script": options.script, "--against": options.against}
    models = {"--attacker": options.attacker, "--n": options.n, "--steps": options.steps}
    models |= {"--until": options.until, "--start-from": options.start_from}
    unused_options = models if options.by is None else wordings
    for option, value in unused_options.items():
        if value is not None:
            needs = f"--by {BEST_OF_N} or {TRAINED}" if options.by is None else "no --by"
            raise SettingsError(f"{option} needs {needs}; leave it out")
    if options.by == BEST_OF_N and options.steps is not None:
        raise SettingsError(f"--steps is not for --by {BEST_OF_N}; leave it out")
    if options.by == TRAINED and options.n is not None:
        raise SettingsError(f"--n is not for --by {TRAINED}; leave it out")
    if options.kinds is not None and not options.kinds:
        raise SettingsError(f"--kinds names none; there are {', '.join(KINDS)}")
    if options.problems is not None and options.problems < LEAST_QUESTIONS:
        raise SettingsError(
            f"--problems {options.problems}: at least {LEAST_QUESTIONS} rows of each label show "
            "anything"
        )
    if options.by is not None:
        _check_model(file, options)


def _check_model(file: JudgeFile, options: "JudgeOptions") -> None:
    """Raise SettingsError where a model can't write against this judge."""
    if file.judge.pair:
        raise SettingsError(
            f"{file.path}: judges of pairs are attacked by wordings; leave out --by"
        )
    if file.surface is not None and not {"around", "free"}.intersection(file.surface):
        file.refuse(
            ("surface",),
            "a model writes around a wrong response, or freely where check decides; add around "
            "or free to surface",
        )
    find_attacker(file, options.attacker)


def name_attack(path: Path, options: "JudgeOptions", identity: Mapping[str, Any]) -> str:
    """Name an attack: a changed prompt is another one. Raises SettingsError for an unfit name."""
    if options.name is None:
        stem = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:_LONGEST_STEM].strip("-")
        return f"{stem or 'judge'}-{digest(identity)[:8]}"
    if not RUN_NAME.fullmatch(options.name):
        raise SettingsError(
            f"--name {options.name!r}: small letters, digits and dashes name an attack, at most "
            "41, and no dash stands first"
        )
    if options.by == TRAINED and len(options.name) > _LONGEST_TRAINED:
        raise SettingsError(
            f"--name {options.name!r}: a trained attacker's runs are named after it, so it has at "
            f"most {_LONGEST_TRAINED} letters"
        )
    return options.name


def keep_surfaces(file: JudgeFile, wordings: Sequence[Wording]) -> tuple[Wording, ...]:
    """Keep the wordings on the surfaces that a file allows; raises SettingsError if none is left.

    A wording of a user's function may be on any surface, so it stays.
    """
    if file.check is None and any(wording.surface == "free" for wording in wordings):
        file.refuse(
            (),
            "--script: a function writes whole responses, and no check proves that they are wrong; "
            "set check, or name a text file",
        )
    if file.surface is None:
        return tuple(wordings)
    allowed = tuple(w for w in wordings if w.surface in (*file.surface, "free"))
    if not allowed:
        have = ", ".join(dict.fromkeys(w.surface for w in wordings))
        file.refuse(
            ("surface",),
            f"no wording that was asked for is {' or '.join(file.surface)}: all are {have}",
        )
    return allowed
