"""The table at the head of the page: what nip does, the best of the others, and who is ahead."""

from collections.abc import Iterator
from statistics import median
from typing import Any

Row = tuple[str, str, str, str]
NIP, EVEN, NOBODY, ALONE = "nip", "even", "not measured", "–"
_BARE = "bare client"  # nip's own client with nothing around it is no other project


def table(result: dict[str, Any]) -> list[str]:
    """Its lines, of the parts that were measured; three columns more for each further model."""
    further = result.get("models", {})
    columns = [_rows(result), *(_rows(parts) for parts in further.values())]
    labels = list(dict.fromkeys(label for column in columns for label in column))
    if not labels:
        return []
    heads = ["nip | best of the others | ahead"]
    heads += [f"{name}: nip | best of the others | ahead" for name in further]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + 3 * len(columns)) + "|"]
    blank = ("", "", "")
    for label in labels:
        cells = [cell for column in columns for cell in column.get(label, blank)]
        # What was measured with a further model alone has its section under that one's name.
        name = next((n for n in further if label not in columns[0]), None)
        linked = label if name is None else label.replace("): ", f"-{name}): ", 1)
        lines.append(f"| {' | '.join([linked, *cells])} |")
    return lines


def _rows(parts: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    """The figures of one model's parts by what they are of."""
    found = [row for name, rows in _ROWS.items() if name in parts for row in rows(parts[name])]
    return {label: (ours, best, ahead) for label, ours, best, ahead in found}


def _is_nip(name: str) -> bool:
    return name.split(",")[0].split()[0] == NIP


def _ahead(ours: float, best: tuple[str, float] | None, *, more: bool) -> str:
    """Say who is ahead, of two figures of which more, or less, is better; within 3 % nobody."""
    if best is None:
        return ALONE
    name, figure = best
    larger, smaller = max(ours, figure), min(ours, figure)
    if larger <= 1.03 * smaller:
        return EVEN
    return NIP if (ours > figure) == more else f"**{name}**"


def _compared(
    what: str, figures: dict[str, float], form: str, *, more: bool = True
) -> Iterator[Row]:
    """One row, of figures by name; none where nip was not measured."""
    better = max if more else min
    ours = {name: figure for name, figure in figures.items() if _is_nip(name)}
    others = {name: figure for name, figure in figures.items() if not _is_nip(name)}
    if not ours:
        return
    name = better(ours, key=lambda key: ours[key])
    best = better(others, key=lambda key: others[key]) if others else None
    way = "" if len(ours) == 1 else f" ({name.removeprefix('nip').strip(' ,')})"
    yield (
        what,
        f"{figures[name]:{form}}{way}",
        NOBODY if best is None else f"{figures[best]:{form}} ({best})",
        _ahead(figures[name], best and (best, figures[best]), more=more),
    )


def _serving(part: dict[str, Any]) -> Iterator[Row]:
    for a, n in [(a, n) for a in part["adapters"] for n in part["in_flight"]]:
        figures = {}
        for name, row in part["rows"].items():
            measured = row.get("cells", {}).get(f"{a} adapters, {n} in flight")
            if measured:
                figures[name] = median(each["tokens_per_s"] for each in measured)
        models = f"{a} adapter{'s'[: a != 1]}" if a else "the base model"
        what = f"[Serving](#serving), {models}, {n} in flight: tokens/s"
        form = ",.1f" if part.get("model") != "tiny" else ",.0f"
        for row in _compared(what, figures, form):
            yield _or_even(row, _list_undecided(part, adapters=a, in_flight=n))


def _training(part: dict[str, Any]) -> Iterator[Row]:
    for key, what, form, more in (
        ("tokens_per_s", "tokens/s", ",.0f", True),
        ("whole_s", "seconds from request to adapter", ".1f", False),
    ):
        figures = {name: median(r[key] for r in rows) for name, rows in part["rows"].items()}
        undecided = {to for _, to in _list_undecided(part, of=key)}
        for row in _compared(f"[LoRA training](#lora-training): {what}", figures, form, more=more):
            yield _or_even(row, {(NIP, name) for name in undecided})


def _list_undecided(part: dict[str, Any], **at: Any) -> set[tuple[str, str]]:
    """List whose ratios of rounds are on either side of 1: rounds differ more than projects."""
    return {
        (ratio["of"], ratio["to"])
        for ratio in part.get("ratios", ())
        if all(ratio.get(key) == value for key, value in at.items())
        and ratio["low"] <= 1.0 <= ratio["high"]
    }


def _or_even(row: Row, undecided: set[tuple[str, str]]) -> Row:
    """Say "even" of a row whose two programs are a pair of `undecided`."""
    what, ours, best, _ = row
    way = ours.partition("(")[2].removesuffix(")")
    is_even = any(
        best.endswith(f"({name})") and way in ("", mine.removeprefix(NIP).strip(" ,"))
        for mine, name in undecided
    )
    return (what, ours, best, EVEN) if is_even else row


def _swap(part: dict[str, Any]) -> Iterator[Row]:
    figures = {name: median(seconds) for name, seconds in part["seconds"].items()}
    what = "[Trained weights](#from-trained-weights-to-their-first-answer): seconds to their answer"
    yield from _compared(what, figures, ".2f", more=False)


def _schedule(part: dict[str, Any]) -> Iterator[Row]:
    n = part["in_flight"][0]
    rows = {
        name: row[str(n)]
        for name, row in part["players"].items()
        if row.get(str(n)) and name != _BARE
    }
    for key, what, form, more in (
        ("ideal_by_real", "ideal / real", ".3f", True),
        ("peak_mb", "MB of memory", ",.0f", False),
    ):
        figures = {n: median(r[key] for r in rs) for n, rs in rows.items() if key in rs[0]}
        yield from _compared(
            f"[Schedule](#schedule), {n} in flight: {what}", figures, form, more=more
        )


def _kills(part: dict[str, Any]) -> Iterator[Row]:
    share = f"{part['shares'][-1]:g}"
    at = f"[Killed](#the-price-of-a-kill) at {part['shares'][-1]:.0%}:"
    rows = {name: row[share] for name, row in part["players"].items() if row.get(share)}
    most = part["in_flight"]
    again = {n: median(max(0, r["repeated"] - most) for r in row) for n, row in rows.items()}
    waited = {n: median(r["seconds_to_new_answer"] for r in row) for n, row in rows.items()}
    yield from _compared(
        f"{at} calls made again, beyond what may be in flight", again, ".0f", more=False
    )
    yield from _compared(f"{at} seconds to the next new answer", waited, ".1f", more=False)
    games = part["games"]
    kept = {n: median(r["bytes"] for r in row) / 1e3 / games for n, row in rows.items()}
    yield from _compared(f"{at} KB of files a game", kept, ",.1f", more=False)


def _resume(part: dict[str, Any]) -> Iterator[Row]:
    figures = part["resume"]
    at = f"[Killed](#a-long-run-goes-on) with {figures['finished_rollouts']:,} rollouts done:"
    most = figures["bar"]["repeated"]
    beyond = {NIP: float(max(0, figures["repeated"] - most))}
    what = f"{at} calls made again, beyond what may be in flight"
    yield from _compared(what, beyond, ".0f", more=False)
    waited = {NIP: figures["seconds_to_first_new_answer"]}
    yield from _compared(f"{at} seconds to the next new answer", waited, ".1f", more=False)


def _growth(part: dict[str, Any]) -> Iterator[Row]:
    for case in part["dataset"]["cases"][-1:]:
        what = f"[Training data](#growth) of {case['rollouts']:,} rollouts:"
        seconds = {NIP: case["nip_seconds"], "pyarrow, a copy": case["pyarrow_seconds"]}
        yield from _compared(f"{what} seconds", seconds, ".1f", more=False)
        yield from _compared(f"{what} most MB", {NIP: case["peak_rss_mb"]}, ",.0f", more=False)
    for size in part["scale"]["sizes"]:
        most = max(
            max(s["peak_mb"], s.get("peak_mb_of_a_helper", 0)) for s in size["steps"].values()
        )
        what = f"[Growth](#growth), {size['episodes']:,} episodes: most MB of a process"
        yield from _compared(what, {NIP: most}, ",.0f", more=False)


def _viewer(part: dict[str, Any]) -> Iterator[Row]:
    view = part["view"]
    at = f"[Viewer](#viewer), {view['episodes']:,} episodes: seconds of"
    yield from _compared(f"{at} the first page", {NIP: view["first_page_s"]}, ".2f", more=False)
    slowest = max(s["first_s"] for s in view["searches"].values())
    yield from _compared(f"{at} the slowest search", {NIP: slowest}, ".2f", more=False)


def _starts(part: dict[str, Any]) -> Iterator[Row]:
    rows = part["players"]
    taken = {name: median(row["seconds"]) for name, row in rows.items() if row.get("seconds")}
    first = {n: s for n, s in taken.items() if not rows[n].get("prints") and n != "nip train"}
    yield from _compared("[Start](#start): seconds to the first call", first, ".1f", more=False)
    helps = {n.removesuffix(" --help"): s for n, s in taken.items() if n.endswith("--help")}
    yield from _compared("[Start](#start): seconds of `--help`", helps, ".2f", more=False)
    for name, what in (("nip train", "`nip train` to the first call"), ("nip ls", "`nip ls`")):
        if name in taken:
            figure = {NIP: taken[name]}
            yield from _compared(f"[Start](#start): seconds of {what}", figure, ".2f", more=False)


def _weights(part: dict[str, Any]) -> Iterator[Row]:
    noticed = {name: float(r["noticed"]) for name, r in part["rows"].items() if "noticed" in r}
    of = max(row.get("of", 0) for row in part["rows"].values())
    what = f"[Wrong weights](#wrong-weights-under-the-right-name): noticed, of {of}"
    yield from _compared(what, noticed, ".0f")


_ROWS = {
    "a": _serving,
    "b": _training,
    "c": _swap,
    "d": _schedule,
    "e": _kills,
    "f": _weights,
    "g": _resume,
    "h": _growth,
    "i": _viewer,
    "j": _starts,
}
