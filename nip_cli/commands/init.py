"""`nip init`: a configuration to begin with."""

import importlib.util
import os
import re
import shlex
import sys
import unicodedata
from pathlib import Path
from typing import Annotated

import typer

from nip_cli.printing.terminal import say
from nip_core.configurations import STARTER, bundled_configs, config_file
from nip_core.errors import SettingsError

_NAME = "experiment.yaml"
_JUDGE, _JUDGE_PACKAGE = "judge", "nip_judges"
_TEMPLATE = "system_prompt_template_path"


def _complete_bundled(incomplete: str) -> list[str]:
    return [name for name in (*bundled_configs(), _JUDGE) if name.startswith(incomplete)]


def init(
    place: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR|FILE]", help=f"Default: {_NAME}.", show_default=False),
    ] = None,
    from_name: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="NAME",
            help="Copy this bundled configuration instead; judge: an attack on a judge of yours.",
            autocompletion=_complete_bundled,
        ),
    ] = None,
) -> None:
    """Write a short configuration with comments; nothing is asked, nothing is overwritten."""
    # 1. Where to.
    default = f"{_JUDGE}.yaml" if from_name == _JUDGE else _NAME
    place = place or Path(default)
    is_file = place.suffix in (".yaml", ".yml")
    file = place if is_file else place / default
    if not is_file and place.suffix and not place.is_dir():
        raise SettingsError(f"{place}: write a directory, or a file that ends in .yaml")
    if from_name == _JUDGE:
        _write_judge(file, place)
        return
    # 2. The file to train with: its run has the name of the file, so that two of them are two runs.
    source = STARTER if from_name is None else config_file(from_name)
    name = _run_name(file.stem)
    text = source.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^run_name: [\w.-]+", f"run_name: {name}", text)
    text = text.replace("THIS_FILE", str(file)).replace("runs/mine", f"runs/{name}")
    # A template that lies beside the bundled one does not lie beside its copy.
    text = re.sub(rf"(?m)^( +{_TEMPLATE}: )([\w.-]+)", rf"\1{source.parent}/\2", text)
    # 3. Say how it is used.
    _write_new(file, text, place)
    typed = shlex.quote(str(file))
    say(f"wrote {file}, for a run called {name}\n")
    say(f"  nip train {typed} --dry-run   what it would take; nothing is started")
    say(f"  nip prompt {typed}            what agents are asked")
    say(f"  nip train {typed}             train")
    _warn_of_missing(file)


def _write_judge(file: Path, place: Path) -> None:
    """Write the settings of an attack on a judge, which another distribution has."""
    spec = importlib.util.find_spec(_JUDGE_PACKAGE)
    if spec is None or spec.origin is None:
        raise SettingsError("--from judge: nip-judges is not installed; pip install nip-judges")
    text = (Path(spec.origin).parent / "starter.yaml").read_text(encoding="utf-8")
    typed = shlex.quote(str(file))
    _write_new(file, text.replace("THIS_FILE", typed), place)
    say(f"wrote {file}; name your prompt and your graded rows in it, then\n")
    say(f"  nip attack --judge {typed} --dry-run   what it would take; one call is made")
    say(f"  nip attack --judge {typed}             the attack")


def _write_new(file: Path, text: str, place: Path) -> None:
    """Write a file; nothing that is there is touched, nor a half-written file left behind."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        at_fault, kind = (file, "is there already") if file.exists() else (place, "is a file")
        raise SettingsError(f"{at_fault}: {kind}; name another one") from None
    except OSError as error:
        raise SettingsError(f"{file}: can't be written ({error.strerror})") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)


def _warn_of_missing(file: Path) -> None:
    """Say what the configuration needs that is not installed here."""
    from nip_core.parameters import load_parameters
    from nip_core.servers.missing_packages import list_missing_packages

    try:
        lines = list_missing_packages(load_parameters(str(file)))
    except SettingsError:  # of a file that was copied; training with it tells
        return
    sys.stdout.flush()
    for line in lines:
        say(f"nip: warning: {line}", file=sys.stderr)


def _run_name(stem: str) -> str:
    """Make a run's name of the file's: letters without accents, in lower case."""
    plain = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:41].rstrip("-") or "mine"
