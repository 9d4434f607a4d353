"""Models by name: those in the package, and published ones that were added. Nothing loads torch.

BUNDLED         the models that come with nip; "tiny" comes with the server
KNOWN           published models that `nip models add` brings to this machine
resolve_model   the directory of one by its name, if it is here and whole
locate_model    the same for whom it need not be here

``tiny`` plays the scenario code_validation, ``tiny-arithmetic`` the scenario arithmetic, so does
``tiny-arithmetic-turns`` where the verifier is told of its turns and ``tiny-arithmetic-looks``
where it has the tool, ``tiny-reading`` the scenario reading, ``tiny-bags`` the scenario bags. Each
is described in the README.md of its directory and was made by ``factory/tiny/build.py``.
"""

import os
from importlib.util import find_spec
from pathlib import Path

from nip_base.published.known_models import KNOWN as KNOWN
from nip_core.errors import SettingsError


def _find_in_server(name: str) -> Path:
    """Find a model that comes with the server, without importing the server.

    A game that is played by another program's loop needs its name, and no server.
    """
    spec = find_spec("nip_lm_server")
    folders = [] if spec is None else spec.submodule_search_locations or []
    return Path(next(iter(folders), "nip_lm_server")) / "bundled" / name


_HERE = Path(__file__).parent
BUNDLED: dict[str, Path] = {
    "tiny": _find_in_server("tiny"),
    "tiny-arithmetic": _HERE / "tiny_arithmetic",
    "tiny-arithmetic-turns": _HERE / "tiny_arithmetic_turns",
    "tiny-arithmetic-looks": _HERE / "tiny_arithmetic_looks",
    "tiny-reading": _HERE / "tiny_reading",
    "tiny-bags": _HERE / "tiny_bags",
}
ONLY_IN_REPOSITORY = frozenset({"tiny-arithmetic-turns", "tiny-arithmetic-looks", "tiny-bags"})
"""Models of declared studies, which run from a checkout; the wheel is without them."""


def resolve_model(name_or_path: str) -> str:
    """Give the directory of a bundled or an added model, or `name_or_path` unchanged for any other.

    Raises SettingsError for one that is not on this machine, or is not whole, and for a name that
    is a directory as well.
    """
    if name_or_path in KNOWN:
        from nip_base.published.added_models import look_at

        refuse_both(name_or_path, name_or_path)
        return str(look_at(KNOWN[name_or_path]).require())
    bundled = BUNDLED.get(name_or_path)
    if name_or_path in ONLY_IN_REPOSITORY and bundled is not None and not bundled.is_dir():
        raise SettingsError(
            f"model {name_or_path}: comes with nip's repository and not with what pip installs; "
            "run from a checkout, or name the directory of a copy"
        )
    return name_or_path if bundled is None else str(bundled)


def locate_model(name_or_path: str) -> str:
    """Give the directory in which a model lies or would lie; nothing of it is read or checked."""
    if name_or_path in KNOWN:
        return str(KNOWN[name_or_path].directory())
    return str(BUNDLED.get(name_or_path, name_or_path))


def refuse_both(name: str, directory: str) -> None:
    """Raise SettingsError for the name of a published model where `directory` is one, too."""
    if os.path.isdir(directory):
        plain = directory if os.path.dirname(directory) else f"./{directory}"
        raise SettingsError(
            f"{name}: a directory ({os.path.abspath(directory)}) and a model of `nip models`; "
            f"write {plain} for the directory, or the path that `nip models path {name}` prints "
            "for the model"
        )
