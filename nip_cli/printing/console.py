"""A console of Rich for tables and the live view, which obeys no text either (see `terminal`)."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from nip_core.redaction import printable


def make_console(*, width: int | None = None, stderr: bool = False) -> Console:
    """Make a console without markup: each text is printed as it is, without links and emoji."""
    return _Shown(width=width, stderr=stderr, markup=False, emoji=False, highlight=False)


class _Shown(Console):
    """A console whose only codes are its own."""

    def render_str(self, text: str, *args: Any, **options: Any) -> Text:
        return super().render_str(printable(text), *args, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        # A Text, or a renderable of one's own.
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=printable(part.text))
