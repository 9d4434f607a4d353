"""Notes and stars on pages: the forms that write them, and the fields of a sent form.

NoteDesk       whether notes are taken, and the values that the forms of pages need
RefusedNoteError  a form that this viewer has not made
SentNote       the fields of a sent form
find_way_back  the page on which a user has written
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from nip_core.errors import NipError
from nip_core.showing.episodes.notes import MOST_CHARACTERS, EpisodeNote, mark_of
from nip_view.parts.security import is_form_token, make_form_token
from nip_view.runs import ShownRun

JOINED = "joined"
"""In an address: the episode whose note has just been joined with another."""
_MOST_FIELDS = 8


class RefusedNoteError(ValueError):
    """A form is not of this viewer, or has other fields; the message says what to do."""


@dataclass(frozen=True)
class RunDesk:
    """The values that a run's pages need to show notes, and forms for new ones."""

    form_token: str | None
    why_not: str
    """In words, why no notes are taken; "" where they are."""
    noted: Mapping[str, EpisodeNote]
    damage: str
    joined: str
    """The episode whose note has just been joined with another; "" for none."""
    most: int = MOST_CHARACTERS
    no_note: str = mark_of("")


class NoteDesk:
    """Says whether this viewer takes notes, and checks sent forms."""

    def __init__(self, token: str | None, takes_notes: bool) -> None:
        """Without a token no user is asked for a name, and no notes are taken."""
        self._form_token = make_form_token(token) if token and takes_notes else None
        self._why_not = ""
        if not takes_notes:
            self._why_not = "nip view was started with --no-notes"
        elif token is None:
            self._why_not = "nip view was started with --no-token, so anybody here could write"

    def of(self, run: ShownRun, joined: str = "") -> RunDesk:
        """Read the notes of a run. Damage is named in the result, and never raised."""
        noted: Mapping[str, EpisodeNote] = {}
        damage = ""
        try:
            noted = run.notes.read()
        except (NipError, OSError) as error:
            damage = str(error)
        why_not = self._why_not or run.notes.find_obstacle()
        form_token = None if why_not or damage else self._form_token
        return RunDesk(form_token, why_not, noted, damage, joined)

    def read(self, body: bytes, is_of_program: bool) -> "SentNote":
        """Read a form. Raises RefusedNoteError unless it is one that this viewer has made.

        A program that has sent its token in a header (`is_of_program`) needs no form.
        """
        if self._form_token is None:
            raise RefusedNoteError(f"No notes are taken: {self._why_not}.")
        try:
            fields = dict(
                parse_qsl(
                    body.decode("utf-8", "replace"),
                    keep_blank_values=True,
                    max_num_fields=_MOST_FIELDS,
                )
            )
        except ValueError as error:
            raise RefusedNoteError(f"This is no form of this viewer ({error}).") from error
        if not is_of_program and not is_form_token(fields.get("form", ""), self._form_token):
            raise RefusedNoteError(
                "This page was made before nip view was started anew. Go back, reload the page, "
                "and write the note again."
            )
        star = fields.get("star")
        if star not in (None, "0", "1"):
            raise RefusedNoteError("star: 1 or 0 was expected")
        return SentNote(
            None if star is None else star == "1", fields.get("note"), fields.get("seen")
        )


@dataclass(frozen=True)
class SentNote:
    """The fields of a sent form; None leaves a field as it was."""

    star: bool | None
    note: str | None
    seen: str | None
    """The mark of the note that the form has shown."""


def find_way_back(
    run: ShownRun, key: str, parameters: Iterable[tuple[str, str]], is_joined: bool
) -> str:
    """Find the page on which a user has written: the episode, or the list with it.

    If the note was joined with one that its writer had not seen, the page says so.
    """
    pairs = [*parameters]
    is_list = ("to", "list") in pairs
    query = urlencode(
        [
            *(pair for pair in pairs if pair[0] not in ("to", JOINED)),
            *([(JOINED, key)] if is_joined else []),
        ]
    )
    end = f"?{query}" if query else ""
    if is_list:
        return f"/runs/{run.name}/episodes{end}#e-{key}"
    return f"/runs/{run.name}/episodes/{key}{end}#note"
