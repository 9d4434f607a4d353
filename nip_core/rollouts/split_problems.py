"""The problems of every split, as the settings choose them."""

from nip_core.errors import DatasetError
from nip_core.parameters import HyperParameters
from nip_core.rollouts.plan import SPLITS, shuffle_labels
from nip_core.scenarios import Problem, make_scenario
from nip_core.scenarios.datasets import check_splits, load_problems


def load_split_problems(parameters: HyperParameters) -> dict[str, list[Problem]]:
    """Load the problems of every split, and check them. Raises DatasetError."""
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
        # `nip evaluate` may test any run, also one whose settings hold no tests.
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
            # `nip_core.session.problems_of_run` has an error of its own for an attack.
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
    return problems
