"""The figures of an attack on record, with how many of its steps trained its provers."""

from nip_core.attack_figures.metrics_document import AttackMetrics, ShownAttack, TrainedSteps
from nip_core.attack_figures.sentences import StepJob, count_trained
from nip_core.records.iterations import Records


def count_attack_training(records: Records) -> TrainedSteps | None:
    """Count the steps with a trained prover; None for an attack without training."""
    # The last iteration has nothing but a test, so there is no step in it.
    steps = [record for record in records.all() if record.iteration < records.shown.last]
    if not steps:
        return None
    datasets = [dataset for record in steps for dataset in record.datasets.values()]
    # Imitated chats were played in other runs, and come in no groups.
    counts = [dataset.counts or {} for dataset in datasets if dataset.method != "supervised"]
    jobs = [
        {group: StepJob(job.state, job.reason) for group, job in record.jobs.items()}
        for record in steps
    ]
    return count_trained(jobs, counts)


def with_training(metrics: AttackMetrics, steps: TrainedSteps | None) -> ShownAttack:
    """Put the figures of an attack and the count of its steps side by side."""
    counts = {} if steps is None else steps.as_json()
    return ShownAttack.model_validate({**metrics.as_json(), **counts})


def read_shown_attack(records: Records) -> ShownAttack | None:
    """Read the figures on record, with `count_attack_training`; None where there are none yet."""
    metrics = records.of(records.shown.last).attack if records.shown.measured_last else None
    return None if metrics is None else with_training(metrics, count_attack_training(records))
