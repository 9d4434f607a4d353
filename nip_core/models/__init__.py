"""The models that come with the package, by name. Nothing here loads torch.

``tiny`` is described in ``tiny/README.md`` and was made by ``factory/tiny/build.py``.
"""

from pathlib import Path

BUNDLED: dict[str, Path] = {"tiny": Path(__file__).parent / "tiny"}


def resolve_model(name_or_path: str) -> str:
    """The directory of a bundled model, or `name_or_path` unchanged for any other."""
    bundled = BUNDLED.get(name_or_path)
    return name_or_path if bundled is None else str(bundled)
