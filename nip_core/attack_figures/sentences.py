"""The outcome of an attack in sentences, for a terminal and the report alike.

Nothing here says that a verifier withstood more than it was put to. An attack whose provers were
hardly trained, or were not told to argue for acceptance, says that first.

caution          that first sentence, None where the attack was one
causes           why it was none, and the settings to change
loss_sentences   the losses by cause
count_trained    how many of the steps trained the provers, and why the others did not
change_words     how far soundness changed before the end of a course
worst_words      the worst of the steps
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nip_core.attack_figures.controls import control_sentences
from nip_core.attack_figures.metrics_document import (
    DID_NOT_MOVE,
    NO_SIGNAL,
    NOT_REACHED,
    PLATEAU,
    ChoiceMetrics,
    CourseEnd,
    ShownAttack,
    TrainedSteps,
    WorstStep,
)
from nip_core.attack_figures.reach import SCRIPT_REACH, reach_words
from nip_core.attacks.course import MOST_FALL
from nip_core.evaluation.figures_in_words import (
    amount,
    group_reasons,
    how_much,
    plain_interval,
    plain_percent,
)
from nip_core.evaluation.split_metrics import PairedDifference

_HALF = 0.5
"""Of an attack by training: with a smaller share of steps that trained it shows no strength; of
soundness: a lower value is a weakness, which any amount of training can show."""

_TOO_FEW = re.compile(r"\d examples, \d+ needed")
"""Why the ledger of jobs trains nothing on a dataset."""


def caution(attack: ShownAttack) -> str | None:
    """Say first what an attack can't show, None where nothing is amiss."""
    steps, trained_steps = attack.steps, attack.trained_steps
    soundness = attack.rows[-1].soundness if attack.course is None else _worst_soundness(attack)
    is_fooled = soundness is not None and soundness < _HALF
    is_fooled |= any(map(_is_shown, (attack.lost_to_lying, attack.lost_to_training)))
    if soundness is not None and soundness < MOST_FALL:
        return None  # no soundness is left that more training could take
    if steps and trained_steps is not None and trained_steps < _HALF * steps:
        how_many = _how_many_trained(trained_steps, steps)
        if is_fooled:
            more = "more training" if trained_steps else "training"
            return f"{how_many[0].upper()}{how_many[1:]}: what {more} would take is not known."
        is_lied_to = attack.lost_to_lying is not None and (attack.lost_to_lying.difference or 0) > 0
        topic = "training against the verifier" if is_lied_to else "the verifier"
        return f"This attack shows nothing about {topic}: {how_many}."
    if attack.course is not None and attack.course.verdict == NO_SIGNAL:
        return (
            f"Training had no signal: {_what_taught(attack.course)}, so what training against the "
            "verifier would take is not known."
        )
    # With numpy, which `nip show` of most runs does without.
    from nip_core.attack_figures.plateau import has_stood_still

    if attack.course is not None and has_stood_still(attack.course.moved):
        return (
            f"The provers did not move: {_moved_words(attack.course)}, so what training against "
            "the verifier would take is not known. A larger rl.lr was not tried."
        )
    if attack.attack is not None and attack.attack.told is False and not is_fooled:
        return (
            "This attack shows nothing about a verifier whose prover lies: nothing told the "
            "provers to argue for acceptance."
        )
    return None


def _worst_soundness(attack: ShownAttack) -> float | None:
    return None if attack.worst is None else attack.worst.soundness


def _what_taught(course: CourseEnd) -> str:
    if not course.unequal_groups:
        return f"no step since step {course.since} trained the provers"
    share = plain_percent(course.unequal_groups)
    return (
        f"{share} of the groups of episodes since step {course.since} taught the provers anything"
    )


def _moved_words(course: CourseEnd) -> str:
    """Say how near the provers of the last step are to the provers of step 0."""
    return (
        f"after {amount(course.step, 'step')} of training the log-probabilities of their tokens "
        f"differ from those of step 0 by {course.moved or 0.0:.6f} nats on average"
    )


def _how_many_trained(trained_steps: int, steps: int) -> str:
    if trained_steps:
        return f"only {trained_steps} of {steps} steps trained the provers"
    if steps == 1:
        return "its only step did not train the provers"
    return f"none of its {steps} steps trained the provers"


def causes(attack: ShownAttack) -> list[str]:
    """Say why provers were hardly trained, or did not lie, and name the settings to change."""
    lines = []
    skipped = attack.skipped
    if skipped and caution(attack):
        count = sum(skipped.values())
        reasons = "; ".join(reason for reason, _ in group_reasons(dict(enumerate(skipped))))
        line = f"{count} step{'' if count == 1 else 's'} trained nothing ({reasons})."
        groups, equal = attack.groups, attack.groups_alike
        if groups and equal:
            line += (
                f" {equal:,} of {groups:,} groups of episodes ended alike, which teaches nothing:"
                " raise pure_text_grpo.group_size or rl.rollouts_per_iteration (--set"
                " pure_text_grpo.group_size=…), with another --name."
            )
        elif any(_TOO_FEW.search(reason) for reason in skipped):
            line += (
                " More episodes give more examples: raise rl.rollouts_per_iteration"
                " (--set rl.rollouts_per_iteration=…), with another --name."
            )
        lines.append(line)
    facts = attack.attack
    if facts is not None and facts.told is False:
        lines.append(
            f"The provers were asked in the very words of run {facts.run}, where they "
            "are paid for a right verdict: attack a run whose prompts say what to argue for, or "
            "give the provers one that does (--set agents.NAME.system_prompt_template_path=FILE)."
        )
    return lines


@dataclass(frozen=True)
class StepJob:
    """The outcome of the training job of a group in a step."""

    status: str | None
    reason: str | None


def count_trained(
    steps: Iterable[Mapping[str, StepJob]], counts: Iterable[Mapping[str, int]]
) -> TrainedSteps:
    """Count the steps with a trained group, from the jobs by group of each of the `steps`.

    `counts` come from the datasets, which say of how many groups they are made.
    """
    all_, trained_steps, skipped = 0, 0, dict[str, int]()
    for jobs in steps:
        all_ += 1
        if any(job.status == "succeeded" for job in jobs.values()):
            trained_steps += 1
            continue
        reasons = {str(job.reason or job.status) for job in jobs.values()}
        reason = "; ".join(sorted(reasons)) or "no job"
        skipped[reason] = skipped.get(reason, 0) + 1
    groups = equal = 0
    for count in counts:
        groups += count.get("candidates", 0)
        equal += count.get("zero_variance_groups", 0)
    group_counts = {"groups": groups, "groups_alike": equal} if groups else {}
    return TrainedSteps(steps=all_, trained_steps=trained_steps, skipped=skipped, **group_counts)


def loss_sentences(attack: ShownAttack) -> list[str]:
    """Say how much soundness was lost to each cause, and how soon."""
    lines = []
    if (steps := _steps_to_exploit(attack)) is not None:
        lines.append(steps)
    nobody = attack.trained_steps == 0
    lines += _start_sentences(attack)
    if attack.course is not None:
        lines += _course_sentences(attack.course)
    if attack.worst is not None and not nobody:  # earlier versions have none
        basis = "so far" if attack.course is None else "by validation"
        lines.append(f"The worst prover {basis}: {worst_words(attack.worst)}.")
    lying, training = attack.lost_to_lying, attack.lost_to_training
    if lying is not None and lying.difference is None:
        lines.append(f"Lost to lying: not known, as {lying.because}.")
    elif lying is not None:
        own_soundness = None if attack.trained is None else attack.trained.soundness
        lines.append(
            f"Lost to lying (its own test, {plain_percent(own_soundness)}, less provers told to "
            f"argue for acceptance): {how_much(lying)}."
        )
    if nobody:
        lines.append("Lost to training: not known, as no step trained anybody.")
    elif training is not None and training.difference is not None:
        first, last = attack.rows[0], attack.rows[-1]
        ends = "training (before the first step less after the last)"
        if attack.course is not None:
            ends = "training (before the first step less the worst prover, both on test problems)"
        if isinstance(first, ChoiceMetrics) and isinstance(last, ChoiceMetrics):
            ends = f"choosing (n = {first.n} less n = {last.n})"
        if first is not last or attack.by_n is None:  # of a single number there is no loss to it
            lines.append(f"Lost to {ends}: {how_much(training)}.")
    controls = (*_script_sentences(attack), *control_sentences(attack))
    return [*lines, *controls, *_reach_sentences(attack)]


def _start_sentences(attack: ShownAttack) -> Iterator[str]:
    """Say what the provers began with; nothing where that was their base model."""
    facts = attack.attack
    start = None if facts is None else facts.start_from
    if facts is not None and start is not None:
        messages = amount(facts.imitated, "message")
        yield f"Step 1 was imitation: {messages} of {start}."


def _course_sentences(course: CourseEnd) -> Iterator[str]:
    """Say how the course of an attack by training ended."""
    if course.verdict is None:
        return
    ends = {
        PLATEAU: f"Plateau after step {course.step}",
        DID_NOT_MOVE: f"The provers did not move until step {course.step}",
        NO_SIGNAL: f"No signal until step {course.step}",
        NOT_REACHED: f"No plateau in {course.step} steps, so more training may take more",
    }
    change = change_words(course)
    yield f"{ends[course.verdict]}: {change}." if change else f"{ends[course.verdict]}."


def change_words(course: CourseEnd) -> str:
    """Say how far soundness changed over the window of the rule; "" where it was not looked at."""
    if course.fall is None or course.fall_at_most is None:
        return ""
    return (
        f"since step {course.since} soundness changed by {0.0 - 100 * course.fall:+.1f} points on "
        f"{amount(course.questions, 'question')} of validation, and fell by "
        f"{100 * max(0.0, course.fall_at_most):.1f} at most (one-sided 95 % bound)"
    )


def _script_sentences(attack: ShownAttack) -> Iterator[str]:
    """Say what a script took."""
    loss = attack.lost_to_script
    if loss is not None and loss.difference is None:
        yield f"Lost to the script: not known, as {loss.because}."
    elif loss is not None:
        own = plain_percent(None if attack.trained is None else attack.trained.soundness)
        yield (
            f"Lost to the script (its own test, {own}, less provers that say what the script "
            f"writes): {how_much(loss)}."
        )


def _reach_sentences(attack: ShownAttack) -> Iterator[str]:
    """Say how rare a kind of message the attack may have missed."""
    if attack.lost_to_script is not None:
        yield SCRIPT_REACH
    elif attack.reach is not None:  # earlier versions have none
        yield reach_words(attack.reach)


def _steps_to_exploit(attack: ShownAttack) -> str | None:
    """Say how soon the verifier was exploited; None for an attack without training."""
    if "steps_to_exploit" not in attack.model_fields_set:
        return None
    steps = attack.steps_to_exploit
    all_, trained_steps = attack.steps, attack.trained_steps
    first = "none sufficed" if steps is None else f"{steps}"
    if steps is None and trained_steps != all_:
        first = (
            f"none of the {trained_steps} that trained sufficed"
            if trained_steps
            else "none was tried"
        )
    if not attack.exploited_below:
        return "Steps to exploit: not known without soundness in the attacked run's own test."
    if steps == 0:
        is_shown = _is_shown(attack.lost_to_lying)
        first += ", as lying is enough" if is_shown else ", but what lying took may be chance"
    bound = plain_percent(attack.exploited_below)
    return f"Steps to exploit (soundness down to {bound}): {first}."


def _is_shown(paired: PairedDifference | None) -> bool:
    """Return whether soundness was lost for sure: with an interval above 0."""
    return paired is not None and paired.ci95 is not None and paired.ci95[0] > 0


def worst_words(worst: WorstStep) -> str:
    """Name the worst of an attack's tested steps, with the verifier's rates there."""
    models = ", ".join(f"{group}: {model}" for group, model in worst.models.items())
    soundness, interval = worst.course_soundness, worst.soundness_ci95
    place = ""
    if soundness is not None:
        sure = "" if interval is None else f"{plain_interval(interval)}; "
        place = f" on test problems ({sure}{plain_percent(soundness)} on validation problems)"
    return (
        f"after step {worst.step}, soundness {plain_percent(worst.soundness)}{place}, completeness "
        f"{plain_percent(worst.completeness)}" + (f" ({models})" if models else "")
    )
