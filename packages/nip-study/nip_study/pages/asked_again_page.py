"""The part of a sweep's page about verifiers alone that are asked again."""

from collections.abc import Sequence

from nip_study.documents.asked_again_document import (
    AskedAgainAt,
    AskedAgainRow,
    AskedAgainTest,
    AtEqualTokens,
    AttackedAtEqualTokens,
)
from nip_study.documents.results_document import SweepResults
from nip_study.parts.page_tables import markdown_table, write_cell

_ANY_OF = ("soundness", "completeness")
_ASKED_AGAIN = """
Rejecting where any of k plays of a problem rejects, in the first test and the last: the mean over
all choices of k plays, so without bias. Majority: the more frequent verdict of as many plays; a tie
is wrong.
"""
_AT_AS_MANY = """
Beside each arm with provers the highest k, of those that were played, that takes no more generated
tokens than its episodes (at least 1): what the verifier finds by being asked again, by itself.
"""
_UNDER_ATTACK = """
What each attack left of an arm, beside the highest k, of those that were played, that takes no more
tokens of the verifier than it generated in an episode under the attack (at least 1). What provers
say costs nothing here. Read completeness with it: any of many verdicts rejects right solutions,
too.
"""
_FEWER = """
(n fit): so many verdicts would take no more tokens, but only k were played. There the verifier
alone had fewer tokens than the arm. Any of more verdicts rejects more, wrong solutions and right
ones.
"""
_VOTES = ("majority: soundness", "majority: completeness")


def asked_again_page(results: SweepResults) -> str:
    """Write the tables of verifiers alone, asked again; "" where none was."""
    arms = [arm for arm in results.arms if arm.any_of]
    if not arms:
        return ""
    heads = ["arm", "test", "k", "generated tokens", *_ANY_OF, *_VOTES]
    rows = [
        [
            arm.name,
            _when(test),
            str(row.k),
            f"{row.generated_tokens:,.0f}",
            *_rate_cells(row),
        ]
        for arm in arms
        for test in arm.any_of
        for row in test.rows
    ]
    text = f"\n## Asked again\n{_ASKED_AGAIN}\n{markdown_table(heads, rows)}"
    compared = results.baselines.any_of
    if not compared:
        return text
    attacks = [*compared[0].attacked_rates]
    heads = ["arm", "generated tokens", "soundness", *(f"{label}: soundness" for label in attacks)]
    heads += ["asked again", "k", "generated tokens", *_ANY_OF]
    rows = []
    for pair in compared:
        tokens, of_baseline = pair.generated_tokens
        cells = [pair.arm, f"{tokens:,.0f}", write_cell(pair.soundness)]
        cells += [write_cell(pair.attacked_rates[label].soundness) for label in attacks]
        # Untrained and trained, in a line each.
        for test in pair.any_of:
            asked = _baseline_cells(pair, test, tokens, of_baseline)
            rows.append([*cells, *asked, *_rate_cells(test)[:2]])
    text = f"{text}{_AT_AS_MANY}\n{markdown_table(heads, rows)}"
    text += _attacked_part(results.baselines.under_attack)
    key = [(pair.k, *pair.verifier_tokens) for pair in results.baselines.under_attack]
    places = [*((pair.k, *pair.generated_tokens) for pair in compared), *key]
    return text + (_FEWER if any(_count_fitting(*place) > place[0] for place in places) else "")


def _attacked_part(compared: Sequence[AttackedAtEqualTokens]) -> str:
    """Write the rates under attacks beside a verifier asked again; "" without an attack."""
    if not compared:
        return ""
    heads = ["arm", "attack", "verifier's tokens", *_ANY_OF]
    heads += ["asked again", "k", "generated tokens", *_ANY_OF, *_VOTES]
    rows = []
    for pair in compared:
        tokens, of_baseline = pair.verifier_tokens
        cells = [pair.arm, pair.attack, f"{tokens:,.0f}"]
        cells += [write_cell(pair.soundness), write_cell(pair.completeness)]
        for test in pair.any_of:
            asked = _baseline_cells(pair, test, tokens, of_baseline)
            rows.append([*cells, *asked, *_rate_cells(test)])
    return f"{_UNDER_ATTACK}\n{markdown_table(heads, rows)}"


def _baseline_cells(
    pair: AtEqualTokens | AttackedAtEqualTokens,
    test: AskedAgainAt,
    tokens: float,
    of_baseline: float,
) -> list[str]:
    k = _k_cell(pair.k, tokens, of_baseline)
    return [f"{pair.baseline}, {_when(test)}", k, f"{of_baseline:,.0f}"]


def _rate_cells(row: AskedAgainRow | AskedAgainAt) -> list[str]:
    """Write both rates where any play rejects, and both of the majority."""
    rates = (row.soundness, row.completeness, row.majority_soundness, row.majority_completeness)
    return [write_cell(rate) for rate in rates]


def _k_cell(k: int, tokens: float, of_baseline: float) -> str:
    """Write k, and how many verdicts would fit where fewer were played."""
    fitting = _count_fitting(k, tokens, of_baseline)
    return f"{k} ({fitting} fit)" if fitting > k else str(k)


def _count_fitting(k: int, tokens: float, of_baseline: float) -> int:
    """Count the verdicts that take no more than `tokens`, at least `k`, which took `of_baseline`.

    Tokens are compared as `compare_at_equal_tokens` does, rounded.
    """
    if of_baseline <= 0:  # as many as one likes
        return k
    a_verdict = of_baseline / k
    # Rounding moves the last one by half a token, so it may be one less.
    max_k = int((round(tokens) + 0.5) / a_verdict)
    return max(k, max_k if round(max_k * a_verdict) <= round(tokens) else max_k - 1)


def _when(test: AskedAgainTest | AskedAgainAt) -> str:
    return "untrained" if test.iteration == 0 else f"iteration {test.iteration}"
