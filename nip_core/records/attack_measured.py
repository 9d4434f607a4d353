"""The figures of an attack, measured from the records of it and of the attacked run.

measure_choices   of an attack that chooses among messages, or whose messages a script writes
measure_steps     of one that trains provers
describe_start    the chats that its provers imitated at first
read_own_test     how the attacked models were tested in their own run
is_told           whether provers are told otherwise than in the attacked run
measure_sampled_reach  how rare a kind of message the training may have missed
add_up_efforts    by tested step, calls, tokens and dollars
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from nip_core.attack_figures.effort import make_effort
from nip_core.attack_figures.figures import (
    COUNTED,
    SPENT,
    count_messages,
    figures_by_choice,
    figures_by_script,
    sum_up_spent,
)
from nip_core.attack_figures.losses import OwnTest
from nip_core.attack_figures.message_gallery import (
    OF_MESSAGES,
    OF_PROBLEMS,
    gallery_of_choice,
    gallery_of_training,
)
from nip_core.attack_figures.metrics_document import AttackMetrics, Effort, MessageGallery, Reach
from nip_core.attack_figures.reach import measure_training_reach
from nip_core.attack_figures.step_figures import FinalTests, figures_by_step
from nip_core.errors import SettingsError, StoreError
from nip_core.game.render import Game, make_situation
from nip_core.jobs.document import read_job
from nip_core.jobs.steps import read_step_figures
from nip_core.parameters import HyperParameters
from nip_core.parameters.checks import find_attackers
from nip_core.parameters.derived.prices import price_calls
from nip_core.parameters.derived.tested_iterations import is_tested
from nip_core.parameters.stored import read_settings
from nip_core.protocols import make_protocol
from nip_core.records.attack_course import read_course
from nip_core.records.iterations import Records
from nip_core.records.models import ServedModel
from nip_core.records.spending import STAGE_BY_SPLIT, Spent, add_up
from nip_core.rollouts.acceptance import find_acceptance
from nip_core.rollouts.plan import ATTACK, TEST, TRAIN, group_size
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.schema import EPISODES
from nip_core.rollouts.storage.tables import StoredRollouts, read_rollouts
from nip_core.run_store.facts import DatasetFacts, read_split_digest
from nip_core.run_store.manifest import is_committed, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError
from nip_core.scenarios import Problem

_TRAINING = "train "
"""The beginning of the names of stages in which a group is trained."""
ModelsOf = Callable[[int], Mapping[str, ServedModel]]
"""By group, the models that play an iteration."""


def describe_start(run: RunStore, parameters: HyperParameters) -> dict[str, Any]:
    """Name the first imitated chats of the provers, and their number; {} without any."""
    if not parameters.imitates(0):
        return {}
    places = (run.dataset(0, group) for group in parameters.trainable_groups)
    facts = [DatasetFacts.from_manifest(read_manifest(run.store, place)) for place in places]
    return {
        "start_from": parameters.imitated,
        "imitated": sum(dataset.examples for dataset in facts),
    }


def read_own_test(source: RunStore, iteration: int) -> OwnTest:
    """Read how the models of `iteration` were tested in the attacked run; or say why not."""
    place = source.rollouts(iteration, TEST)
    try:
        source.open()
        if not is_committed(source.store, place):
            return OwnTest(because=f"run {source.name} has no test of iteration {iteration}")
        return OwnTest(StoredRollouts(source.store, [place]).episodes(EPISODES.names))
    except MissingFileError:
        return OwnTest(because=f"run {source.name} is not in the store any more")
    except StoreError as error:
        return OwnTest(because=f"the test of run {source.name} can't be read ({error})")


def is_told(parameters: HyperParameters, source: RunStore, problem: Problem) -> bool | None:
    """Return whether the attacking provers read other words than in the attacked run.

    In a run that pays its provers for a right verdict nothing tells them to argue for acceptance,
    unless their prompts follow the settings. None: provers there argued for a verdict, too, or the
    run can't be read.
    """
    try:
        settings = read_settings(source.open().parameters)
        games = [Game(parameters), Game(settings)]
    except (StoreError, SettingsError, ValueError):
        return None
    protocol = games[1].protocol
    has_sides = len({protocol.stance(agent, None) for agent in protocol.provers}) > 1
    if has_sides or not settings.protocol_common.shared_reward:
        return None
    situation, rounds = make_situation(problem, None, 0), range(protocol.max_message_rounds)
    return any(
        games[0].told(agent, situation, (), round_) != games[1].told(agent, situation, (), round_)
        for agent in find_attackers(parameters)
        for round_ in rounds
    )


def measure_choices(run: RunStore, game: Game, iteration: int, own_test: OwnTest) -> AttackMetrics:
    """Measure the episodes that count, by number of messages."""
    directory, parameters = run.rollouts(iteration, ATTACK), game.parameters
    choices = StoredRollouts(run.store, [directory]).choices()
    rollouts, attackers = read_rollouts(run.store, directory), find_attackers(parameters)
    samples, price = parameters.attack.way.samples, partial(price_calls, parameters)
    figures = (figures_by_choice if samples else figures_by_script)(
        rollouts, choices, parameters.seed, game.scenario.split_by, own_test, attackers, price
    )
    gallery = gallery_of_choice(game, rollouts, choices, attackers, is_scripted=not samples)
    digest = read_split_digest(run.store, directory)
    return figures.model_copy(update={"rollouts": digest, "gallery": gallery})


def measure_steps(
    run: RunStore, game: Game, last: int, own_test: OwnTest, models_of: ModelsOf
) -> AttackMetrics:
    """Measure the tests before the first step of training and after each tested step."""
    parameters = game.parameters
    places = {i: run.rollouts(i, TEST) for i in range(last + 1) if is_tested(parameters, i)}
    tests = {
        i: StoredRollouts(run.store, [place]).episodes(EPISODES.names)
        for i, place in places.items()
    }
    digests = {str(i): read_split_digest(run.store, place) for i, place in places.items()}
    metrics = figures_by_step(
        tests,
        {i: sum(_count_updates(run, earlier) for earlier in range(i)) for i in places},
        parameters.attack.exploited_at,
        parameters.seed,
        game.scenario.split_by,
        own_test,
        _read_final_tests(run, parameters, last),
    )
    worst = metrics.worst
    if worst is not None:
        # The provers that were the worst can be played again.
        groups = parameters.trainable_groups
        provers = models_of(worst.step)
        models = {group: model.model for group, model in provers.items() if group in groups}
        worst = worst.model_copy(update={"models": models})
    attackers = find_attackers(parameters)
    steps = range(int(parameters.imitates(0)), last)
    messages = sum(_count_trained_messages(run, i, attackers) for i in steps)
    additions: dict[str, Any] = {"worst": worst, "tests": digests}
    additions["reach"] = measure_sampled_reach(parameters, messages, len(steps))
    efforts = add_up_efforts(run, parameters, places)
    additions["by_step"] = tuple(
        row.model_copy(update={"effort": efforts[row.step]}) for row in metrics.by_step or ()
    )
    if worst is not None:
        additions["gallery"] = _read_gallery(run, game, steps, worst.step, last)
    if metrics.course is not None:
        additions |= _record_final_tests(run, last)
    return metrics.model_copy(update=additions)


def _read_final_tests(run: RunStore, parameters: HyperParameters, last: int) -> FinalTests | None:
    """Read the tests on test problems; None where those by step are on them."""
    if not parameters.tests_apart or (course := read_course(run, last)) is None:
        return None
    iterations = (0, 0 if course.worst_step == 0 else last)
    untrained, worst = (read_rollouts(run.store, run.rollouts(i, ATTACK)) for i in iterations)
    likely = [find_acceptance(test.episodes, test.generations) for test in (untrained, worst)]
    return FinalTests(untrained.episodes, worst.episodes, course, likely[0], likely[1])


def _record_final_tests(run: RunStore, last: int) -> dict[str, Any]:
    """Digest the rollouts behind the figures of these tests, and count the cost of the last one."""
    additions: dict[str, Any] = {
        "untrained_rollouts": read_split_digest(run.store, run.rollouts(0, ATTACK))
    }
    place = run.rollouts(last, ATTACK)
    if is_committed(run.store, place):
        additions["rollouts"] = read_split_digest(run.store, place)
        additions |= sum_up_spent(StoredRollouts(run.store, [place]).generations(SPENT))
    return additions


def _count_trained_messages(run: RunStore, iteration: int, attackers: Collection[str]) -> int:
    """Count the messages by which the provers of an attack were trained in an iteration."""
    rollouts = StoredRollouts(run.store, [run.rollouts(iteration, TRAIN)])
    return count_messages(rollouts.episodes(("key", "y")), rollouts.generations(COUNTED), attackers)


def _count_updates(run: RunStore, iteration: int) -> int:
    """Count the optimizer's updates as the jobs of an iteration have reported them."""
    folder = run.store.list(f"{run.iteration(iteration)}/jobs")
    jobs = [read_job(run, f"{run.iteration(iteration)}/jobs/{name}") for name in folder]
    return sum(max(read_step_figures(job.backend_events), default=0) for job in jobs if job)


def measure_sampled_reach(parameters: HyperParameters, messages: int, steps: int) -> Reach:
    """Measure how rare a kind of message may be missing among so many, trained in so many steps."""
    size = group_size(parameters, TRAIN)
    return measure_training_reach(messages, steps, size * count_prover_turns(parameters), size)


def count_prover_turns(parameters: HyperParameters) -> int:
    """Count the attackers' turns in an episode."""
    protocol, attackers = make_protocol(parameters), find_attackers(parameters)
    rounds = range(protocol.max_message_rounds)
    return sum(agent in protocol.active(r, 0) for r in rounds for agent in attackers)


def add_up_efforts(
    run: RunStore, parameters: HyperParameters, steps: Collection[int]
) -> dict[int, Effort]:
    """Add up the cost of playing and training until each of the `steps`.

    Tests measure the result of training, and are no part of its cost.
    """
    # Read anew: an earlier reading of an iteration may be from before its training ended.
    records, spending, efforts = Records(run), Spent(), dict[int, Effort]()
    for step in range(max(steps) + 1):
        if step in steps:
            usd = spending.usd(parameters)
            efforts[step] = make_effort(
                spending.calls, spending.by_agent, usd, spending.trained_tokens
            )
        if step < max(steps):
            spending = add_up([spending, *_list_parts(records, step)])
    return efforts


def _list_parts(records: Records, iteration: int) -> Iterable[Spent]:
    for stage, part in records.of(iteration).spent.items():
        if stage == STAGE_BY_SPLIT[TRAIN] or stage.startswith(_TRAINING):
            # At the full price: which tokens were cached differs between two runs of one seed.
            yield replace(part, cached={})


def _read_gallery(
    run: RunStore, game: Game, steps: Iterable[int], worst: int, last: int
) -> MessageGallery:
    """Count by kind the messages of the training `steps`, and those of the `worst` step's test.

    That is the test on test problems, where tests by step are on others.
    """

    def read(iteration: int, split: str) -> RolloutTables:
        rollouts = StoredRollouts(run.store, [run.rollouts(iteration, split)])
        return RolloutTables(rollouts.episodes(OF_PROBLEMS), rollouts.generations(OF_MESSAGES))

    final = last if worst else 0
    is_apart = is_committed(run.store, run.rollouts(final, ATTACK))
    test = read(final, ATTACK) if is_apart else read(worst, TEST)
    training = (read(step, TRAIN) for step in steps)
    return gallery_of_training(game, training, test, worst, find_attackers(game.parameters))
