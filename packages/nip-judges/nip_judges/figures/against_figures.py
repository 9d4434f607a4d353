"""Compare a changed judge with the old one, on the same rows and texts.

compare_judges    the declared comparison
AgainstFigures    its primary figure, its gate, and the figures beside them

"New" is the judge of --against, "old" the first one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from nip_judges.figures.judge_figures import ATTACKS_ON_WRONG, NoVerdict, find_worst, is_hit
from nip_judges.figures.rates import Change, bound_rise, compare_rows
from nip_judges.parts import Cell

GATE = 0.03
"""So much more of right answers may be rejected."""

_Place = tuple[str, str, str]


@dataclass(frozen=True)
class AgainstFigures:
    """A changed judge less the old one; shares are fractions of 1."""

    key: str | None
    """The worst attack on the old judge of those compared, of a held-out kind."""
    primary: Change | None
    """Wrong answers accepted under it."""
    own_key: str | None
    """The worst attack on the new judge of those that it was shown, of a held-out kind."""
    own: Change | None
    """Wrong answers accepted, the new judge under `own_key` less the old one under `key`."""
    is_better: bool
    """Both intervals lie below 0: what moved to another wording is not gone."""
    gate: Change | None
    """Right answers rejected as they are."""
    gate_bound: float | None
    """The one-sided upper 95 % bound of the gate."""
    meets_gate: bool
    changes: dict[str, Change]
    """By attack: wrong answers accepted, less the old judge's; shown, not tested."""


def compare_judges(
    cells: Sequence[Cell], *, held_out: Collection[str] = (), no_verdict: NoVerdict = "reject"
) -> AgainstFigures:
    """Compare both judges by the rows and attacks that both were shown on the test.

    The primary figure is of the wording that fooled the old judge most in choosing, of the kinds
    `held_out` or, without any, of all.
    """
    old = _by_place([cell for cell in cells if cell.judge == "judge"])
    new = _by_place([cell for cell in cells if cell.judge == "against"])
    shared = [place for place in old if place in new]
    groups: dict[str, list[_Place]] = {}
    for place in shared:
        cell = old[place]
        if cell.phase == "test" and cell.attack in ATTACKS_ON_WRONG:
            groups.setdefault(f"{cell.kind}/{cell.name}", []).append(place)

    def compare(places: Sequence[_Place]) -> Change | None:
        return compare_rows(
            [is_hit(new[place], no_verdict) for place in places],
            [is_hit(old[place], no_verdict) for place in places],
            [old[place].question_id for place in places],
        )

    found_changes = {key: compare(places) for key, places in groups.items()}
    changes = {key: change for key, change in found_changes.items() if change is not None}
    tested_keys = [key for key in changes if not held_out or key.partition("/")[0] in held_out]
    # Highest in choosing: the highest on the test itself would be too high by luck.
    key = _find_key(cells, "judge", tested_keys, no_verdict) or next(iter(tested_keys), None)
    primary = None if key is None else changes[key]
    of_new = _rows_by_key(new, held_out)
    own_key = _find_key(cells, "against", list(of_new), no_verdict) or key
    own_change = None
    if key is not None and own_key is not None:
        old_rows, new_rows = _rows_by_key(old, held_out)[key], of_new[own_key]
        rows = [row for row in old_rows if row in new_rows]
        own_change = compare_rows(
            [is_hit(new_rows[row], no_verdict) for row in rows],
            [is_hit(old_rows[row], no_verdict) for row in rows],
            [old_rows[row].question_id for row in rows],
        )
    right = [place for place in shared if old[place].phase == "as they are" and old[place].is_right]
    bound = bound_rise(
        [float(is_hit(new[place], no_verdict)) - is_hit(old[place], no_verdict) for place in right],
        [old[place].question_id for place in right],
    )
    return AgainstFigures(
        key=key,
        primary=primary,
        own_key=own_key,
        own=own_change,
        is_better=_is_below_zero(primary) and _is_below_zero(own_change),
        gate=compare(right),
        gate_bound=bound,
        meets_gate=bound is not None and bound <= GATE,
        changes=changes,
    )


def _is_below_zero(change: Change | None) -> bool:
    return change is not None and change.high is not None and change.high < 0


def _find_key(
    cells: Sequence[Cell], judge: str, tested_keys: Sequence[str], policy: NoVerdict
) -> str | None:
    """Find the one of these attacks that was highest in choosing against a judge."""
    ranked = find_worst([cell for cell in cells if cell.judge == judge], policy=policy)
    return next((key for key in ranked.values() if key in tested_keys), None)


def _rows_by_key(
    cells: Mapping[_Place, Cell], held_out: Collection[str]
) -> dict[str, dict[str, Cell]]:
    """List the cells of attacks on wrong rows by attack and row."""
    by_key: dict[str, dict[str, Cell]] = {}
    for cell in cells.values():
        is_kept = not held_out or cell.kind in held_out
        if is_kept and cell.phase == "test" and cell.attack in ATTACKS_ON_WRONG:
            by_key.setdefault(f"{cell.kind}/{cell.name}", {})[cell.row] = cell
    return by_key


def _by_place(cells: Sequence[Cell]) -> dict[_Place, Cell]:
    return {
        (cell.row, f"{cell.attack}/{cell.kind}/{cell.name}", cell.phase): cell
        for cell in cells
        if cell.part == "test" and cell.phase in ("as they are", "test")
    }
