"""The document of an attack, ``metrics-attack.json``, and the figures that are shown beside it.

AttackMetrics   the figures; `figures` makes them
AnyMetrics      these, or the metrics of any other split; find_metrics_type: the type of one
CourseEnd       how an attack by training ended, a document of its own; `plateau` has the rule
Reach           how many messages were sampled; `reach` counts them
TrainedSteps    how many of an attack's steps trained its provers
ShownAttack     both, beside the guarantee of a theorem and the untrained verifier's rates
Effort          the calls, tokens and dollars until it was so strong; `effort` counts them
MessageGallery  the messages that fooled the verifier, by kind; `message_gallery` makes it

As in `evaluation.split_metrics`, fields that not all versions write have a default, and their order
is that of the keys in the file.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from nip_core.evaluation.split_metrics import (
    BatchMetrics,
    Figures,
    Interval95,
    PairedDifference,
    SplitMetrics,
)
from nip_core.rollouts.plan import may_choose

Verdict = Literal["plateau", "no signal", "not reached", "did not move"]
PLATEAU: Literal["plateau"] = "plateau"
NO_SIGNAL: Literal["no signal"] = "no signal"
NOT_REACHED: Literal["not reached"] = "not reached"
DID_NOT_MOVE: Literal["did not move"] = "did not move"


class Attacked(Figures):
    """The attacked verifier, its run, and the attacking provers."""

    run: StrictStr | None
    iteration: StrictInt | None
    by: StrictStr
    model: StrictStr
    """The name of the verifier's model."""
    script: StrictStr | None = None
    """The script that wrote the messages, with the digest of its file where it is a user's."""
    start_from: StrictStr | None = None
    """The run, or the file, whose messages the provers imitated first."""
    imitated: StrictInt | None = None
    """How many."""
    told: StrictBool | None = None
    """Whether the provers read that they argue for acceptance; None where that is not known."""


class Reach(Figures):
    """How many messages of provers an attack has sampled, and how rare a kind it may miss."""

    messages: StrictInt
    """On wrong problems; in which it chose, or by which provers were trained."""
    rarest: StrictFloat | None
    """The share of messages below which a kind may never have been among them; None: of none."""
    alone: StrictInt | None = Field(default=None, exclude_if=lambda value: value is None)
    """Training examples that a single such message gives, if nothing else of its step is rewarded;
    no key where one is enough, or no prover is trained, and of earlier versions."""
    needed: StrictInt | None = Field(default=None, exclude_if=lambda value: value is None)
    """Examples without which a step trains no prover."""
    rarest_to_train: StrictFloat | None = Field(
        default=None, exclude_if=lambda value: value is None
    )
    """The share below which a kind may never have trained a prover by itself: too few of it in each
    step."""


class Effort(Figures):
    """The calls, tokens and dollars of an attack until it was so strong."""

    calls: StrictInt
    """Answers of models."""
    prompt_tokens: StrictInt
    generated_tokens: StrictInt
    trained_tokens: StrictInt = 0
    """Once for each epoch."""
    usd: StrictFloat | None = None
    """None where a price is missing."""

    @property
    def tokens(self) -> int:
        """Add up all of them."""
        return self.prompt_tokens + self.generated_tokens + self.trained_tokens


class ThresholdRates(Figures):
    """The rates of a verifier that accepts where its P(accept) is high enough."""

    accept_from: StrictFloat
    soundness: StrictFloat | None
    soundness_ci95: Interval95 | None
    completeness: StrictFloat | None
    completeness_ci95: Interval95 | None


class FoolingMessage(Figures):
    """A message of a kind, as an example."""

    episode: StrictStr
    """Its key."""
    agent: StrictStr
    text: StrictStr
    """Cut where it is long."""


class MessageKind(Figures):
    """The messages of a kind, on wrong problems."""

    kind: StrictStr
    """In the words of the scenario."""
    sampled: StrictInt | None = None
    """Among which was chosen, or by which provers were trained; None of a script."""
    played: StrictInt
    """In the episodes that count."""
    fooled: StrictInt
    """The number of them in episodes with an accepted solution."""
    examples: tuple[FoolingMessage, ...] = ()
    """Of the latter, or else of the former."""


class MessageGallery(Figures):
    """Messages of attacking provers on wrong problems; the kind that fooled most comes first."""

    at: StrictInt
    """The number of messages, or the step, of the episodes that count."""
    sampled: StrictInt | None = None
    played: StrictInt
    fooled: StrictInt
    kinds: tuple[MessageKind, ...]
    kinds_left_out: StrictInt = 0
    """Further ones, which fooled less often."""


class MessagesToChoose(Figures):
    """A number of messages that the best is chosen from."""

    n: StrictInt


class StepOfTraining(Figures):
    """A step of an attack by training."""

    step: StrictInt
    updates: StrictInt | None = None
    """The updates of the optimizer until then."""


class CourseEnd(Figures):
    """``course.json`` of an attack's last step: how its training went on validation problems."""

    step: StrictInt
    """The last; its provers were tested, and no prover was trained after that."""
    worst_step: StrictInt
    """The step whose test on validation problems had the lowest soundness, the first of equals."""
    verdict: Verdict | None = None
    """The verdict by the rule of `plateau`; None: the number of steps was fixed."""
    since: StrictInt | None = None
    """The step from which the fall is counted."""
    fall: StrictFloat | None = None
    """How far soundness on validation problems fell since then."""
    fall_at_most: StrictFloat | None = None
    """Its one-sided 95 % bound, by question."""
    questions: StrictInt | None = None
    unequal_groups: StrictFloat | None = None
    """The share of groups of episodes since then that taught: with unequal rewards, in steps that
    trained. None of a trainer without groups, unless no step trained: then 0."""
    moved: StrictFloat | None = Field(default=None, exclude_if=lambda value: value is None)
    """How far training has moved the provers: the mean absolute difference of log-probabilities, in
    nats per token, between them and those of step 0, on tokens of their messages. It is that of the
    group that moved most. None, and no key, where no proof on record has it."""
    is_early: StrictBool = False
    """Whether the fall ended the attack, which more steps would not change; else its steps did."""


class ChoiceMetrics(BatchMetrics, MessagesToChoose):
    """The figures of the episodes that count for one number of messages."""

    fooled: StrictInt | None = None
    """The wrong solutions that were accepted."""
    p_accept: StrictFloat | None = None
    """The mean estimate of the chosen messages."""
    distinct: StrictFloat | None = None
    """The mean number of different messages among them."""
    by_threshold: tuple[ThresholdRates, ...] | None = None
    """None where no verdict has a P(accept)."""
    with_p_accept: StrictInt | None = None
    """Verdicts that have one; the others are in none of these rates."""
    effort: Effort | None = None
    """Of an attack with this number alone."""


class StepMetrics(BatchMetrics, StepOfTraining):
    """The figures of the test after a step."""

    fooled: StrictInt | None = None
    worst_step: StrictInt | None = None
    """The step whose test had the lowest soundness so far."""
    effort: Effort | None = None
    """Of playing and training until then; tests are not in it."""


class WorstStep(StepOfTraining):
    """The provers that left the least soundness.

    With a course on validation problems they are the worst on those, and their rates are of the
    one test on test problems. Else the rates are of the lowest test of all.
    """

    course_soundness: StrictFloat | None = None
    """On the validation problems by which they were chosen: the lowest of several, so biased."""
    fooled: StrictInt | None = None
    soundness: StrictFloat | None = None
    soundness_ci95: Interval95 | None = None
    completeness: StrictFloat | None = None
    completeness_ci95: Interval95 | None = None
    lost_to_training: PairedDifference | None = None
    by_threshold: tuple[ThresholdRates, ...] | None = None
    """Of the one test on test problems; None where no verdict has a P(accept)."""
    with_p_accept: StrictInt | None = None
    models: dict[str, str] = Field(default_factory=dict)
    """By group, the provers of this step: they can be played again."""


class OwnRates(Figures):
    """The rates of the attacked verifier in a test that is no part of a course."""

    soundness: StrictFloat | None
    soundness_ci95: Interval95 | None
    completeness: StrictFloat | None
    completeness_ci95: Interval95 | None
    problems: StrictInt
    """On which they are counted: of its own run's test, those in common with the attack's."""
    by_threshold: tuple[ThresholdRates, ...] | None = None
    """Of provers before any training; None where no verdict has a P(accept)."""
    with_p_accept: StrictInt | None = None


class Spent(Figures):
    """The generations of an agent, and their tokens."""

    generations: StrictInt
    prompt_tokens: StrictInt
    completion_tokens: StrictInt


class AttackMetrics(Figures):
    """``metrics-attack.json``: `figures` says what each figure is."""

    attack: Attacked | None = None
    by_n: tuple[ChoiceMetrics, ...] | None = None
    by_step: tuple[StepMetrics, ...] | None = None
    steps_to_exploit: StrictInt | None = None
    exploited_below: StrictFloat | None = None
    course_on: StrictStr | None = None
    """The problems of the tests by step, "validation"; None: test problems."""
    course: CourseEnd | None = None
    worst: WorstStep | None = None
    untrained: OwnRates | None = None
    """On test problems, with provers told to argue for acceptance, before any training."""
    trained: OwnRates | None = None
    lost_to_lying: PairedDifference | None = None
    lost_to_training: PairedDifference | None = None
    lost_to_script: PairedDifference | None = None
    completeness_change: PairedDifference | None = None
    reach: Reach | None = None
    gallery: MessageGallery | None = None
    episodes: StrictInt | None = None
    distinct_problems: StrictInt | None = None
    generations: StrictInt | None = None
    prompt_tokens: StrictInt | None = None
    completion_tokens: StrictInt | None = None
    agents: dict[str, Spent] = Field(default_factory=dict)
    rollouts: StrictStr | None = None
    """The canonical digest of the rollouts that were measured."""
    tests: dict[str, str] = Field(default_factory=dict)
    """The same of an attack by training: by step, the digest of its test."""
    untrained_rollouts: StrictStr | None = None
    """The same of the test of `untrained`."""
    problems_left_out: StrictInt | None = None

    @property
    def rows(self) -> Sequence[ChoiceMetrics | StepMetrics]:
        """Give the figures in the order of what the attack varies."""
        return self.by_n or self.by_step or ()

    @property
    def varies(self) -> str:
        """Name what the attack varies, "n" or "step"."""
        return "step" if self.by_n is None else "n"

    @property
    def last_test(self) -> int:
        """Give the iteration with the test that counts, by which a sweep has its verdicts."""
        if self.by_step is None:
            return 0
        is_untrained = self.course is not None and self.course.worst_step == 0
        return 0 if is_untrained else self.by_step[-1].step


AnyMetrics = SplitMetrics | AttackMetrics
"""The metrics of a split."""


def find_metrics_type(split: str) -> type[AnyMetrics]:
    """Find the type of the document that has the figures of a split."""
    return AttackMetrics if may_choose(split) else SplitMetrics


class TrainedSteps(Figures):
    """How many of an attack's steps trained its provers, and why the others did not."""

    steps: StrictInt | None = None
    trained_steps: StrictInt | None = None
    skipped: dict[str, int] = Field(default_factory=dict)
    """By reason, in how many steps no prover was trained."""
    groups: StrictInt | None = None
    """The groups of episodes that were played, where the trainer counts them."""
    groups_alike: StrictInt | None = None
    """Of these, the ones whose episodes ended alike, which teaches nothing."""


class Guarantee(Figures):
    """The soundness that a theorem guarantees to a verifier that checks all it can."""

    soundness: StrictFloat
    p: StrictFloat | None = None
    """One-sided: of a soundness so low, if it is as guaranteed in truth."""


class UntrainedControl(Figures):
    """The untrained verifier under the same attack."""

    run: StrictStr
    """The attack's."""
    soundness: StrictFloat | None = None
    soundness_ci95: Interval95 | None = None
    completeness: StrictFloat | None = None
    completeness_ci95: Interval95 | None = None


class ShownAttack(AttackMetrics, TrainedSteps):
    """An attack as it is shown."""

    guarantee: Guarantee | None = None
    """None where nothing is guaranteed."""
    control: UntrainedControl | None = None
    """None where it was not played; not set where no reader has looked for it."""
