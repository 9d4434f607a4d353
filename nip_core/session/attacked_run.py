"""What an attack is compared with: the attacked run, its test, the words of its provers.

read_own_test    how the attacked models were tested in their own run
describe_attack  what the attack will do, in words; name_attack: in a few
plan_reach       how many messages it will sample at most
measure_sampled_reach  the same of those by which provers were trained
is_told          whether provers are told otherwise here than there; untold: a warning where not
"""

from collections.abc import Iterator

from nip_core.attack_figures.losses import OwnTest
from nip_core.attack_figures.metrics_document import Reach
from nip_core.attack_figures.reach import (
    SCRIPT_REACH,
    measure_reach,
    measure_training_reach,
    reach_words,
)
from nip_core.costs.estimate import Estimate
from nip_core.errors import SettingsError, StoreError
from nip_core.evaluation.figures_in_words import amount
from nip_core.game.render import Game, make_situation
from nip_core.parameters import HyperParameters
from nip_core.parameters.attack import (
    LEAST_STEPS,
    PLATEAU,
    SCRIPT,
    SNEAKY,
    AttackParameters,
)
from nip_core.parameters.checks import find_attackers
from nip_core.parameters.stored import read_settings
from nip_core.protocols import make_protocol
from nip_core.rollouts.plan import ATTACK, TEST, TRAIN, group_size, plan_episodes
from nip_core.rollouts.schema import EPISODES
from nip_core.rollouts.tables import StoredRollouts
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError, open_store
from nip_core.scenarios import Problem
from nip_core.session.problems_of_run import load_all_problems


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

    In a run whose provers are paid for a right verdict nothing tells them to argue for acceptance,
    unless their prompts follow the settings. None: provers there argued for a verdict, too, or the
    run can't be read.
    """
    try:
        attacked = read_settings(source.open().parameters)
        games = [Game(parameters), Game(attacked)]
    except (StoreError, SettingsError, ValueError):
        return None
    protocol = games[1].protocol
    has_sides = len({protocol.stance(agent, None) for agent in protocol.provers}) > 1
    if has_sides or not attacked.protocol_common.shared_reward:
        return None
    situation, rounds = make_situation(problem, None, 0), range(protocol.max_message_rounds)
    return any(
        games[0].told(agent, situation, (), round_) != games[1].told(agent, situation, (), round_)
        for agent in find_attackers(parameters)
        for round_ in rounds
    )


def plan_reach(parameters: HyperParameters) -> Reach | None:
    """Say of how many messages at most an attack has the choice, or is trained by.

    None for a run that attacks nobody, and for a script, which samples nothing.
    """
    attack = parameters.attack
    if attack.run is None or attack.by == SCRIPT:
        return None
    turns, problems = _count_turns(parameters), load_all_problems(parameters)
    if attack.by == SNEAKY:
        episodes = parameters.rollouts_per_iteration or len(problems[TRAIN])
        steps = parameters.rl.num_iterations - parameters.imitates(0)
        return measure_sampled_reach(parameters, steps * episodes * turns, steps)
    planned = plan_episodes(parameters, problems[TEST], ATTACK, 0)
    wrong = sum(spec.problem.y == 0 for spec in planned)
    # With several turns each n goes on from its own choice.
    return measure_reach(wrong * (attack.n[-1] + max(turns - 1, 0) * sum(attack.n)))


def measure_sampled_reach(parameters: HyperParameters, messages: int, steps: int) -> Reach:
    """Say what the messages of so many steps, by which provers were trained, may have missed."""
    size = group_size(parameters, TRAIN)
    return measure_training_reach(messages, steps, size * _count_turns(parameters), size)


def _count_turns(parameters: HyperParameters) -> int:
    """Count the attackers' turns in an episode."""
    protocol, attackers = make_protocol(parameters), find_attackers(parameters)
    rounds = range(protocol.max_message_rounds)
    return sum(agent in protocol.active(r, 0) for r in rounds for agent in attackers)


def describe_attack(parameters: HyperParameters, episodes: int) -> Iterator[str]:
    """Say before an attack what it does, and how rare a kind of message it may find.

    It plays so many `episodes` on test problems beside the tests by step.
    """
    attack = parameters.attack
    if attack.run is None:
        return
    if attack.until == PLATEAU:
        yield f"all of this at most: a plateau ends it from step {LEAST_STEPS} on"
    if attack.start_from is not None:
        most = amount(attack.imitate, "message")
        yield f"step 1 is imitation, of at most {most} of {attack.start_from} for each prover"
    if attack.tests_worst:
        yield (
            "tests by step are on validation problems; on test problems there are "
            f"{amount(episodes, 'episode')}, before any training and with the worst provers"
        )
    elif episodes:
        yield f"{amount(episodes, 'problem')} on which the verifier is attacked"
    reach = plan_reach(parameters)
    yield SCRIPT_REACH if reach is None else reach_words(reach, planned=True)


def name_attack(attack: AttackParameters, estimate: Estimate | None) -> str:
    """Say of an attack that trains nobody, at its start, whom it attacks and by which messages.

    Of a run without an estimate it does not say in how many episodes.
    """
    most = attack.n[-1]
    how = f"the best of up to {amount(most, 'message')}" if most > 1 else "single messages"
    how = f"the script {attack.script}" if attack.by == SCRIPT else how
    plays = "" if estimate is None else f" in {amount(estimate.attack_episodes, 'episode')}"
    whom = f"the verifier of run {attack.run}, iteration {attack.iteration}"
    return f"attacks {whom}, by {how}{plays}; the attack trains nobody"


def warn_of_untold(parameters: HyperParameters) -> Iterator[str]:
    """Warn of an attack whose provers nothing tells to argue for acceptance."""
    run = parameters.attack.run
    if run is None or parameters.attack.by == SCRIPT:
        return
    source = RunStore(open_store(parameters.run_store, read_only=True), run)
    [problem, *_] = load_all_problems(parameters)[TEST]
    if is_told(parameters, source, problem) is False:
        yield (
            f"attack.run: the provers read the very words of run {run}, where they are paid for a "
            "right verdict, so nothing tells them to argue for acceptance; attack a run whose "
            "prompts do, or set agents.NAME.system_prompt_template_path"
        )
