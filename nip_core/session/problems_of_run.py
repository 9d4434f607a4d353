"""The problems of every split of a run, as its settings choose them."""

from collections.abc import Mapping, Sequence

from nip_core.attack_figures.plateau import fewest_questions
from nip_core.errors import DatasetError
from nip_core.evaluation.spread import shared_text
from nip_core.parameters import HyperParameters
from nip_core.rollouts.plan import TEST, VALIDATION, plan_episodes
from nip_core.rollouts.split_problems import load_split_problems
from nip_core.scenarios import Problem, make_scenario


def load_all_problems(parameters: HyperParameters) -> dict[str, list[Problem]]:
    """The problems of every split, checked, those of an attack too. Raises DatasetError."""
    problems = load_split_problems(parameters)
    if parameters.target_run is not None:
        _check_wrong_problems(parameters, problems, make_scenario(parameters).split_by)
    return problems


def _check_wrong_problems(
    parameters: HyperParameters,
    problems: Mapping[str, Sequence[Problem]],
    split_by: Sequence[str],
) -> None:
    """Raise DatasetError for an attack without enough problems to be accepted wrongly."""
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
