"""An estimate of a run before it is started: episodes, calls, tokens, money, disk.

Calls and tokens are upper bounds: every episode plays all its rounds and every message is as
long as it may be, with four bytes to a token; an agent reads all that is written in channels that
it sees. Where an episode's seed decides who speaks, the dearest seed counts; of trees of responses,
the dearest of many. A prompt to which several answers are asked for is one call and counts once,
for servers that can do so. Invalid answers that are asked for again come on top.

An estimate of training tokens counts everything as chosen: every conversation; of trees, a pair of
each agent at each node that branches; of trajectories, every turn with its whole prompt.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nip_core.evaluation.spread import shared_text
from nip_core.evaluation.statistics.power import detectable_change
from nip_core.game.render import Game
from nip_core.parameters import HyperParameters, Method
from nip_core.parameters.attack import BEST_OF_N
from nip_core.parameters.checks import attackers
from nip_core.parameters.prices import calls_usd, missing_prices, training_usd
from nip_core.rollouts.plan import ATTACK, episode_spec, group_size, plan_episodes
from nip_core.rollouts.trees import Branching
from nip_core.scenarios import Problem

_BYTES_PER_TOKEN = 4
_PROMPT_TOKENS = 300  # instructions, before the problem
_RANDOM_TOKENS = 10  # what an agent without a model says
_SEEDS = 16
_TREES = 128  # looked at in each iteration
_BYTES_PER_RECORDED_TOKEN = 8  # its id and log-probability
_TABLES_AND_JOURNAL = 3  # what is journalled is written again as Parquet; room for both and more


@dataclass(frozen=True)
class Estimate:
    """Upper bounds for a whole run."""

    iterations: int
    train_episodes: int  # or trees of them
    test_episodes: int
    gate_episodes: int  # on validation problems, old and new models together
    attack_episodes: int  # trees, in which messages are chosen
    calls: int
    prompt_tokens: int
    completion_tokens: int
    training_tokens: int
    usd: float | None  # None: a price is missing
    missing_prices: tuple[str, ...]
    disk_bytes: int
    test_problems: int  # of one test
    test_questions: int
    smallest_change: float | None
    """Of accuracy between two tests that they probably show, in (0, 1), see `detectable_change`;
    None where there are less than two tests or two questions."""


def is_tested(parameters: HyperParameters, iteration: int) -> bool:
    """Say whether the models that play `iteration` are tested (the final ones: num_iterations)."""
    text_rl, last = parameters.text_rl, parameters.rl.num_iterations
    return scheme_tests(text_rl.test_scheme, last, iteration, text_rl.test_interval)


def scheme_tests(scheme: str, last: int, iteration: int, interval: int) -> bool:
    """`is_tested` by the test scheme, the number of iterations and the test interval."""
    match scheme:
        case "all":
            return iteration % interval == 0 or iteration == last
        case "last":
            return iteration == last
        case "first_and_last":
            return iteration in (0, last)
    return False


def attacks_by_choice(parameters: HyperParameters) -> bool:
    """Say whether the run plays an attack in which messages are chosen and nobody is trained."""
    return parameters.attack.run is not None and parameters.attack.by == BEST_OF_N


@dataclass
class _Load:
    """Bounds for one agent in one episode or tree."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    conversation_tokens: int = 0  # its whole chat at the end: what one training example has
    pair_tokens: int = 0  # of all pairs of answers at the nodes that branch, prompts included

    def trained_tokens(self, method: Method) -> int:
        """Return what training on everything that the agent said reads."""
        match method:
            case "dpo":
                return self.pair_tokens
            case "trajectories":
                return self.prompt_tokens + self.completion_tokens
        return self.conversation_tokens


Loads = dict[str, _Load]
"""By agent with a model."""


def estimate_run(game: Game, problems: Mapping[str, Sequence[Problem]]) -> Estimate:
    """Upper bounds from settings and problems; no call is made."""
    parameters = game.parameters
    iterations = parameters.rl.num_iterations
    trains = parameters.base_run.base_run_type != "rerun_tests"
    per_iteration = parameters.rollouts_per_iteration
    if per_iteration is None:
        per_iteration = len(problems["train"]) * group_size(parameters, "train")
    times = parameters.rl.num_test_iterations
    per_test = len(problems["test"])
    if not parameters.text_rl.test_on_whole_dataset:
        per_test = min(per_iteration, per_test)
    sizes = _questions(game, problems["test"][:per_test])
    tests = sum(is_tested(parameters, i) for i in range(iterations + 1))
    gates = sum(_may_be_gated(parameters, i) for i in range(iterations)) * trains
    played = [*problems["train"], *problems["test"]]
    size = sum(len(text.encode()) for p in played for text in p.texts.values())
    problem_tokens = size // max(len(played), 1) // _BYTES_PER_TOKEN

    plain = [_loads_of(game, seed, problem_tokens) for seed in range(_SEEDS)]
    test, gate = tests * per_test * times, gates * 2 * len(problems["validation"]) * times
    stages = [(test + gate, plain)]
    attacks = 0
    if attacks_by_choice(parameters):
        attacks = len(plan_episodes(parameters, problems["test"], ATTACK, iterations))
        stages.append((attacks, [_attack_loads(game, seed, plain[seed]) for seed in range(_SEEDS)]))
    training = dict.fromkeys(parameters.trainable_groups if trains else (), 0)
    recorded = 0
    for iteration in range(iterations * trains):
        method = parameters.method(iteration)
        possible = plain
        if method == "dpo":
            possible = _trees(game, problems["train"], iteration, problem_tokens)
        stages.append((per_iteration, possible))
        loads = max(possible, key=_tokens)
        for group, tokens in _training_tokens(parameters, iteration, loads).items():
            training[group] += per_iteration * tokens
        if method == "trajectories":
            recorded += per_iteration * _tokens(loads)
    # Money, by the dearest of what may be played.
    missing = missing_prices(parameters)
    usd = None
    if not missing:  # what has the most tokens need not be the dearest
        usd = sum(
            count * max(_usd(parameters, loads) for loads in possible) for count, possible in stages
        ) + sum(training_usd(parameters, g, tokens) or 0.0 for g, tokens in training.items())
    dearest = [(count, max(possible, key=_tokens)) for count, possible in stages]
    completion = sum(count * load.completion_tokens for count, load in _each(dearest))
    episodes = sum(count for count, _ in stages)
    text = (episodes * (problem_tokens + _PROMPT_TOKENS) + completion) * _BYTES_PER_TOKEN
    return Estimate(
        iterations=iterations,
        train_episodes=iterations * per_iteration * trains,
        test_episodes=test,
        gate_episodes=gate,
        attack_episodes=attacks,
        calls=sum(count * load.calls for count, load in _each(dearest)),
        prompt_tokens=sum(count * load.prompt_tokens for count, load in _each(dearest)),
        completion_tokens=completion,
        training_tokens=sum(training.values()),
        usd=usd,
        missing_prices=missing,
        disk_bytes=(text + recorded * _BYTES_PER_RECORDED_TOKEN) * _TABLES_AND_JOURNAL,
        test_problems=per_test,
        test_questions=len(sizes),
        smallest_change=detectable_change(sizes) if tests > 1 else None,
    )


def _questions(game: Game, problems: Sequence[Problem]) -> list[int]:
    """The number of problems of each question, or of each text by which problems are split."""
    split_by = game.scenario.split_by
    keys = (shared_text(p.question_id, p.columns, split_by) for p in problems)
    return list(Counter(keys).values())


def _each(stages: Sequence[tuple[int, Loads]]) -> Iterator[tuple[int, _Load]]:
    return ((count, load) for count, loads in stages for load in loads.values())


def _may_be_gated(parameters: HyperParameters, iteration: int) -> bool:
    trained = (parameters.training_agents(g, iteration) for g in parameters.trainable_groups)
    return parameters.promotion.enabled and any(trained)


def _tokens(loads: Loads) -> int:
    return sum(load.completion_tokens + load.prompt_tokens for load in loads.values())


def _loads_of(
    game: Game, seed: int, problem_tokens: int, shape: Sequence[int] | None = None
) -> Loads:
    """By agent, in an episode of this seed; or in a tree, `shape` being the children by round."""
    protocol, agents = game.protocol, game.parameters.model_agents
    loads = {agent: _Load(conversation_tokens=problem_tokens + _PROMPT_TOKENS) for agent in agents}
    nodes = 1
    for round_ in range(protocol.max_message_rounds):
        active = protocol.active(round_, seed)
        children = 1 if shape is None else shape[round_]
        for agent in active:
            if agent in loads:  # a random agent costs nothing
                load, answer = loads[agent], game.parameters.max_tokens(agent)
                load.calls += nodes
                load.prompt_tokens += nodes * load.conversation_tokens
                load.completion_tokens += nodes * children * answer
                if children > 1:
                    load.pair_tokens += nodes * 2 * (load.conversation_tokens + answer)
        nodes *= children
        for agent, channels in active.items():
            tokens = game.parameters.max_tokens(agent) if agent in agents else _RANDOM_TOKENS
            for reader, load in loads.items():
                if reader == agent or set(channels) & set(protocol.visible_channels(reader)):
                    load.conversation_tokens += tokens
    return loads


def _attack_loads(game: Game, seed: int, plain: Loads) -> Loads:
    """By agent, in the tree of an attack by best-of-n: as if all messages differed, every turn of
    the game was played on from each, and every n chose another one."""
    parameters, protocol = game.parameters, game.protocol
    attack, provers = parameters.attack, set(attackers(parameters))
    turns = sum(
        not provers.isdisjoint(protocol.active(r, seed)) for r in range(protocol.max_message_rounds)
    )
    messages = attack.n[-1] + max(turns - 1, 0) * sum(attack.n)
    played = messages * attack.continuations + len(attack.n)
    loads = {}
    for agent, load in plain.items():
        times = messages if agent in provers and turns == 1 else played + messages
        loads[agent] = _Load(
            load.calls * times, load.prompt_tokens * times, load.completion_tokens * times
        )
    return loads


def _trees(
    game: Game, problems: Sequence[Problem], iteration: int, problem_tokens: int
) -> list[Loads]:
    """The loads of some of the trees that the iteration may play, where no episode ends early."""
    parameters = game.parameters
    branching = Branching(parameters, game.protocol, iteration)
    trees = []
    for problem in problems[:_TREES]:
        spec = episode_spec(parameters, "train", iteration, problem, 0)
        trees.append(_loads_of(game, spec.seed, problem_tokens, branching.shape(spec)))
    return trees


def _training_tokens(parameters: HyperParameters, iteration: int, loads: Loads) -> dict[str, int]:
    """By group, in the job of the iteration, for each episode or tree of an iteration."""
    method = parameters.method(iteration)
    seen = 1
    if parameters.text_rl.fine_tune_on_all_previous_rollouts:
        seen += iteration
        if method == "dpo":  # episodes without branches give no pairs
            seen -= parameters.pure_text_malt.num_initial_ei_iterations
    tokens = {}
    for group in parameters.trainable_groups:
        epochs = parameters.group_parameters(group).num_epochs or parameters.rl.num_epochs
        agents = parameters.training_agents(group, iteration)
        tokens[group] = seen * epochs * sum(loads[a].trained_tokens(method) for a in agents)
    return tokens


def _usd(parameters: HyperParameters, loads: Loads) -> float:
    """US dollars for the calls of one episode or tree; no price may be missing."""
    tokens = {name: (load.prompt_tokens, load.completion_tokens) for name, load in loads.items()}
    return calls_usd(parameters, tokens) or 0.0
