"""What an attack is compared with, and what it did to be one.

own_test       how the attacked models were tested in their own run
is_told        whether provers are told otherwise here than there; untold: a warning where not
training_of    how many of the attack's steps trained its provers
shown_attack   the figures of an attack on record, with that, as whoever looks at it sees them
"""

from collections.abc import Iterator

from nip_core.errors import SettingsError, StoreError
from nip_core.evaluation.attack_figures import OwnTest
from nip_core.evaluation.attack_metrics import AttackMetrics, ShownAttack, TrainedSteps
from nip_core.evaluation.attack_words import StepJob, count_trained
from nip_core.game.render import Game, situation_of
from nip_core.parameters import HyperParameters
from nip_core.parameters.checks import attackers
from nip_core.parameters.stored import from_stored
from nip_core.rollouts.plan import ATTACK, TEST
from nip_core.rollouts.schema import EPISODES
from nip_core.rollouts.tables import StoredRollouts
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore, read_document
from nip_core.run_store.store import MissingFileError, open_store
from nip_core.scenarios import Problem
from nip_core.stages.prepare import load_all_problems
from nip_core.stages.records import Records


def own_test(source: RunStore, iteration: int) -> OwnTest:
    """The test of the models that play `iteration` in the attacked run; why not, without one."""
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

    In a run whose provers are paid for a right verdict nothing tells them to argue for acceptance,
    unless their prompts follow the settings. None: provers there argued for a verdict, too, or the
    run can't be read.
    """
    try:
        attacked = from_stored(source.open().parameters)
        games = [Game(parameters), Game(attacked)]
    except (StoreError, SettingsError, ValueError):
        return None
    protocol = games[1].protocol
    has_sides = len({protocol.stance(agent, None) for agent in protocol.provers}) > 1
    if has_sides or not attacked.protocol_common.shared_reward:
        return None
    situation, rounds = situation_of(problem, None, 0), range(protocol.max_message_rounds)
    return any(
        games[0].told(agent, situation, (), round_) != games[1].told(agent, situation, (), round_)
        for agent in attackers(parameters)
        for round_ in rounds
    )


def untold(parameters: HyperParameters) -> Iterator[str]:
    """Warn of an attack whose provers nothing tells to argue for acceptance."""
    run = parameters.attack.run
    if run is None:
        return
    source = RunStore(open_store(parameters.run_store, read_only=True), run)
    [problem, *_] = load_all_problems(parameters)[TEST]
    if is_told(parameters, source, problem) is False:
        yield (
            f"attack.run: the provers read the very words of run {run}, where they are paid for a "
            "right verdict, so nothing tells them to argue for acceptance; attack a run whose "
            "prompts do, or set agents.NAME.system_prompt_template_path"
        )


def training_of(records: Records) -> TrainedSteps | None:
    """Count the steps that trained somebody; None for an attack that trains nobody."""
    steps = [record for record in records.all() if record.iteration < records.shown.last]
    if not steps:
        return None
    counts = [of.get("counts") or {} for record in steps for of in record.datasets.values()]
    jobs = [
        {
            group: StepJob(job["outcome"] or job["status"], job["reason"])
            for group, job in of.items()
        }
        for of in (record.jobs for record in steps)
    ]
    return count_trained(jobs, counts)


def shown_attack(records: Records) -> ShownAttack | None:
    """Read the figures on record, with those of `training_of`; None where there are none yet."""
    if not records.shown.attacks:
        return None
    path = records.run.metrics(records.shown.last, ATTACK)
    metrics = read_document(records.run, path, AttackMetrics)
    return None if metrics is None else with_training(metrics, training_of(records))


def with_training(metrics: AttackMetrics, trained: TrainedSteps | None) -> ShownAttack:
    """Put the figures of an attack and the count of its steps side by side."""
    counted = {} if trained is None else trained.as_json()
    return ShownAttack.model_validate({**metrics.as_json(), **counted})
