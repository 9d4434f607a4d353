"""A running server as the tests see it, and what came of the calls."""

from dataclasses import dataclass

ENGINES = ("deterministic", "embedded")


@dataclass(frozen=True)
class Server:
    """A running server."""

    engine: str
    url: str
    key: str

    @property
    def base(self) -> str:
        """What clients take as the API's address."""
        return f"{self.url}/v1"


outcomes: dict[tuple[str, str], dict[str, str]] = {}
"""(client, call) -> engine -> what came of it."""
