"""The work of an attack, in words and numbers, before it begins."""

from collections.abc import Iterator

from nip_core.attack_figures.metrics_document import Reach
from nip_core.attack_figures.reach import SCRIPT_REACH, measure_reach, reach_words
from nip_core.attacks.course import LEAST_STEPS
from nip_core.costs.estimate import Estimate
from nip_core.evaluation.figures_in_words import amount
from nip_core.parameters import HyperParameters
from nip_core.records.attack_measured import count_prover_turns, is_told, measure_sampled_reach
from nip_core.rollouts.plan import ATTACK, TEST, TRAIN, plan_episodes
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.problems_of_run import load_all_problems


def plan_reach(parameters: HyperParameters) -> Reach | None:
    """Say of how many messages at most an attack has the choice, or is trained by.

    None for a run without an attack, and for a script, which samples nothing.
    """
    attack = parameters.attack
    if attack.run is None or not attack.way.samples:
        return None
    turns, problems = count_prover_turns(parameters), load_all_problems(parameters)
    if attack.way.trains:
        episodes = parameters.rollouts_per_iteration or len(problems[TRAIN])
        steps = parameters.rl.num_iterations - parameters.imitates(0)
        return measure_sampled_reach(parameters, steps * episodes * turns, steps)
    specs = plan_episodes(parameters, problems[TEST], ATTACK, 0)
    wrong = sum(spec.problem.y == 0 for spec in specs)
    return measure_reach(attack.way.count_messages(wrong, turns) or 0)


def describe_attack(parameters: HyperParameters, episodes: int) -> Iterator[str]:
    """Describe an attack, or an imitation, before it begins, and how rare a kind it may find.

    It plays so many `episodes` on test problems beside the tests by step.
    """
    attack = parameters.attack
    if attack.may_end_early:
        yield f"all of this at most: a plateau ends it from step {LEAST_STEPS} on"
    if parameters.imitated is not None:
        step = "iteration 0" if attack.run is None else "step 1"
        messages = f"{amount(parameters.most_imitated, 'message')} of {parameters.imitated}"
        yield f"{step} is imitation, of at most {messages} for each agent"
    if attack.run is None:
        return
    if attack.tests_worst:
        yield (
            "tests by step are on validation problems; on test problems there are "
            f"{amount(episodes, 'episode')}, before any training and with the worst provers"
        )
    elif episodes:
        yield f"{amount(episodes, 'problem')} on which the verifier is attacked"
    reach = plan_reach(parameters)
    yield SCRIPT_REACH if reach is None else reach_words(reach, is_planned=True)


def name_attack(parameters: HyperParameters, estimate: Estimate | None) -> str:
    """Name the target and the messages of an attack without training, at its start.

    Of a run without an estimate it does not say in how many episodes.
    """
    attack = parameters.attack
    plays = "" if estimate is None else f" in {amount(estimate.apart_episodes, 'episode')}"
    whom = f"the verifier of run {attack.run}, iteration {attack.iteration}"
    return f"attacks {whom}, by {attack.way.describe()}{plays}; the attack trains nobody"


def warn_of_untold(parameters: HyperParameters) -> Iterator[str]:
    """Warn of an attack where nothing tells its provers to argue for acceptance."""
    run = parameters.attack.run
    if run is None or not parameters.attack.way.samples:
        return
    source = RunStore(open_store(parameters.run_store, read_only=True), run)
    [problem, *_] = load_all_problems(parameters)[TEST]
    if is_told(parameters, source, problem) is False:
        yield (
            f"attack.run: the provers read the very words of run {run}, where they are paid for a "
            "right verdict, so nothing tells them to argue for acceptance; attack a run whose "
            "prompts do, or set agents.NAME.system_prompt_template_path"
        )
