"""The plan of several runs, as `nip sweep` and `nip harden` print it with ``--dry-run``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nip_cli.printing.plans_and_runs import print_json, reach_entry
from nip_cli.printing.terminal import say
from nip_core.attack_figures.reach import reach_share
from nip_core.evaluation.figures_in_words import amount

if TYPE_CHECKING:
    from nip_core.attack_figures.metrics_document import Reach
    from nip_core.costs.estimate import Estimate
    from nip_core.parameters import HyperParameters

PLANNED_REACH = (
    "reach: kinds of message rarer than this may never be among those that an attack samples; a "
    "script samples none"
)
PLANNED_TRAINING = (
    "to train: sampled once in a step that rewards nothing else, a kind of message trains nobody; "
    "rarer than this it may never train the provers"
)


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
        cost = ("cost unknown" if usd is None else f"${usd:,.2f}") + _reach_cell(reach)
        verb = f"{line.verb:<7}  " if line.verb else ""
        say(f"{line.name:<{width}}  {verb}{calls:>11,} calls  {cost}{line.note}")
    prices = [line.estimate.usd for line in lines if line.estimate.usd is not None]
    total = f"${sum(prices):,.2f}" if len(prices) == len(lines) else "cost unknown"
    calls = sum(line.estimate.calls for line in lines)
    say(f"{amount(len(lines), 'run')}, at most {amount(calls, 'call')}, {total}; none started")
    _explain_reach(reaches)


def _reach_cell(reach: "Reach | None") -> str:
    """Write what an attack will reach, behind its cost in a plan; "" where it samples nothing."""
    return "" if reach is None else f"  reach {reach_share(reach.rarest, reach.rarest_to_train)}"


def _explain_reach(reaches: "Iterable[Reach | None]") -> None:
    """Say under a plan what reach is, where an attack of it has one."""
    known_reaches = [reach for reach in reaches if reach is not None]
    if known_reaches:
        say(PLANNED_REACH)
    if any(reach.rarest_to_train is not None for reach in known_reaches):
        say(PLANNED_TRAINING)
