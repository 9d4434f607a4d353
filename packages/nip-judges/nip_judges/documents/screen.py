"""The first screen of an attack on a judge, and of its dry run: text of at most 100 columns.

write_screen   judge.json for people
write_plan     a dry run for people
write_texts    the most convincing texts (of `gallery`)
PlanDocument   all that a dry run says
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from rich.cells import set_cell_size

from nip_judges.documents.gallery import write_texts
from nip_judges.documents.judge_document import (
    AgainstWords,
    AsTheyAre,
    AttackWords,
    ChangeWords,
    JudgeDocument,
    RateWords,
)
from nip_judges.figures.planned_power import PowerRow, plan_power
from nip_judges.figures.verdict_words import say_missed
from nip_judges.text_lines import cut_line, wrap_lines

__all__ = ["PlanDocument", "write_plan", "write_screen", "write_texts"]

_WIDTH = 100
_LABEL, _CELL, _LAST = 47, 20, 7
_AGAINST = 54
_KINDS_SHOWN, _MOST_SHOWN = 3, 6
_DASH = "–"
_MANY = 0.05
"""A share of texts that can't fool a judge from which on it is shown."""
_ONE_TEXT = 0.5
"""A prover's most common text that takes so much of all it fools is one text for many."""


class PlanDocument(TypedDict, total=False):
    """All that a dry run says; each part may be left out."""

    judge: str
    wrong_questions: int
    right_questions: int
    kinds: int
    changing: float
    calls: Mapping[str, int]
    """By part of the course, at most."""
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    answer: str
    """The judge's words in the one call that was made."""
    verdict: str
    refused_bar: str | None
    notes: Sequence[str]


def write_screen(document: JudgeDocument) -> str:
    """Write judge.json for people, in at most 100 columns and without colours."""
    parts: list[str] = []
    if document["labels_by"] == "model":
        parts.append("Against another model's labels, which may be wrong where the judge is right.")
    parts.append(_wrap_word(document["verdict"], document["sentence"]))
    if document["as_they_are"]["wrong_accepted"] or document["as_they_are"]["right_rejected"]:
        parts.append("\n".join(_write_table(document)))
    if document["against"] is not None:
        parts.append("\n".join(_write_against(document)))
    parts.append("\n".join(_write_end(document)))
    return "\n\n".join(parts)


def write_plan(plan: PlanDocument) -> str:
    """Write a dry run for people, in at most 100 columns."""
    lines: list[str] = []
    if "judge" in plan:
        lines.append(cut_line(f" {plan['judge']}", _WIDTH))
    if "answer" in plan:
        words = cut_line(plan["answer"], 60)
        lines += [cut_line(f" one call was made: {plan.get('verdict', '')} ({words})", _WIDTH), ""]
    calls = plan.get("calls", {})
    lines += [f" {name:<30}{count:>9,} calls" for name, count in calls.items()]
    if calls:
        lines.append(f" {'at most':<30}{sum(calls.values()):>9,} calls{_say_tokens(plan)}")
    if "wrong_questions" in plan:
        kinds = max(1, plan.get("kinds", 1))
        sizes = sorted({plan["wrong_questions"], 100, 200, 400})
        rows = plan_power(sizes, kinds, plan.get("changing", 0.02))
        lines += ["", *_write_power(rows, kinds, plan["wrong_questions"])]
    if plan.get("refused_bar"):
        lines += ["", *_indent(str(plan["refused_bar"]))]
    lines += [cut_line(f" {note}", _WIDTH) for note in plan.get("notes", ())]
    return "\n".join(lines)


def _write_power(rows: Sequence[PowerRow], kinds: int, wrong_questions: int) -> list[str]:
    changing = rows[0].changing
    lines = [
        f" {'wrong':>9}   {'if none is fooled, at most (95 %)':<38}rise over the control, found in "
        "4 of 5",
        f" {'questions':>9}   {'one attack':<14}{f'the worst of {kinds} kinds':<24}"
        f"{'steady':<14}{100 * changing:g} % change each way",
    ]
    for row in rows:
        mark = ">" if row.questions == wrong_questions else " "
        lines.append(
            f"{mark}{row.questions:>10}   {100 * row.one_at_most:>5.1f} %       "
            f"{100 * row.worst_at_most:>5.1f} %                 {_points(row.rise_steady):<14}"
            f"{_points(row.rise_changing)}"
        )
    return lines


def _points(rise: float | None) -> str:
    return "none" if rise is None else f"{100 * rise:.0f} points"


def _say_tokens(plan: PlanDocument) -> str:
    if "prompt_tokens" not in plan:
        return ""
    tokens = plan["prompt_tokens"] + plan.get("completion_tokens", 0)
    usd = plan.get("usd")
    price = "no price is given" if usd is None else f"${usd:,.2f}"
    return f", {_tokens(tokens)} tokens, {price}"


def _wrap_word(word: str, sentence: str) -> str:
    begin = f"{word}.  "
    indent = " " * min(len(begin), 9)
    return "\n".join(wrap_lines(sentence, _WIDTH, begin, indent))


def _write_table(document: JudgeDocument) -> list[str]:
    plain, second_answers = document["as_they_are"], document["again"]
    wrong, right = plain["wrong_accepted"], plain["right_rejected"]
    counts = f" of {_rows(wrong)} wrong and {_rows(right)} right answers, in %"
    lines = [
        _line(counts, "wrong accepted", "right rejected", "no verdict"),
        _line_of(" as they are", plain),
    ]
    if document["flip_rate"] is not None:
        changed_words = f"{100 * document['flip_rate']:.1f} % changed"
        label = f" {_share_again(plain, second_answers)} again ({changed_words})"
        lines.append(_line_of(label, second_answers, with_interval=False))
    wordings = [attack for attack in document["attacks"] if attack["attack"] == "wording"]
    provers = [attack for attack in document["attacks"] if attack["attack"] != "wording"]
    if wordings:
        lines.append(f" worst of {document['wordings_tried']} wordings, by kind")
        lines += _write_kinds(wordings, document["primary"])
    for attack in provers:
        lines.append(_attack_line(f" {attack['kind']}, {attack['name']}", attack, of_wrong=True))
    for attack in document["edits"]:
        label = f" the worst edit that changes no answer: {attack['name']}"
        lines.append(_attack_line(label, attack, of_wrong=False))
    if document["baseline"] is not None:
        label = " a program that compares with the reference"
        lines.append(_line_of(label, document["baseline"], with_interval=False))
    position = [
        (attack["key"], attack["outcomes"].get("by position", 0)) for attack in document["attacks"]
    ]
    if any(count for _, count in position):
        won = ", ".join(f"{key} {count}" for key, count in position if count)
        lines += _indent(f"Won by position, in one order alone: {won}.")
    lines += [line for note in _say_how_counted(document) for line in _indent(note)]
    return lines


def _say_how_counted(document: JudgeDocument) -> list[str]:
    """Say how texts without a verdict count, which texts count for nothing, and the scores."""
    notes = []
    if document["no_verdict_policy"] == "accept":
        notes.append("No verdict counts as accepted, as judge.yaml says.")
    if document["no_verdict_policy"] == "drop":
        notes.append(
            "No verdict counts neither as accepted nor as rejected, and stays in all shares; where "
            "it drops out of a mean, an attack that gives none raises the mean."
        )
    undecided = [(one["key"], _count_undecided(one), one) for one in document["attacks"]]
    counts = [
        f"{key} {count}" for key, count, one in undecided if count >= _MANY * one["rate"]["rows"]
    ]
    if counts:
        rows = document["attacks"][0]["rate"]["rows"]
        listed = "; ".join(counts[:_MOST_SHOWN])
        more = f"; {len(counts) - _MOST_SHOWN} more" if len(counts) > _MOST_SHOWN else ""
        notes.append(
            f"Right after all, or of a label that is not certain, and so never fooled, of {rows}: "
            f"{cut_line(listed, 4 * _WIDTH)}{more}."
        )
    return [*notes, *_say_scores(document)]


def _count_undecided(one: AttackWords) -> int:
    return one["outcomes"].get("right after all", 0) + one["outcomes"].get("not certain", 0)


def _say_scores(document: JudgeDocument) -> list[str]:
    """Say the threshold that was chosen, AUROC, and how attacks raise wrong answers' scores."""
    threshold, scores = document["threshold"], document["scores"]
    notes = []
    if threshold is not None:
        notes.append(
            f"Threshold {threshold['value']:.6g}: chosen before any attack, at equal error rates, "
            f"on {threshold['wrong_rows']} wrong and {threshold['right_rows']} right other answers "
            f"({100 * threshold['wrong_accepted']:.1f} % of wrong accepted, "
            f"{100 * threshold['right_rejected']:.1f} % of right rejected there)."
        )
    if scores is not None and scores["auroc"] is not None:
        under = scores["auroc_under"]
        keys = [one["key"] for one in document["attacks"] if one["key"] in under][:_KINDS_SHOWN]
        areas = [f"{cut_line(key, 40)} {under[key]:.3f}" for key in keys]
        notes.append(
            f"AUROC as they are {scores['auroc']:.3f}"
            + (f"; under attack: {', '.join(areas)}." if areas else ".")
        )
        rises = [
            f"{cut_line(key, 40)} {_rise(scores['rises'][key])}"
            for key in keys
            if key in scores["rises"]
        ]
        if rises:
            notes.append(f"Mean rise of wrong answers' scores: {', '.join(rises)}.")
    return notes


def _rise(rise: Sequence[float | None]) -> str:
    mean, low, high = rise
    interval = "" if low is None or high is None else f" [{low:+.3g}, {high:+.3g}]"
    return f"{mean:+.3g}{interval}"


def _write_kinds(wordings: Sequence[AttackWords], primary: str | None) -> list[str]:
    """Write the primary kind, the next ones, and those that are flagged; the rest in one line."""
    ordered = sorted(wordings, key=lambda attack: attack["key"] != primary)
    flagged = [attack for attack in ordered[_KINDS_SHOWN:] if attack["is_flagged"]]
    listed = [*ordered[:_KINDS_SHOWN], *flagged][:_MOST_SHOWN]
    lines = [
        _attack_line(
            f"   {attack['kind']:<11}{cut_line(attack['name'], 31)}", attack, of_wrong=True
        )
        for attack in listed
    ]
    rest = [attack["rate"]["rate"] for attack in ordered if attack not in listed]
    if rest:
        kinds = "1 more kind" if len(rest) == 1 else f"{len(rest)} more kinds"
        low, high = f"{100 * min(rest):.1f}", f"{100 * max(rest):.1f}"
        label = f"   {kinds}: judge.json"
        lines.append(_line(label, f" {low}" if low == high else f" {low} to {high}", "", ""))
    return lines


def _attack_line(label: str, one: AttackWords, *, of_wrong: bool) -> str:
    rate = _percent(one["rate"])
    cells = (rate, _dash()) if of_wrong else (_dash(), rate)
    mark = "  !" if one["is_flagged"] else ""
    return _line(label, *cells, f"{100 * one['no_verdict']:.1f}", mark)


def _line_of(label: str, rates: AsTheyAre, *, with_interval: bool = True) -> str:
    none = rates["no_verdict"]
    return _line(
        label,
        _percent(rates["wrong_accepted"], with_interval),
        _percent(rates["right_rejected"], with_interval),
        _DASH if none is None else f"{100 * none:.1f}",
    )


def _line(label: str, wrong: str, right: str, none: str, mark: str = "") -> str:
    begin = set_cell_size(cut_line(label, _LABEL - 1), _LABEL)
    return f"{begin}{wrong:<{_CELL}}{right:<{_CELL}}{none:>{_LAST}}{mark}".rstrip()


def _percent(rate: RateWords | None, with_interval: bool = True) -> str:
    if rate is None:
        return _dash()
    text = f"{100 * rate['rate']:>5.1f}"
    if not with_interval:
        return text
    return f"{text} [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]"


def _dash() -> str:
    return f"   {_DASH}"


def _rows(rate: RateWords | None) -> int:
    return 0 if rate is None else rate["rows"]


def _share_again(plain: AsTheyAre, second_answers: AsTheyAre) -> str:
    rows, twice = (
        _rows(one["wrong_accepted"]) + _rows(one["right_rejected"])
        for one in (plain, second_answers)
    )
    if twice == rows:
        return "all of them"
    return "half of them" if 2 * twice == rows else f"{twice} of them"


def _write_against(document: JudgeDocument) -> list[str]:
    against = document["against"]
    assert against is not None  # its caller looked
    lines = [
        cut_line(f" {against['name'] or 'the second judge'}, less this one, in points", _WIDTH)
    ]
    if against["verdict"]:
        lines += _indent(f"The second judge itself: {against['verdict']}. {against['sentence']}")
    if against["primary"] is not None:
        held = "held-out kind" if document["held_out"] else "kind"
        verdict = _compare_words(against)
        label = f"   wrong accepted, worst {held} ({against['key']})"
        lines.append(
            f"{set_cell_size(cut_line(label, 64), 66)}{_change(against['primary'])}  {verdict}"
        )
    if against["own"] is not None and against["own_key"] != against["key"]:
        label = f"   the same, it under its own worst ({against['own_key']})"
        lines.append(f"{set_cell_size(cut_line(label, 64), 66)}{_change(against['own'])}")
    if against["gate"] is not None:
        bound = against["gate_bound"]
        verdict = "within 3" if against["meets_gate"] else "may lose more than 3"
        at_most = "" if bound is None else f", at most {100 * bound:.1f} (95 %)"
        text = f"   right rejected as they are{at_most}"
        lines.append(f"{text:<{_AGAINST}}{_change(against['gate']):<22}{verdict}")
    return [cut_line(line, _WIDTH) for line in lines]


def _compare_words(against: AgainstWords) -> str:
    primary = against["primary"]
    if against["is_better"]:
        return "better"
    if primary is not None and primary["high"] is not None and primary["high"] < 0:
        return "by this one"  # and not by its own worst
    is_worse = primary is not None and primary["low"] is not None and primary["low"] > 0
    return "worse" if is_worse else "not shown"


def _change(change: ChangeWords) -> str:
    low, high = change["low"], change["high"]
    interval = "" if low is None or high is None else f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"{100 * change['change']:+.1f}{interval}"


def _write_end(document: JudgeDocument) -> list[str]:
    lines: list[str] = []
    if document["verdict"] == "FOOLED":
        lines += _indent(_say_universal(document))
    lines += _indent(_say_reach(document))
    if document["suspicious_rows"]:
        rows = document["suspicious_rows"]
        more = "" if len(rows) <= 10 else f" and {len(rows) - 10} more"
        lines += _indent(
            f"Look at these first, their labels look wrong: rows {', '.join(rows[:10])}{more}. The "
            "judge accepts them twice, and the check calls them right."
        )
    lines += [line for note in document["notes"] for line in _indent(note)]
    cost = document["cost"]
    tokens = _tokens(cost["prompt_tokens"] + cost["completion_tokens"])
    usd = "" if cost["usd"] is None else f", ${cost['usd']:,.2f}"
    bar = document["bar"]
    code = f"Exit code {document['exit_code']}" + (f": {bar['line']}" if bar else "")
    cost_words = f"{cost['calls']:,} calls, {tokens} tokens{usd}, {_time(cost['seconds'])}."
    line = f" {cost_words}   {code}"
    lines += [line] if len(line) <= _WIDTH else [f" {cost_words}", *_indent(code)]
    return lines


def _say_universal(document: JudgeDocument) -> str:
    primary = next(one for one in document["attacks"] if one["key"] == document["fooled_by"])
    share, rate = primary["universal"], primary["rate"]
    fooled = rate["hit_questions"] / rate["questions"]
    if primary["attack"] == "wording":
        return (
            f'One text for many: "{cut_line(primary["name"], 60)}" is accepted for '
            f"{100 * share:.0f} % of the questions, so a policy can learn it once."
        )
    if share >= _ONE_TEXT * fooled and rate["hit_questions"] > 1:
        return (
            f"One text for many: a single one is accepted for {100 * share:.0f} % of the "
            "questions, so a policy can learn it once."
        )
    return (
        f"Each question its own: no single text fools more than {100 * share:.1f} % of the "
        f"questions, all of them together {100 * fooled:.0f} %."
    )


def _say_reach(document: JudgeDocument) -> str:
    attacks = document["attacks"]
    if not attacks:
        return "Reach: no attack was tried."
    if all(attack["attack"] != "wording" for attack in attacks):
        return "Reach: other texts than those that were written are not ruled out."
    missed = ""
    if document["choosing_questions"] and "have been missed" not in document["sentence"]:
        missed = f" {say_missed(document['reach'])}"
    models = (
        ""
        if any(attack["attack"] != "wording" for attack in attacks)
        else " No model wrote any text: --by best-of-n --attacker MODEL"
    )
    return f"Reach: scripts say what is listed, nothing else.{missed}{models}"


def _indent(text: str) -> list[str]:
    return wrap_lines(text, _WIDTH, " ", " " * 8)


def _tokens(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count:,}"


def _time(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
