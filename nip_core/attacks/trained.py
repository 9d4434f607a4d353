"""An attack by training: provers that begin with their base model learn to fool the verifier."""

from collections.abc import Mapping
from typing import Any, ClassVar

from nip_core.attacks.base import Attack, AttackingRun, AttackLoad, AttackPlan, NoOptions
from nip_core.attacks.course import (
    LEAST_STEPS,
    MOST_STEPS,
    PLATEAU,
    ROLLOUTS,
    STEPS,
    TEST,
    USUAL_STEPS,
    VALIDATION,
)


class Trained(Attack):
    """Provers are trained step by step, and the worst by validation are tested."""

    name = "sneaky"
    Options = NoOptions
    own_settings: ClassVar[tuple[str, ...]] = ("course_on", "until", "start_from")
    command_options: ClassVar[tuple[str, ...]] = ("steps", "every", "until", "start_from")
    trains = True

    def check(self) -> None:
        """Refuse a plateau on the problems of the last test."""
        if self.settings.until == PLATEAU and self.settings.course_on == TEST:
            raise ValueError(
                "until: plateau looks at tests again and again, so they have to be on validation "
                "problems; set course_on: validation"
            )

    def check_run(self, run: AttackingRun) -> None:
        """Refuse a course with tests that can't choose the worst provers, or end it."""
        attack, scheme = self.settings, run.text_rl.test_scheme
        if attack.course_on != VALIDATION:
            return
        if run.test_dataset_split == attack.course_on:
            raise ValueError(
                "attack.course_on: tests are held on validation problems (test_dataset_split), so "
                "none are left for the provers that were the worst on these; set "
                "attack.course_on: test"
            )
        if scheme == "none" or (attack.until == PLATEAU and scheme != "all"):
            raise ValueError(
                f"text_rl.test_scheme: the tests of an attack say which provers are the worst, and "
                f"when it ends (got {scheme!r}); use all"
            )
        if attack.until == PLATEAU and (steps := run.rl.num_iterations) < LEAST_STEPS:
            raise ValueError(
                f"attack.until: a plateau is looked for from step {LEAST_STEPS} on, and there are "
                f"at most {steps} (rl.num_iterations); give --steps {LEAST_STEPS} or more, or "
                f"until: {STEPS}"
            )

    @classmethod
    def plan(
        cls, settings: Mapping[str, Any], test_split: str, steps: int | None, every: int
    ) -> AttackPlan:
        """Plan training by policy gradient, on wrong solutions alone."""
        usual_steps = MOST_STEPS if settings.get("until") == PLATEAU else USUAL_STEPS
        # An imitation is a step of its own, before them.
        imitates = settings.get("start_from") is not None
        return AttackPlan(
            run={
                "trainer": "pure_text_grpo",
                "rl": {
                    "num_iterations": (steps or usual_steps) + imitates,
                    "rollouts_per_iteration": ROLLOUTS,
                    "frames_per_batch": None,
                    "num_epochs": 1,
                },
                "text_rl": {"test_scheme": "all", "test_interval": every},
                # Where the solution is right a prover that argues for it deceives no verifier.
                "dataset_options": {"labels": [0]},
            },
            provers={
                "freeze_agent": False,
                "fine_tune_from_scratch": False,
                "update_schedule": "ConstantUpdateSchedule",
                **dict.fromkeys(("temperature", "top_p", "repetition_penalty")),
            },
            # A method that is developed has its tests on validation problems, and none are left.
            attack={"course_on": VALIDATION if test_split == TEST else TEST},
            # So that the verifier keeps its weights.
            has_own_group=True,
        )

    def load(self, turns: int) -> AttackLoad:
        """Count the games of its own tests, which are played as they are."""
        return AttackLoad(1, 1)

    def describe(self) -> str:
        """Say who attacks."""
        return "provers that are trained against it"
