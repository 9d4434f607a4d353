"""Adapters that the pool serves and the table of models does not have."""

from pathlib import Path
from typing import Protocol


class Guests(Protocol):
    """Adapters that are not in the table of models, such as Tinker's samplers."""

    def find_base(self, name: str) -> str | None:
        """Return the base model of an adapter; None: there is no such adapter."""

    async def verify(self, name: str) -> Path:
        """Compare an adapter's files with the record, and return where it lies.

        Raises AdapterError.
        """
