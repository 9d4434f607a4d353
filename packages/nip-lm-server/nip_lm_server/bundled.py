"""The name of the bundled model, for the server's own commands.

find_bundled   the place of a model by the name that they take
"""

from nip_base.bundled import TINY


def find_bundled(model: str, engine: str | None = None) -> str:
    """Return the directory of "tiny", and any other name or path as it is."""
    del engine  # a program that has names of its own finds models by their engine
    return str(TINY) if model == "tiny" else model
