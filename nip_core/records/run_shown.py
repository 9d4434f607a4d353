"""The part of a run's record and settings that showing it needs."""

from collections.abc import Mapping
from dataclasses import dataclass

from nip_base.spec import base_served_name
from nip_core.attacks.course import PLATEAU
from nip_core.parameters.derived.model_names import dummy_name
from nip_core.parameters.derived.tested_iterations import scheme_tests
from nip_core.parameters.stored import complete_settings
from nip_core.records.attack_course import find_early_end
from nip_core.rollouts.plan import ATTACK
from nip_core.run_store.documents import damaged
from nip_core.run_store.run import RunRecord, RunStore


@dataclass(frozen=True)
class RunShown:
    """The part of a run's record and settings that showing it needs."""

    record: RunRecord
    last: int
    """The number of iterations, and of the last, which has nothing but a test. Of an attack that
    a verdict has ended it is the iteration of its last test."""
    tested: frozenset[int]
    """Those with a test, by the settings."""
    measured_last: tuple[str, ...]
    """The splits that are measured with the last, beside its test: an attack on another run."""
    first_models: Mapping[str, str]
    """By group, in agent order: the models that play iteration 0."""
    may_end: bool = False
    """Whether it may yet end before `last`, see `attack_course`."""


def open_shown(run: RunStore) -> RunShown:
    """The run's record and settings. Raises CorruptionError where they make no sense."""
    try:
        record = run.open()
        # Not validated: runs of all versions are shown.
        settings = complete_settings(record.parameters)
        first_models: dict[str, str] = {}
        for name, agent in settings["agents"].items():
            # A random agent has no model.
            if not agent.get("is_random"):
                name_of = dummy_name if agent["use_dummy_api"] else base_served_name
                group = agent["shared_model_group"] or name
                first_models.setdefault(group, name_of(agent["model_name"]))
        taken_over = (record.contents.get("origin") or [{}])[0]
        first_models |= {group: str(model["model"]) for group, model in taken_over.items()}
        iteration_count, text_rl = int(settings["rl"]["num_iterations"]), settings["text_rl"]
        scheme, interval = str(text_rl["test_scheme"]), int(text_rl["test_interval"])
        imitates = settings["attack"]["start_from"] is not None or "imitation" in settings
        test_iterations = [
            i
            for i in range(iteration_count + 1)
            if scheme_tests(scheme, iteration_count, i, interval, has_imitated=imitates)
        ]
        attack = settings["attack"]
        attacks = attack["run"] is not None
        may_end = attacks and attack["until"] == PLATEAU
    # Settings that lack a key, or have another kind of value in it, raise any of these: a list of
    # runs names this one by its place, and shows the others.
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged(f"{run.root}/run.json", error) from error
    early_end = find_early_end(run) if may_end else None
    last = iteration_count if early_end is None else min(iteration_count, early_end)
    return RunShown(
        record,
        last,
        frozenset(i for i in test_iterations if i <= last),
        (ATTACK,) if attacks else (),
        first_models,
        may_end=may_end and early_end is None,
    )
