"""The page of a sweep of judges, README.md, from its results alone.

write_page   results -> Markdown
write_claims the declared claims and gates as lines, for a screen
"""

import re
from collections.abc import Iterable, Sequence

from nip_core.evaluation.figures_in_words import (
    DASH,
    amount,
    p_value,
    percent_cell,
    points_cell,
    true_minus,
)
from nip_core.redaction import printable
from nip_judges.documents.judge_document import ChangeWords, RateWords
from nip_judges.sweeps.sweep_documents import (
    KeyedRate,
    SweepResults,
    SweptChange,
    TestedClaim,
    TestedGate,
)

_FIGURES = {
    "wrong_accepted": "wrong accepted, as they are",
    "wrong_accepted_worst": "wrong accepted, worst wording on the other judge",
    "wrong_accepted_worst_own": "wrong accepted, each under its own worst wording",
    "wrong_accepted_held_out": "wrong accepted, worst held-out wording on the other judge",
    "wrong_accepted_held_out_own": "wrong accepted, each under its own worst held-out wording",
    "right_rejected": "right rejected, as they are",
}


def write_page(results: SweepResults) -> str:
    """Write the page."""
    parts = [f"# {results['sweep']}", *_write_state(results)]
    if results["claims"] or results["gates"]:
        parts += ["## Declared", *_write_declared(results)]
    parts += ["## Judges", _write_judges(results)]
    parts += [
        "## Judges and attacks",
        "Wrong answers accepted, in percent, over all seeds: each judge under the wording of the "
        "kind that fooled itself most in choosing.",
        _write_kinds(results),
    ]
    if results["ways"]:
        parts += [
            "Texts that a model wrote against each judge, in percent accepted, of the largest n or "
            "of the trained attacker. Shown, not tested: another attacker would write others.",
            _write_ways(results),
        ]
    baseline = results["judges"][0]["judge"]
    parts += [
        "## Differences",
        f"Not declared: which row matters was not said beforehand. In points, less {baseline} "
        "unless it says otherwise; 95 % intervals by question, all seeds of a question together. "
        "The wording is chosen anew in each seed, on questions that are not in its test; how far "
        "the seeds differ stands beside. p after Holm, for the whole table. Two judges under their "
        "own wordings have no interval: each choice is chance of its own, for all questions.",
        _write_differences(results["differences"]),
        "## Cost",
        _write_cost(results),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def write_claims(results: SweepResults) -> list[str]:
    """Write the declared claims and gates, a line each."""
    lines = [
        f"{'shown' if one['is_shown'] else 'not shown'}: {_say_claim(one)}: "
        f"{_points(one['change'])}, p (Holm) {p_value(one['p_holm'])}"
        for one in results["claims"]
    ]
    return lines + [
        f"{'met' if one['is_met'] else 'not met'}: {_say_gate(one)}: {_points(one['change'])}, "
        f"at most {_bound(one)}"
        for one in results["gates"]
    ]


def _write_state(results: SweepResults) -> list[str]:
    held_out = results["held_out"]
    if results["declaration"] is None:
        state = "Nothing was declared before the first attack, so no claim is tested."
    else:
        state = f"Declared at {results['declared_at']} as {results['declaration'][:16]}."
    lines = [state]
    if results["earlier"]:
        names = ", ".join(results["earlier"])
        lines.append(
            f"Try {results['tries']} on these rows in this store; before it: {names}. Who looks "
            "and tries again finds something by luck in the end."
        )
    else:
        lines.append("The first try on these rows in this store.")
    if held_out:
        lines.append(f"Kinds held out: {', '.join(held_out)}.")
    listed = [f"- Departure: {_line(one)}." for one in results["departures"]]
    listed += [
        f"- Not finished: {name}: {_line(reason)}"
        for name, reason in sorted(results["failures"].items())
    ]
    return [" ".join(lines), *(["\n".join(listed)] if listed else [])]


def _write_declared(results: SweepResults) -> list[str]:
    tables = []
    if results["claims"]:
        rows = [
            (
                _say_claim(test),
                _points(test["change"]),
                p_value(test["p"]),
                p_value(test["p_holm"]),
                {None: DASH, True: "met", False: "not met"}[test["meets_gates"]],
                "**yes**" if test["is_shown"] else "no",
            )
            for test in results["claims"]
        ]
        tables += [
            _table(("claim", "points", "p with its gates", "p (Holm)", "gates", "shown"), rows),
            "A claim is shown if its whole interval lies on the side that was declared, its gates "
            "are met, and p is below 0.05 after Holm over all claims. Of a claim and its gates all "
            "must hold, so the largest of their p-values counts.",
        ]
    if results["gates"]:
        gates = [
            (
                _say_gate(test),
                _points(test["change"]),
                _bound(test),
                "yes" if test["is_met"] else "no",
            )
            for test in results["gates"]
        ]
        tables.append(_table(("gate", "points", "at most (95 %)", "met"), gates))
    return tables


def _write_judges(results: SweepResults) -> str:
    heads = ["judge", "seed", "first word", "wrong accepted, as they are", "worst wording"]
    heads += ["worst held-out wording"] if results["held_out"] else []
    heads += ["right rejected, as they are", "no verdict"]
    rows = []
    for judge in results["judges"]:
        for of_seed in judge["seeds"]:
            worst = [_keyed(of_seed["worst"])] + (
                [_keyed(of_seed["held_out"])] if results["held_out"] else []
            )
            rows.append(
                (
                    f"{judge['judge']} ({judge['label']})",
                    str(of_seed["seed"]),
                    of_seed["verdict"],
                    _percent(of_seed["wrong_accepted"]),
                    *worst,
                    _percent(of_seed["right_rejected"]),
                    percent_cell(of_seed["no_verdict"]),
                )
            )
    return _table(heads, rows)


def _write_kinds(results: SweepResults) -> str:
    names = [judge["judge"] for judge in results["judges"]]
    rows = [
        (
            of_kind["kind"] + (" (held out)" if of_kind["is_held_out"] else ""),
            *(_percent(of_kind["rates"].get(name)) for name in names),
        )
        for of_kind in results["kinds"]
    ]
    return _table(("kind", *names), rows)


def _write_ways(results: SweepResults) -> str:
    rows = [
        (
            of_judge["way"],
            of_judge["judge"],
            _percent(of_judge["rate"]),
            ", ".join(percent_cell(seed["rate"]["rate"]) for seed in of_judge["seeds"]) or DASH,
            "; ".join(dict.fromkeys(seed["key"] for seed in of_judge["seeds"])) or DASH,
        )
        for of_judge in results["ways"]
    ]
    return _table(("attack", "judge", "wrong accepted", "by seed", "texts"), rows)


def _write_differences(differences: Sequence[SweptChange]) -> str:
    heads = ("judges", "figure", "points", "p (Holm)", "by seed", "wordings", "questions")
    return _table(heads, map(_write_difference, differences))


def _write_difference(difference: SweptChange) -> tuple[str, ...]:
    change = difference["change"]
    return (
        f"{difference['judge']} less {difference['against']}",
        _FIGURES[difference["figure"]],
        points_cell(difference["mean"]) if change is None else _points(change),
        DASH if change is None else p_value(change["p_holm"]),
        ", ".join(points_cell(seed["change"]) for seed in difference["seeds"]) or DASH,
        "; ".join(dict.fromkeys(seed["key"] for seed in difference["seeds"] if seed["key"]))
        or DASH,
        DASH if change is None else f"{change['questions']:,}",
    )


def _write_cost(results: SweepResults) -> str:
    cost = results["cost"]
    tokens = cost["prompt_tokens"] + cost["completion_tokens"]
    usd = "" if cost["usd"] is None or not tokens else f", ${cost['usd']:,.2f}"
    return f"{amount(cost['calls'], 'call')}, {amount(tokens, 'token')}{usd}."


def _say_claim(one: TestedClaim) -> str:
    return f"{one['judge']} {one['direction']} {one['against']}: {_FIGURES[one['figure']]}"


def _say_gate(one: TestedGate) -> str:
    figure = _FIGURES[one["figure"]]
    return f"{one['judge']} less {one['against']}: {figure}, {100 * one['margin']:g} points at most"


def _bound(one: TestedGate) -> str:
    return DASH if one["bound"] is None else points_cell(one["bound"])


def _points(change: ChangeWords | None) -> str:
    if change is None:
        return DASH
    low, high = change["low"], change["high"]
    return points_cell(change["change"], None if low is None or high is None else (low, high))


def _percent(rate: RateWords | None) -> str:
    return DASH if rate is None else percent_cell(rate["rate"], (rate["low"], rate["high"]))


def _keyed(rate: KeyedRate | None) -> str:
    return DASH if rate is None else f"{_percent(rate['rate'])} {rate['key']}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([_row(heads), "|---" * len(heads) + "|", *map(_row, rows)])


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_line(cell).replace("|", "\\|") for cell in cells) + " |"


def _line(text: str) -> str:
    """Write a text in one line; names of wordings are texts of users, too."""
    return true_minus(re.sub(r"<(?=[A-Za-z/!?])", "&lt;", printable(" ".join(text.split()))))
