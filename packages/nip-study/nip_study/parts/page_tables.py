"""Tables of a sweep's pages, in Markdown."""

from collections.abc import Iterable, Sequence

from nip_core.evaluation.figures_in_words import DASH, percent_cell
from nip_study.parts.document_parts import OverRuns


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table as Markdown. Bars and line breaks in its texts stay in their cells."""
    lines = [write_row(heads), "|---" * len(heads) + "|", *map(write_row, rows)]
    return "\n".join(lines) + "\n"


def write_row(cells: Iterable[str]) -> str:
    """Write a row of a Markdown table. Bars and line breaks in its texts stay in their cells."""
    return "| " + " | ".join(one_line(cell).replace("|", "\\|") for cell in cells) + " |"


def one_line(text: str) -> str:
    """Write a text in one line."""
    return " ".join(text.split())


def write_cell(value: OverRuns | None) -> str:
    """Write the mean of a rate in percent, with its interval; a dash for None."""
    return DASH if value is None else percent_cell(value.mean, value.ci95)
