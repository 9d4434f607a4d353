"""The configurations in the package, and the file for a name.

Importing this loads nothing but the standard library, so a shell can complete names by it.
"""

import difflib
import os
import textwrap
from pathlib import Path

from nip_core.errors import SettingsError

BUNDLED_CONFIGS = Path(__file__).parent / "configs"
STARTER = Path(__file__).parent / "parameters" / "starter.yaml"
"""The file that `nip init` writes."""
_SUFFIXES = (".yaml", ".yml")


def bundled_configs() -> tuple[str, ...]:
    """List the names of the bundled configurations."""
    return tuple(sorted(path.stem for path in BUNDLED_CONFIGS.glob("*.yaml")))


def about_bundled(name: str) -> str:
    """Read the first sentence of the comment at the top of a bundled configuration."""
    text = (BUNDLED_CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
    comment = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# ").strip())
    sentence, dot, _ = " ".join(comment).partition(". ")
    return sentence + dot.strip()


def config_file(config: str | Path) -> Path:
    """Find the file for `config`: the one at this path, or a bundled configuration of this name.

    A name is a word without a suffix and without a directory, like ``quickstart``. Raises
    SettingsError for a name that is neither, or that is both: a file that lies here
    should not change the settings of a training. A `Path` that is both is the file.
    """
    path, text = Path(config), str(config)
    is_name = text == path.name and not path.suffix
    bundled = BUNDLED_CONFIGS / f"{text}.yaml" if is_name and text in bundled_configs() else None
    if bundled is not None and path.is_file():
        if isinstance(config, Path):  # which can't say ./quickstart
            return path
        raise SettingsError(
            f"{text}: a file here and a bundled configuration; write ./{text} for the file, or "
            f"{bundled} for the other"
        )
    if bundled is not None:
        return bundled
    if os.path.lexists(path) or not (is_name or path.suffix in _SUFFIXES):  # also a broken link
        return path
    suggestion = _nearest(path)
    hint = f"; did you mean {suggestion}?" if suggestion else ""
    if is_name:
        raise SettingsError(
            f"{text}: neither a file here nor a bundled configuration{hint}; bundled are "
            f"{', '.join(bundled_configs())}"
        )
    if suggestion:
        raise SettingsError(f"{text}: there is no such file{hint}")
    return path


def _nearest(path: Path) -> str | None:
    """Find the file beside `path`, or the bundled configuration, with the nearest name."""
    try:
        files = {p.name: str(p) for p in path.parent.iterdir() if p.suffix in _SUFFIXES}
    except OSError:
        files = {}
    names = {name: name for name in bundled_configs()}
    if path.suffix:
        matches = difflib.get_close_matches(path.name, files, n=1, cutoff=0.75)
        if matches:
            return files[matches[0]]
    elif path.name:
        of_stems = {Path(name).stem: place for name, place in files.items()}
        names = {**of_stems, **names}
    matches = difflib.get_close_matches(path.stem, names, n=1, cutoff=0.6)
    return names[matches[0]] if matches else None


def list_of_bundled(width: int = 80) -> str:
    """Describe the bundled configurations, in lines of at most `width` columns."""
    names = bundled_configs()
    column = max(map(len, names)) + 4
    return "\n".join(
        textwrap.fill(
            about_bundled(name),
            width,
            initial_indent=f"  {name}".ljust(column),
            subsequent_indent=" " * column,
        )
        for name in names
    )
