"""Figures in words: rates, counts, rewards, times, sizes and money, for every page and command.

They are text, not yet HTML. Who shows a figure takes its words from here, so that one and the same
figure reads alike in a report, a table, a log and a terminal.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from nip_core.evaluation.split_metrics import PairedDifference, SplitMetrics

DASH = "–"
ALL_EQUAL = "all equal"
"""In the place of an interval that would have a width of 0."""
THIN = "\u202f"  # narrow no-break space, between a number and its unit


def true_minus(text: str) -> str:
    """Put the minus of typesetters before numbers, for pages; a terminal has the hyphen."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


def percent(value: float | None) -> str:
    """Write a rate as "71.3 %", a dash for None."""
    return DASH if value is None else f"{100 * value:.1f}{THIN}%"


def percent_range(interval: Sequence[float] | None) -> str:
    """Write an interval of rates as "66.0 – 76.1 %", a dash for None."""
    if interval is None:
        return DASH
    return f"{100 * interval[0]:.1f}{THIN}–{THIN}{100 * interval[1]:.1f}{THIN}%"


def percent_cell(value: float | None, interval: Sequence[float] | None = None) -> str:
    """Write a rate as "71.3 [66.0, 76.1]" for a cell of a table of percents, a dash for None."""
    if value is None:
        return DASH
    bounds = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
    return f"{100 * value:.1f}{bounds}"


def points_cell(value: float | None, interval: Sequence[float] | None = None) -> str:
    """Write a change as "+3.1 [+0.2, +6.0]" for a cell of a table of points, a dash for None."""
    if value is None:
        return DASH
    bounds = f" [{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]" if interval else ""
    return f"{100 * value:+.1f}{bounds}"


def probability(value: float | None) -> str:
    """Write a probability as "0.97", near its ends as "0.998" or "> 0.999", a dash for None."""
    if value is None:
        return DASH
    if 0.0005 <= value < 0.9995:
        return f"{value:.2f}" if 0.005 <= value < 0.995 else f"{value:.3f}"
    return f">{THIN}0.999" if value > 0.5 else f"<{THIN}0.001"


def cap_amount(cap: str, value: float) -> str:
    """Write a value of the cap "tokens" or "usd" with its unit, as "120 tokens" or "$1.50"."""
    if cap == "tokens":
        return amount(round(value), "token")
    return f"${value:.2f}" if value >= 1 else f"${value:.4g}"


def file_size(count: int) -> str:
    """Write a number of bytes as "120 B", "1.5 kB", "2.0 MB" or "3.1 GB"."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def axis_tick(value: float) -> str:
    """Write a number at an axis in four digits, as "0.25", "1.5 k" or "2 M"."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return true_minus(f"{value / size:g} {unit}")
    return true_minus(f"{value:.4g}")


def amount(count: int | None, noun: str, plural: str = "") -> str:
    """Write how many there are, as "1 episode" or "1,000 episodes"; `plural` is an irregular one.

    A dash stands for None.
    """
    digits = DASH if count is None else f"{count:,}"
    return f"{digits} {noun if count == 1 else plural or f'{noun}s'}"


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with `digits` significant digits and grouped thousands; a dash for None."""
    if value is None:
        return DASH
    if isinstance(value, int) or (math.isfinite(value) and abs(value) >= 1_000):
        return f"{round(value):,}"
    return f"{value:.{digits}g}"


def signed(value: float | None) -> str:
    """Write a reward as "+0.56", a dash for None."""
    return DASH if value is None else true_minus(f"{value:+.2f}")


def signed_range(interval: Sequence[float]) -> str:
    """Write an interval of rewards as "+0.41 – +0.56"; in words where nothing shows the spread."""
    if interval[0] == interval[1]:
        return ALL_EQUAL
    return f"{signed(interval[0])}{THIN}–{THIN}{signed(interval[1])}"


def plain_range(interval: Sequence[float]) -> str:
    """Write an interval of small numbers as "3.2 – 3.8"; in words where it has no width."""
    if interval[0] == interval[1]:
        return ALL_EQUAL
    return f"{interval[0]:.1f}{THIN}–{THIN}{interval[1]:.1f}"


def points(difference: float, is_rate: bool) -> str:
    """Write a difference of rates as "+3.1 pts", of rewards as "+0.31"."""
    return true_minus(f"{100 * difference:+.1f}{THIN}pts" if is_rate else f"{difference:+.2f}")


class GateDecision(Protocol):
    """The decision of the gate, as far as it is put into words; records have the whole of it."""

    @property
    def promoted(self) -> bool: ...
    @property
    def metric(self) -> str: ...
    @property
    def validation(self) -> float: ...
    @property
    def candidate(self) -> float: ...
    @property
    def difference(self) -> float: ...
    @property
    def ci95(self) -> tuple[float, float] | None: ...
    @property
    def problems(self) -> int: ...
    @property
    def margin(self) -> float: ...


def promotion_words(decision: GateDecision | None) -> str:
    """Say what the gate decided, as "refused: accuracy 61.0 % after 65.0 %"; a dash for None."""
    if decision is None:
        return DASH
    show = percent if decision.metric == "accuracy" else signed
    return (
        f"{'taken' if decision.promoted else 'refused'}: {decision.metric.replace('_', ' ')} "
        f"{show(decision.candidate)} after {show(decision.validation)}"
    )


def seconds(value: float | None) -> str:
    """Write a duration as "12.3 s", "4 min 05 s" or "2 h 03 min"."""
    if value is None:
        return DASH
    if value < 99.95:
        return f"{value:.1f}{THIN}s"
    whole = round(value)
    if whole < 3_600:
        return f"{whole // 60}{THIN}min {whole % 60:02d}{THIN}s"
    return f"{whole // 3_600}{THIN}h {whole % 3_600 // 60:02d}{THIN}min"


def plain_percent(value: float | None) -> str:
    """Write a rate as "71.3 %" in letters of every keyboard, a "-" for None."""
    return "-" if value is None else f"{100 * value:.1f} %"


def plain_interval(interval: Sequence[float]) -> str:
    """Write an interval of rates as "95 % interval 66.0 to 76.1 %", for every keyboard."""
    return f"95 % interval {100 * interval[0]:.1f} to {100 * interval[1]:.1f} %"


def verdict_line(test: SplitMetrics) -> str:
    """Say the metrics of a test in a line, for a terminal or a log."""
    low, high = test.accuracy_ci95 or (None, None)
    return (
        f"accuracy {plain_percent(test.accuracy)} (95 % interval {plain_percent(low)} to "
        f"{plain_percent(high)}), completeness {plain_percent(test.completeness)}, soundness "
        f"{plain_percent(test.soundness)}, {amount(test.episodes, 'episode')} on "
        f"{problems_words(test.distinct_problems, test.questions)}"
    )


def result_line(metrics: SplitMetrics, earlier: float | None) -> str:
    """Say the metrics of a split in a line: "accuracy 83.0 % [79.0, 86.4] (n=400), ...".

    `earlier` is the accuracy of the test before; None: there was none.
    """
    low, high = metrics.accuracy_ci95 or (None, None)
    interval = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    change = "" if earlier is None else f", before {plain_percent(earlier)}"
    return (
        f"accuracy {plain_percent(metrics.accuracy)}{interval} (n={metrics.episodes:,})"
        f"{change}, completeness {plain_percent(metrics.completeness)}, "
        f"soundness {plain_percent(metrics.soundness)}"
    )


def problems_words(problems: int | None, questions: int | None) -> str:
    """Say how many, as "264 problems of 33 questions", or "400 problems" without variants."""
    words = amount(problems, "problem")
    if questions is None or questions == problems:
        return words
    return f"{words} of {amount(questions, 'question')}"


def p_value(p: float | None) -> str:
    """Write a p-value as "0.031" or "< 0.0001", a dash for None."""
    if p is None:
        return DASH
    return "< 0.0001" if p < 0.0001 else f"{p:.2g}"


def how_much(paired: PairedDifference) -> str:
    """Say a difference in points, with its interval and p-value, in letters of every keyboard.

    Its ``difference`` must be known.
    """
    assert paired.difference is not None
    problems = problems_words(paired.problems, paired.questions)
    if paired.ci95 is None:
        sure = f"no interval, as there are {problems}"
    elif paired.ci95[0] == paired.ci95[1]:
        sure = f"the same on each of {problems}"
    else:
        low, high = (100 * bound for bound in paired.ci95)
        sure = f"95 % interval {low:+.1f} to {high:+.1f}, paired over {problems}"
    p = p_value(paired.p)
    test = "" if p == DASH else f"; p {p if p[0] == '<' else f'= {p}'}"
    return f"{100 * paired.difference:+.1f} points ({sure}{test})"


def group_reasons(reasons: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    """Join reasons with other numbers but the same words, as "0 to 8 examples, 10 needed".

    Each comes with the keys of the reasons that it stands for.
    """
    same: dict[tuple[str, ...], dict[int, list[str]]] = {}
    for number, reason in reasons.items():
        words = reason.split(" ")
        same.setdefault(tuple("" if w.isdecimal() else w for w in words), {})[number] = words
    return [
        (" ".join(map(_least_to_most, zip(*texts.values(), strict=True))), [*texts])
        for texts in same.values()
    ]


def _least_to_most(words: Sequence[str]) -> str:
    if len({*words}) == 1:
        return words[0]
    numbers = [int(word) for word in words]
    return f"{min(numbers)} to {max(numbers)}"


def list_spans(numbers: Sequence[int]) -> str:
    """Write ascending whole numbers as "0 to 3, 5, 7 to 8"."""
    spans: list[list[int]] = []
    for n in numbers:
        if spans and spans[-1][-1] == n - 1:
            spans[-1].append(n)
        else:
            spans.append([n])
    return ", ".join(f"{s[0]} to {s[-1]}" if len(s) > 1 else f"{s[0]}" for s in spans)


def gate_line(decision: GateDecision) -> str:
    """Say the gate's decision, and by how much, in a line: of rates in points."""
    is_rate = decision.metric == "accuracy"
    factor, form, unit = (100, "+.1f", " points") if is_rate else (1, "+.3f", "")
    interval = "no interval: one question"
    if decision.ci95 is not None:
        low, high = (format(factor * bound, form) for bound in decision.ci95)
        interval = f"95 % interval {low} to {high}"
    problems = amount(decision.problems, "validation problem")
    return (
        f"{promotion_words(decision)} on {problems} (difference "
        f"{format(factor * decision.difference, form)}{unit}, {interval}, margin "
        f"{factor * decision.margin:g}{unit})"
    )
