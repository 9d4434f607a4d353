"""The screen of a hardening, and of its dry run: text of at most 100 columns.

write_harden_screen  harden.json for people
write_harden_plan    a dry run for people
"""

from collections.abc import Mapping
from typing import Any

from rich.cells import set_cell_size

from nip_judges.documents.judge_document import ChangeWords, RateWords
from nip_judges.harden.hardening_figures import HardenDocument, RoundWords
from nip_judges.text_lines import cut_line, wrap_lines

_WIDTH = 100
_LABEL, _CELL = 34, 21
_DASH = "–"


def write_harden_screen(document: HardenDocument) -> str:
    """Write harden.json for people, in at most 100 columns and without colours."""
    begin = f"{document['verdict']}.  "
    parts = ["\n".join(wrap_lines(document["sentence"], _WIDTH, begin, " " * 9))]
    if document["rounds"]:
        parts.append("\n".join(_write_round(one) for one in document["rounds"]))
    if document["attacks"]:
        parts.append("\n".join(_write_table(document)))
    parts.append("\n".join(_write_end(document)))
    return "\n\n".join(parts)


def write_harden_plan(plan: Mapping[str, Any]) -> str:
    """Write a dry run for people, in at most 100 columns."""
    job, calls = plan["job"], plan["calls"]
    settings = ", ".join(f"{name} {job[name]}" for name in job if name not in ("provider", "model"))
    answers = " or ".join(plan["answers"])
    lines = [
        cut_line(f" {plan['judge']}", _WIDTH),
        *_indent(f"attacked in rounds by {', '.join(plan['shown'])}"),
        *_indent(f"held out for the last test: {', '.join(plan['held_out'])}"),
        *(f" {name:<30}{count:>9,} calls" for name, count in calls.items()),
        f" {'at most':<30}{sum(calls.values()):>9,} calls",
        *_indent(
            f"{plan['gold']} gold verdicts to imitate in each round, half of them accept: {answers}"
        ),
        *_indent("beside them the texts that fooled the judge, with as many right ones"),
        *_indent(f"{plan['jobs']} jobs at {job['provider']}, from {job['model']}: {settings}"),
        *_indent(plan["folder"]),
        *(line for note in plan["notes"] for line in _indent(note)),
    ]
    return "\n".join(lines)


def _write_round(words: RoundWords) -> str:
    line = (
        f" round {words['number']}: {words['fooled']} of {words['texts']} texts fooled "
        f"{words['attacked_model']}; {words['examples']} examples -> {words['model']}"
    )
    return "\n".join(wrap_lines(line.strip(), _WIDTH, " ", " " * 8))


def _write_table(document: HardenDocument) -> list[str]:
    old, new = document["old"]["as_they_are"], document["new"]["as_they_are"]
    wrong, right = old["wrong_accepted"], old["right_rejected"]
    counts = f" {_rows(wrong)} wrong, {_rows(right)} right, in %"
    lines = [
        _line(counts, "first judge", "trained judge", "change, in points"),
        _line(
            " wrong accepted, as they are",
            _percent(wrong),
            _percent(new["wrong_accepted"]),
            _plain_change(wrong, new["wrong_accepted"]),
        ),
        _line(
            " right rejected, as they are",
            _percent(right),
            _percent(new["right_rejected"]),
            _points(document["gate"]),
        ),
    ]
    half: bool | None = None
    for attack in document["attacks"]:
        if attack["is_held_out"] is not half:
            half = attack["is_held_out"]
            lines.append(
                " wrong accepted, held-out kinds" if half else " wrong accepted, shown kinds"
            )
        marks = "*" if attack["key"] == document["primary"] else " "
        marks += "*" if attack["key"] == document["own_worst"] else " "
        kind, _, name = attack["key"].partition("/")
        label = f" {marks}{kind:<10} {name}"
        lines.append(
            _line(
                label, _percent(attack["old"]), _percent(attack["new"]), _points(attack["change"])
            )
        )
    return lines


def _write_end(document: HardenDocument) -> list[str]:
    lines: list[str] = []
    if document["attacks"]:
        flips = [document[judge]["flip_rate"] for judge in ("old", "new")]
        shares = " and ".join("–" if one is None else f"{100 * one:.1f} %" for one in flips)
        bound = document["gate_bound"]
        met = "met" if document["meets_gate"] else "not met"
        at_most = "" if bound is None else f": at most {100 * bound:+.1f} points (95 %)"
        lines += _indent(
            "* the worst held-out wording on other questions: left of the first judge, right of "
            "the trained one. The gate, right rejected by at most 3 "
            f"points more, is {met}{at_most}. Asked again, {shares} of verdicts changed."
        )
    if document["tries"] > 1:
        lines += _indent(
            f"Hardening {document['tries']} on these rows: the best of several is too good by luck."
        )
    if document["model"] is not None:
        lines += _indent(f"The trained judge: --set judge.model_name={document['model']}")
    lines += [line for note in document["notes"] for line in _indent(note)]
    cost = document["cost"]
    tokens = cost["prompt_tokens"] + cost["completion_tokens"]
    usd = "" if cost["usd"] is None else f", ${cost['usd']:,.2f} without training"
    lines.append(f" {cost['calls']:,} calls, {tokens:,} tokens{usd}, {cost['seconds']:,.0f} s.")
    return lines


def _line(label: str, old: str, new: str, change: str) -> str:
    cells = f"{old:<{_CELL}}{new:<{_CELL}}{change}".rstrip()
    return f"{set_cell_size(cut_line(label, _LABEL - 1), _LABEL)}{cells}"


def _rows(rate: RateWords | None) -> int:
    return 0 if rate is None else rate["rows"]


def _percent(rate: RateWords | None) -> str:
    if rate is None:
        return f"   {_DASH}"
    return f"{100 * rate['rate']:>5.1f} [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]"


def _plain_change(old: RateWords | None, new: RateWords | None) -> str:
    return "" if old is None or new is None else f"{100 * (new['rate'] - old['rate']):+.1f}"


def _points(change: ChangeWords | None) -> str:
    if change is None:
        return _DASH
    low, high = change["low"], change["high"]
    interval = "" if low is None or high is None else f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"{100 * change['change']:+.1f}{interval}"


def _indent(text: str) -> list[str]:
    return wrap_lines(text, _WIDTH, " ", " " * 8)
