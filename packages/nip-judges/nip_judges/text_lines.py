"""Lines of a terminal: texts of any origin, cut and wrapped by the columns that they take.

cut_line     a text on one line of at most so many columns
wrap_lines   a text on lines of at most so many columns
"""

from rich.cells import cell_len, chop_cells, set_cell_size

from nip_core.redaction import printable


def cut_line(text: str, columns: int) -> str:
    """Put a text on one line of at most so many columns; control codes are escaped."""
    line = printable(text.rstrip().replace("\n", " "))
    if cell_len(line) <= columns:
        return line
    return f"{set_cell_size(line, columns - 1).rstrip()}…"


def wrap_lines(text: str, columns: int, first: str = "", indent: str = "") -> list[str]:
    """Wrap a text at its spaces, after `first` on its first line and `indent` on the others.

    A word that is longer than a line is broken; control codes are escaped.
    """
    room = columns - max(cell_len(first), cell_len(indent))
    lines: list[str] = []
    line = first
    is_empty = True
    for word in printable(text).split():
        for piece in chop_cells(word, room) if cell_len(word) > room else [word]:
            space = "" if is_empty else " "
            if not is_empty and cell_len(line) + 1 + cell_len(piece) > columns:
                lines.append(line)
                line, space = indent, ""
            line, is_empty = f"{line}{space}{piece}", False
    return [*lines, line.rstrip()]
