"""The models in the package, by name. Nothing here loads torch.

``tiny`` plays the scenario code_validation, ``tiny-arithmetic`` the scenario arithmetic, so does
``tiny-arithmetic-turns`` where the verifier is told of its turns, ``tiny-reading`` the scenario
reading. Each is described in the README.md of its directory and was
made by ``factory/tiny/build.py``.
"""

from pathlib import Path

from nip_core.errors import SettingsError

_HERE = Path(__file__).parent
BUNDLED: dict[str, Path] = {
    "tiny": _HERE / "tiny",
    "tiny-arithmetic": _HERE / "tiny_arithmetic",
    "tiny-arithmetic-turns": _HERE / "tiny_arithmetic_turns",
    "tiny-reading": _HERE / "tiny_reading",
}
ONLY_IN_REPOSITORY = frozenset({"tiny-arithmetic-turns"})
"""Models of the declared study, which runs from a checkout; the wheel is without them."""


def resolve_model(name_or_path: str) -> str:
    """Give the directory of a bundled model, or `name_or_path` unchanged for any other.

    Raises SettingsError for one that is not installed.
    """
    bundled = BUNDLED.get(name_or_path)
    if name_or_path in ONLY_IN_REPOSITORY and bundled is not None and not bundled.is_dir():
        raise SettingsError(
            f"model {name_or_path}: comes with nip's repository and not with what pip installs; "
            "run from a checkout, or name the directory of a copy"
        )
    return name_or_path if bundled is None else str(bundled)
