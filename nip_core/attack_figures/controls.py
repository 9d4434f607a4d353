"""The numbers that an attack's soundness is read beside: a theorem's, and the untrained verifier's.

Without the untrained verifier under the same attack no reader can tell the work of training: a fall
may be the base model's own.
"""

from collections.abc import Iterator

from nip_core.attack_figures.metrics_document import (
    ChoiceMetrics,
    Guarantee,
    ShownAttack,
    StepMetrics,
    UntrainedControl,
    WorstStep,
)
from nip_core.evaluation.figures_in_words import p_value, plain_interval, plain_percent

NO_CONTROL = "No untrained control"
"""Begins what stands in the place of the untrained verifier's figures."""
_LEVEL = 0.05


def last_rates(attack: ShownAttack) -> ChoiceMetrics | StepMetrics | WorstStep | None:
    """Return the rates that count: with the largest n, the script, or the worst provers."""
    if attack.worst is not None:
        return attack.worst
    return attack.rows[-1] if attack.rows else None


def measure_guarantee(attack: ShownAttack, number: float) -> Guarantee:
    """Put the soundness that counts beside a guaranteed one; `p` is for a lower one."""
    # With numpy, which `nip show` of most runs does without.
    from nip_core.evaluation.statistics.guaranteed import count_trials, p_below

    rates = last_rates(attack)
    # Nothing is lower than 0.
    if not number or rates is None or rates.soundness is None or rates.soundness_ci95 is None:
        return Guarantee(soundness=number)
    trials = count_trials(rates.soundness, rates.soundness_ci95)
    return Guarantee(soundness=number, p=p_below(rates.soundness, trials, number))


def take_control(run: str, attack: ShownAttack) -> UntrainedControl:
    """Take the rates that count from an attack on the untrained verifier, which is the `run`."""
    rates = last_rates(attack)
    names = ("soundness", "soundness_ci95", "completeness", "completeness_ci95")
    return UntrainedControl(run=run, **{name: getattr(rates, name, None) for name in names})


def control_sentences(attack: ShownAttack) -> Iterator[str]:
    """Name the guarantee of a theorem and the untrained verifier's rates; nothing if not seen."""
    if attack.guarantee is not None:
        yield _guarantee_sentence(attack, attack.guarantee)
    # An attack on the untrained models is the control itself, and has none.
    if "control" not in attack.model_fields_set:
        return
    if (control := attack.control) is None:
        yield (
            f"{NO_CONTROL}: whether training made this better or worse can't be told. The same "
            "attack with --iteration 0 plays it."
        )
        return
    sure = control.soundness_ci95
    yield (
        f"The untrained verifier under the same attack ({control.run}): soundness "
        f"{plain_percent(control.soundness)}{f' ({plain_interval(sure)})' if sure else ''}, "
        f"completeness {plain_percent(control.completeness)}."
    )


def _guarantee_sentence(attack: ShownAttack, guarantee: Guarantee) -> str:
    rates = last_rates(attack)
    number = plain_percent(guarantee.soundness)
    text = f"Guaranteed to a verifier that checks all it can, against any prover: {number}"
    if guarantee.p is None or rates is None:
        return f"{text}."
    verdict = "below that" if guarantee.p <= _LEVEL else "not below that beyond chance"
    p = p_value(guarantee.p)
    return (
        f"{text}. This one keeps {plain_percent(rates.soundness)}: {verdict} (one-sided p "
        f"{p if p.startswith('<') else f'= {p}'})."
    )
