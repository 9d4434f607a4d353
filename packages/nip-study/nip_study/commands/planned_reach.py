"""The reach of attacks in the plan of several: how rare a kind of message they may miss."""

from collections.abc import Iterable

from nip_cli.printing.terminal import say
from nip_core.attack_figures.metrics_document import Reach
from nip_core.attack_figures.reach import reach_share

PLANNED_REACH = (
    "reach: kinds of message rarer than this may never be among those that an attack samples; a "
    "script samples none"
)
"""Stands under the plans of several attacks."""
PLANNED_TRAINING = (
    "to train: sampled once in a step that rewards nothing else, a kind of message trains nobody; "
    "rarer than this it may never train the provers"
)
"""Stands there too, where an attack trains provers by fewer examples at a time than a job takes."""


def reach_cell(reach: Reach | None) -> str:
    """Write what an attack will reach, behind its cost in a plan; "" where it samples nothing."""
    return "" if reach is None else f"  reach {reach_share(reach.rarest, reach.rarest_to_train)}"


def explain_reach(reaches: Iterable[Reach | None]) -> None:
    """Say under a plan what reach is, where an attack of it has one."""
    known_reaches = [reach for reach in reaches if reach is not None]
    if known_reaches:
        say(PLANNED_REACH)
    if any(reach.rarest_to_train is not None for reach in known_reaches):
        say(PLANNED_TRAINING)
