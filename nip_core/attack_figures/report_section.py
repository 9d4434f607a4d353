"""The values of the report's section on an attack, by their names in its templates.

make_section         of an attack; of none they are empty
name_course_problems the problems of the tests by iteration
"""

from collections.abc import Mapping
from typing import Any

from nip_core.attack_figures.metrics_document import ShownAttack
from nip_core.attack_figures.sentences import causes, caution, loss_sentences
from nip_core.evaluation.split_metrics import Measures


def make_section(attack: ShownAttack | None) -> dict[str, Any]:
    """Compute by name the values of the tables of an attack."""
    return {
        "attack": attack,
        "caution": caution(attack) if attack else None,
        "causes": causes(attack) if attack else [],
        "attack_words": loss_sentences(attack) if attack else [],
        "attacked": (attack.varies, attack.rows) if attack else None,
        "attacked_kinds": _list_kinds(attack) if attack else [],
    }


def _list_kinds(attack: ShownAttack) -> list[tuple[str, Measures, Measures]]:
    """List by kind of mistake the figures with the fewest messages, or steps, and with the most."""
    first, last = (attack.rows[k].by_mutation for k in (0, -1))
    pairs = [
        (kind, first.get(kind, Measures()), later) for kind, later in last.items() if kind != "none"
    ]
    return [
        (kind, earlier, later)
        for kind, earlier, later in pairs
        if earlier.soundness is not None or later.soundness is not None
    ]


def name_course_problems(parameters: Mapping[str, Any]) -> str:
    """Name the problems of the tests by iteration: an attack by training has its course apart."""
    attack = parameters.get("attack") or {}
    is_course = attack.get("run") is not None and attack.get("course_on") == "validation"
    return "validation" if is_course else "test"
