"""The documents of a run's identity: ``run.json`` and ``openings/``."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FORMAT_VERSION = 1
DECLARATION = "NIP_DECLARATION"
"""The variable by which a sweep tells the process of a run the SHA-256 of its declaration."""


class DeclaredBefore(BaseModel):
    """The declaration of a sweep under which it has begun a run."""

    model_config = ConfigDict(frozen=True, extra="allow")

    sha256: str
    """That ``declaration.json`` names."""
    files: dict[str, str] = {}
    """By name, the SHA-256 of the user's files that the run's settings name, as they were then."""


class RunDocument(BaseModel):
    """``run.json``: the settings and contents a run was created with. It never changes."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format_version: int = FORMAT_VERSION
    run: str
    parameters: dict[str, Any]
    contents: dict[str, Any] = {}
    code_version: str
    seed: int
    data_neutral: list[str] = []
    created_at: str
    forked_from: str | None
    directory: str | None = None
    """The working directory then; relative paths among the parameters start there."""
    declaration: DeclaredBefore | None = Field(default=None, exclude_if=lambda value: value is None)
    """No key for a run that no sweep with a declaration has begun."""


class OpeningDocument(BaseModel):
    """``openings/0001.json``: a later opening with a harmless change."""

    model_config = ConfigDict(frozen=True, extra="allow")

    opened_at: str = ""
    code_version: str
    parameters: dict[str, Any]
    changed: dict[str, list[Any]] = {}
    """By dotted key, the value before and the new one."""
    directory: str | None = None
    """The working directory then."""
