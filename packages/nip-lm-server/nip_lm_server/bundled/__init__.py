"""The model that comes with the server: small enough for every wheel and every machine.

TINY           its directory; its README.md says how it was made, and for which game
find_bundled   the place of a model by the name that the server's own command takes
"""

from pathlib import Path

TINY = Path(__file__).parent / "tiny"


def find_bundled(model: str, engine: str | None = None) -> str:
    """Return the directory of "tiny", and any other name or path as it is."""
    del engine  # a program that has names of its own finds models by their engine
    return str(TINY) if model == "tiny" else model
