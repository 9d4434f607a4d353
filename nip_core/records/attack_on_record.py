"""The figures of an attack on record, with how many of its steps trained its provers.

training_of    how many of the attack's steps trained its provers
shown_attack   the figures on record, with that
"""

from collections.abc import Mapping
from typing import Any

from nip_core.evaluation.attack_figures import as_now
from nip_core.evaluation.attack_words import by_training
from nip_core.records.iterations import Records
from nip_core.rollouts.plan import ATTACK


def training_of(records: Records) -> dict[str, Any]:
    """As `by_training`, of the iterations that train; {} for an attack that trains nobody."""
    steps = [record for record in records.all() if record.iteration < records.shown.last]
    if not steps:
        return {}
    counts = [of.counts or {} for record in steps for of in record.datasets.values()]
    jobs = [
        {group: {**job.model_dump(), "status": job.state} for group, job in of.items()}
        for of in (record.jobs for record in steps)
    ]
    return by_training(jobs, counts)


def shown_attack(records: Records) -> dict[str, Any] | None:
    """The figures on record, with those of `training_of`; None where there are none yet."""
    if not records.shown.attacks:
        return None
    metrics: Mapping[str, Any] | None = records.run.read_json_or_none(
        records.run.metrics(records.shown.last, ATTACK)
    )
    return None if metrics is None else {**as_now(metrics), **training_of(records)}
