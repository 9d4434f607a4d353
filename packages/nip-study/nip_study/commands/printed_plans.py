"""The plan of several runs, as `nip sweep` and `nip harden` print it with ``--dry-run``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nip_cli.printing.plans_and_runs import print_json, reach_entry
from nip_cli.printing.terminal import say
from nip_core.evaluation.figures_in_words import amount
from nip_study.commands.planned_reach import explain_reach, reach_cell

if TYPE_CHECKING:
    from nip_core.costs.estimate import Estimate
    from nip_core.parameters import HyperParameters


@dataclass(frozen=True)
class PlannedLine:
    """A run that is planned, with its estimate."""

    name: str
    parameters: "HyperParameters"
    estimate: "Estimate"
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For programs."""
    verb: str = ""
    note: str = ""


def show_planned(lines: Sequence[PlannedLine], as_json: bool) -> None:
    """Print the runs with their calls, cost and reach, and the sums."""
    from nip_core.session.attacked_run import plan_reach

    reaches = [plan_reach(line.parameters) for line in lines]
    if as_json:
        print_json(
            [
                {
                    **{"run": line.name, **line.facts, "calls": line.estimate.calls},
                    **{"usd": line.estimate.usd, **reach_entry(reach)},
                }
                for line, reach in zip(lines, reaches, strict=True)
            ]
        )
        return
    width = max(len(line.name) for line in lines)
    for line, reach in zip(lines, reaches, strict=True):
        usd, calls = line.estimate.usd, line.estimate.calls
        cost = "cost unknown" if usd is None else f"${usd:,.2f}"
        verb = f"{line.verb:<7}  " if line.verb else ""
        say(f"{line.name:<{width}}  {verb}{calls:>11,} calls  {cost}{reach_cell(reach)}{line.note}")
    prices = [line.estimate.usd for line in lines if line.estimate.usd is not None]
    total = f"${sum(prices):,.2f}" if len(prices) == len(lines) else "cost unknown"
    calls = sum(line.estimate.calls for line in lines)
    say(f"{amount(len(lines), 'run')}, at most {amount(calls, 'call')}, {total}; none started")
    explain_reach(reaches)
