"""Names of repositories on the Hugging Face Hub, as settings and commands have them."""

import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from pydantic import AfterValidator

Kind = Literal["adapter", "dataset"]

_PREFIX = "hf://"
_KINDS: dict[str, Kind] = {"models": "adapter", "datasets": "dataset"}
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/-]*[A-Za-z0-9_-])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST = 96


@dataclass(frozen=True)
class Reference:
    """A repository, and a revision of it: a branch, a tag or a commit; None: its main branch."""

    repository: str
    """OWNER/NAME."""
    revision: str | None = None
    kind: Kind = "adapter"

    @classmethod
    def parse(cls, text: str, kind: Kind = "adapter") -> Self:
        """Read ``[hf://][datasets/]OWNER/NAME[@REVISION]``; `kind` holds where the text has none.

        Raises ValueError with the rule that the text breaks.
        """
        place, mark, revision = text.removeprefix(_PREFIX).partition("@")
        parts = place.split("/")
        if len(parts) == 3 and parts[0] in _KINDS:
            kind, parts = _KINDS[parts[0]], parts[1:]
        if len(parts) != 2 or not all(map(_PART.fullmatch, parts)):
            raise ValueError(
                f"{text!r} is no name of a repository; write it as OWNER/NAME, of letters, digits, "
                "'-', '_' and '.', like hf://ada/verifier@main"
            )
        name = "/".join(parts)
        if len(name) > _LONGEST or "--" in name or ".." in name or name.endswith(".git"):
            raise ValueError(
                f"{text!r} is no name of a repository: at most {_LONGEST} characters, no '--', no "
                "'..' and no '.git' at the end"
            )
        if mark and (not _REVISION.fullmatch(revision) or ".." in revision):
            raise ValueError(
                f"{text!r}: after '@' a revision is needed: a branch, a tag or a commit"
            )
        return cls(name, revision or None, kind)

    @property
    def is_pinned(self) -> bool:
        """Tell whether the revision is a commit, and so never changes."""
        return self.revision is not None and bool(_COMMIT.fullmatch(self.revision))

    def at(self, commit: str) -> Self:
        """The same repository at a commit."""
        return replace(self, revision=commit)

    def __str__(self) -> str:
        prefix = f"{_PREFIX}datasets/" if self.kind == "dataset" else _PREFIX
        return f"{prefix}{self.repository}" + (f"@{self.revision}" if self.revision else "")


def _adapter_reference(value: str) -> str:
    if not value.startswith(_PREFIX):
        raise ValueError(
            f"{value!r} is no adapter of the Hub; write it as hf://OWNER/NAME@REVISION"
        )
    if Reference.parse(value).kind != "adapter":
        raise ValueError(f"{value!r} is a repository of data; name one with an adapter")
    return value


PublishedAdapter = Annotated[str, AfterValidator(_adapter_reference)]
"""Like hf://OWNER/NAME@REVISION."""
