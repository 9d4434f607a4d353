"""Screens of terminals as an animated SVG: no script, nothing from outside, the last one at rest.

Recording   what was seen of one or more terminals, and how long each part of it is shown
rows_of     what is on a pyte screen
write_svg   draw it

Each different row is drawn once, each screen is a list of rows, and an animation in CSS steps from
screen to screen. Whoever asks for reduced motion, or shows no animations, sees the last screen.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

# A terminal is dark on a light page, too; its border sets it off from a dark one.
_BACKGROUND, _BORDER, _BAR = "#0d1117", "#444c56", "#161b22"
_INK, _GREY = "#d6dde5", "#8b949e"
_NAMES = {
    "default": _INK,
    "black": "#6e7681",
    "red": "#ff7b72",
    "green": "#56d364",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#56d4dd",
    "white": "#f0f6fc",
    "brightblack": _GREY,
    "brightred": "#ffa198",
    "brightgreen": "#7ee787",
    "brightbrown": "#f2cc60",
    "brightyellow": "#f2cc60",
    "brightblue": "#a5d6ff",
    "brightmagenta": "#e2c5ff",
    "brightcyan": "#76e3ea",
    "brightwhite": "#ffffff",
}
_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_CHAR, _LINE, _SIZE = 8.4, 18, 14  # pixels
_EDGE, _HEAD = 14, 30
_STEP_S = 0.1  # the shortest that a screen is shown
_STROKES = {"━": (0.0, 1.0, 2.5), "╸": (0.0, 0.5, 2.5), "╺": (0.5, 0.5, 2.5), "─": (0.0, 1.0, 1.0)}
"""Lines drawn as such, so that they have no gaps: start and length in columns, height in pixels."""

Run = tuple[int, str, str, bool]
"""Column, text, colour, bold."""
Row = tuple[Run, ...]
Pane = tuple[Row, ...]


@dataclass(frozen=True)
class Frame:
    """What all terminals showed from `at_s` on."""

    at_s: float
    panes: tuple[Pane, ...]


@dataclass(frozen=True)
class Span:
    """From `at_s` to the next span the recording lasts `shown_s`, however long it really took."""

    at_s: float
    shown_s: float


@dataclass(frozen=True)
class Recording:
    """Screens in their order, times in seconds since it began."""

    frames: Sequence[Frame]
    spans: Sequence[Span]
    end_s: float
    columns: int

    def ends(self) -> list[float]:
        return [span.at_s for span in self.spans[1:]] + [self.end_s]

    def speed(self, at_s: float) -> float:
        """How many times as fast as it was that moment is shown."""
        place = max(bisect_right([span.at_s for span in self.spans], at_s) - 1, 0)
        return (self.ends()[place] - self.spans[place].at_s) / self.spans[place].shown_s

    def shown_at(self, at_s: float) -> float:
        """When that moment is shown."""
        before = 0.0
        for span, end_s in zip(self.spans, self.ends(), strict=True):
            if at_s < end_s:
                share = (at_s - span.at_s) / (end_s - span.at_s)
                return before + max(share, 0.0) * span.shown_s
            before += span.shown_s
        return before


def rows_of(screen: Any) -> Pane:
    """What is on a screen of pyte, its cursor a block."""
    rows: list[Row] = []
    for y in range(screen.lines):
        line = screen.buffer[y]
        runs: list[Run] = []
        for x in range(screen.columns):
            char = line[x]
            is_cursor = (x, y) == (screen.cursor.x, screen.cursor.y) and not screen.cursor.hidden
            text = "█" if is_cursor else char.data
            colour = _INK if is_cursor else _NAMES.get(char.fg, f"#{char.fg}")
            if runs and (text == " " or runs[-1][2:] == (colour, char.bold)):
                runs[-1] = (runs[-1][0], runs[-1][1] + text, *runs[-1][2:])
            elif text != " ":
                runs.append((x, text, colour, char.bold))
        rows.append(tuple((x, text.rstrip(), ink, bold) for x, text, ink, bold in runs))
    return tuple(rows)


def write_svg(path: Path, recording: Recording, title: str) -> int:
    """Draw a recording to a file, and return its size in bytes."""
    # 1. The screens that are shown long enough, and when each is.
    shown = _thinned(recording)
    total_s = sum(span.shown_s for span in recording.spans)
    heights = [len(pane) * _LINE for pane in recording.frames[-1].panes]
    tops = [_HEAD + sum(heights[:i]) + i * (_HEAD + 6) for i in range(len(heights))]
    width = round(recording.columns * _CHAR) + 2 * _EDGE
    height = tops[-1] + heights[-1] + _EDGE
    # 2. Each screen beside the others, of rows that are drawn once.
    known: dict[Row, str] = {}
    screens = []
    for number, (_, frame) in enumerate(shown):
        uses = [
            f'<use href="#{known.setdefault(row, f"r{len(known)}")}" y="{tops[i] + y * _LINE}"/>'
            for i, pane in enumerate(frame.panes)
            for y, row in enumerate(pane)
            if row
        ]
        gone_s, speed = int(frame.at_s), recording.speed(frame.at_s)
        fast = "as fast as it was" if speed < 1.5 else f"{speed:.0f} times as fast"
        clock = f"{gone_s // 60}:{gone_s % 60:02d} since the start, {fast}"
        uses.append(f'<text class="c" x="{width - _EDGE}" y="20">{clock}</text>')
        screens.append(f'<g transform="translate({number * width})">{"".join(uses)}</g>')
    rows = [f'<g id="{name}">{_drawn(row)}</g>' for row, name in known.items()]
    # 3. The animation, at rest on the last screen.
    rest = -(len(shown) - 1) * width
    keys = "".join(
        f"{100 * at_s / total_s:.3f}%{{transform:translateX({-number * width}px)}}"
        for number, (at_s, _) in enumerate(shown)
    )
    style = (
        f"text{{font:{_SIZE}px {_FONT};white-space:pre;fill:{_INK}}}"
        f".c,.t{{font-size:12px;fill:{_GREY}}}.c{{text-anchor:end}}.b{{font-weight:700}}"
        f"#s{{transform:translateX({rest}px);animation:s {total_s:.1f}s step-end infinite}}"
        f"@keyframes s{{{keys}100%{{transform:translateX({rest}px)}}}}"
        "@media(prefers-reduced-motion:reduce){#s{animation:none}}"
    )
    bars = [
        f'<rect y="{top - _HEAD + 1}" x="1" width="{width - 2}" height="{_HEAD - 6}" rx="6" '
        f'fill="{_BAR}"/><text class="t" x="{_EDGE}" y="{top - _HEAD + 20 - (0 if i == 0 else 2)}">'
        f"{'one terminal' if i == 0 else 'another'}</text>"
        for i, top in enumerate(tops)
    ]
    content = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img"><title>{escape(title)}</title><style>{style}</style>'
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" '
        f'fill="{_BACKGROUND}" stroke="{_BORDER}"/>{"".join(bars)}<defs>{"".join(rows)}</defs>'
        f'<svg width="{width}" height="{height}"><g id="s" transform="translate({rest})">'
        f"{''.join(screens)}</g></svg></svg>\n"
    )
    path.write_text(content, encoding="utf-8")
    return len(content.encode())


def _thinned(recording: Recording) -> list[tuple[float, Frame]]:
    """The screens and when each is shown; of those too near to each other, the last."""
    shown: list[tuple[float, Frame]] = []
    for frame in recording.frames:
        at_s = recording.shown_at(frame.at_s)
        slot_s = at_s - at_s % _STEP_S
        if shown and shown[-1][1].panes == frame.panes:
            continue
        if shown and slot_s <= shown[-1][0]:
            shown[-1] = (shown[-1][0], frame)
        else:
            shown.append((slot_s, frame))
    return [(0.0, shown[0][1]), *shown[1:]]


def _drawn(row: Row) -> str:
    parts = []
    for x, text, colour, bold in row:
        fill = "" if colour == _INK else f' fill="{colour}" style="fill:{colour}"'
        if set(text) <= _STROKES.keys():
            parts += _strokes(x, text, colour)
            continue
        for start, word in _pieces(text):
            left, length = (x + start) * _CHAR + _EDGE, len(word) * _CHAR
            kind = ' class="b"' if bold else ""
            parts.append(
                f'<text{kind} x="{left:.1f}" y="14" textLength="{length:.1f}"{fill}>'
                f"{escape(word, quote=False)}</text>"
            )
    return "".join(parts)


def _pieces(text: str) -> list[tuple[int, str]]:
    """Parts that wide gaps separate, each with its column."""
    pieces, start = [], 0
    for part in text.replace("  ", "\0\0").split("\0"):
        if stripped := part.strip():
            pieces.append((start + len(part) - len(part.lstrip()), stripped))
        start += len(part) + 1
    return pieces


def _strokes(x: int, text: str, colour: str) -> list[str]:
    """Characters of lines as rectangles, equal ones beside each other as one."""
    parts, start = [], 0
    while start < len(text):
        end = start
        while end < len(text) and text[end] == text[start]:
            end += 1
        offset, length, thick = _STROKES[text[start]]
        left = (x + start + offset) * _CHAR + _EDGE
        parts.append(
            f'<rect x="{left:.1f}" y="{_LINE / 2 - thick / 2:.1f}" '
            f'width="{(end - start - 1 + length) * _CHAR:.1f}" height="{thick}" fill="{colour}"/>'
        )
        start = end
    return parts
