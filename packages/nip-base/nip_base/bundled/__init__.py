"""The model that comes with the server and the loop: small enough for every machine.

TINY   its directory; its README.md says how it was made, and for which game
"""

from pathlib import Path

TINY = Path(__file__).parent / "tiny"
