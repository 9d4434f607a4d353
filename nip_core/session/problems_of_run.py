"""The problems of every split of a run, as its settings choose them."""

from collections.abc import Mapping, Sequence

from nip_core.attack_figures.plateau import fewest_questions
from nip_core.errors import DatasetError
from nip_core.evaluation.spread import shared_text
from nip_core.parameters import HyperParameters
from nip_core.rollouts.plan import SPLITS, TEST, VALIDATION, plan_episodes, shuffle_labels
from nip_core.scenarios import Problem, make_scenario
from nip_core.scenarios.datasets import check_splits, load_problems


def load_all_problems(parameters: HyperParameters) -> dict[str, list[Problem]]:
    """The problems of every split, checked. Raises DatasetError."""
    options, scenario = parameters.dataset_options, make_scenario(parameters)
    gate = parameters.promotion
    sizes = {
        "train": options.max_train_size,
        "validation": options.max_validation_size,
        "test": options.max_test_size,
    }
    if gate.enabled and gate.episodes is not None:
        sizes["validation"] = min(gate.episodes, sizes["validation"] or gate.episodes)
    problems = {}
    for split in SPLITS:
        # `nip evaluate` may test any run, also one that is told to hold no tests.
        is_played = split in ("train", parameters.test_dataset_split)
        is_course = split == "validation" and parameters.tests_apart
        is_played |= is_course or (split == "validation" and gate.enabled)
        problems[split] = load_problems(
            scenario,
            parameters.dataset,
            split,
            max_size=sizes[split],
            shuffle_seed=options.reduce_shuffle_seed,
            # A split that is not played may be as unbalanced as it likes.
            make_balanced=options.make_balanced and is_played,
            # An attack has a longer message for an empty split.
            may_be_empty=not is_played or (is_course and not gate.enabled),
        )
    check_splits(problems, scenario.split_by)
    if options.labels is not None:
        problems["train"] = [p for p in problems["train"] if p.y in options.labels]
        if not problems["train"]:
            raise DatasetError(
                f"dataset_options.labels: {parameters.dataset} has no training problem with one of "
                f"{list(options.labels)}; choose others, or leave it out"
            )
    if options.shuffle_train_labels:
        problems["train"] = shuffle_labels(problems["train"], parameters.seed)
    # Tests may be held on the validation split while a method is being developed.
    problems["test"] = problems[parameters.test_dataset_split]
    _check_wrong_problems(parameters, problems, scenario.split_by)
    return problems


def _check_wrong_problems(
    parameters: HyperParameters,
    problems: Mapping[str, Sequence[Problem]],
    split_by: Sequence[str],
) -> None:
    """Raise DatasetError for an attack without enough problems to be accepted wrongly."""
    if parameters.target_run is None:
        return
    if all(p.y != 0 for p in problems[TEST]):
        raise DatasetError(
            f"attack.run: {parameters.dataset} has no wrong problem in its split "
            f"{parameters.test_dataset_split}, so there is nothing to be accepted wrongly"
        )
    if parameters.tests_apart and all(p.y != 0 for p in problems[VALIDATION]):
        raise DatasetError(
            f"attack.course_on: {parameters.dataset} has no wrong problem in its split validation, "
            "on which the provers are tested while they are trained; attack a run with some, or "
            "set attack.course_on: test, and take the worst for biased"
        )
    if not parameters.may_end_early:
        return
    specs = plan_episodes(parameters, problems[VALIDATION], TEST, 0)
    wrong = {
        shared_text(p.question_id, p.columns, split_by)
        for p in (s.problem for s in specs)
        if p.y == 0
    }
    if len(wrong) < (fewest := fewest_questions()):
        raise DatasetError(
            f"attack.until: {len(wrong)} questions with a wrong solution in split validation can't "
            f"show a plateau, which takes {fewest} even if no verdict changes; attack a run with "
            "more of them (dataset_options.max_validation_size, or its scenario's size), without a "
            "small attack.problems, or set attack.until: steps"
        )
