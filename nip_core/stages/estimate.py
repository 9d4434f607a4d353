"""An estimate of a run before it is started: episodes, calls, tokens, money, disk.

Calls and tokens are upper bounds: every episode plays all its rounds and every message is as
long as it may be, with four bytes to a token; an agent reads all that is written in channels that
it sees. Where an episode's seed decides who speaks, the dearest seed counts; of trees of responses,
the dearest of many. A prompt to which several answers are asked for is one call and counts once,
for servers that can do so. Invalid answers that are asked for again come on top.

An estimate of training tokens counts everything as chosen: every conversation; of trees, a pair of
each agent at each node that branches; of trajectories, every turn with its whole prompt.

What is expected takes the mean instead of the dearest, messages half as long as they may be, an end
in the middle of the rounds in which the verifier may end the game, and half of what was played as
chosen for training, where examples are chosen. It guesses at what models do, and is no promise.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    """Upper bounds for a whole run, and what of them is expected."""

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
    expected_calls: int
    expected_prompt_tokens: int
    expected_completion_tokens: int
    expected_training_tokens: int
    expected_usd: float | None
    missing_prices: tuple[str, ...]
    disk_bytes: int
    test_problems: int  # of one test
    test_questions: int
    smallest_change: float | None
    """Of accuracy between two tests that they probably show, in (0, 1), see `detectable_change`;
    None where there are less than two tests or two questions."""

    @property
    def expected_tokens(self) -> int:
        """All tokens that are expected, trained ones included."""
        played = self.expected_prompt_tokens + self.expected_completion_tokens
        return played + self.expected_training_tokens


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


@dataclass(frozen=True)
class _Assumed:
    """By what the tokens of an episode are counted."""

    share_of_limit: float  # that a message is long
    share_chosen: float  # of what was played, for training by examples that are chosen
    is_bound: bool  # count the dearest of what may be played to its last round, not the mean


_AT_MOST = _Assumed(1.0, 1.0, is_bound=True)
_EXPECTED = _Assumed(0.5, 0.5, is_bound=False)


@dataclass(frozen=True)
class _Counts:
    """Episodes of a whole run, or trees of them."""

    per_iteration: int  # in training
    test: int
    gate: int
    attack: int


@dataclass
class _Totals:
    """What a whole run takes, under what is assumed."""

    calls: float = 0
    prompt_tokens: float = 0
    completion_tokens: float = 0
    recorded_tokens: float = 0
    training: dict[str, float] = field(default_factory=dict)  # tokens by group
    calls_usd: float = 0

    @property
    def training_tokens(self) -> float:
        return sum(self.training.values())

    def add(
        self, parameters: HyperParameters, count: int, possible: Sequence[Loads], assumed: _Assumed
    ) -> None:
        """Add `count` episodes, or trees, each as one of those that are `possible`."""
        played = [max(possible, key=_tokens)] if assumed.is_bound else possible
        for load in (load for loads in played for load in loads.values()):
            self.calls += count * load.calls / len(played)
            self.prompt_tokens += count * load.prompt_tokens / len(played)
            self.completion_tokens += count * load.completion_tokens / len(played)
        prices = [_usd(parameters, loads) for loads in possible]
        # What has the most tokens need not be the dearest.
        usd = max(prices) if assumed.is_bound else sum(prices) / len(prices)
        self.calls_usd += count * usd

    def usd(self, parameters: HyperParameters) -> float | None:
        """All of it in US dollars; None where a price is missing."""
        if missing_prices(parameters):
            return None
        trained = (training_usd(parameters, g, n) or 0.0 for g, n in self.training.items())
        return self.calls_usd + sum(trained)


def estimate_run(game: Game, problems: Mapping[str, Sequence[Problem]]) -> Estimate:
    """Upper bounds, and what is expected, from settings and problems; no call is made."""
    # 1. How much is played, trained and tested.
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
    attacks = 0
    if attacks_by_choice(parameters):
        attacks = len(plan_episodes(parameters, problems["test"], ATTACK, iterations))
    counts = _Counts(
        per_iteration,
        test=tests * per_test * times,
        gate=gates * 2 * len(problems["validation"]) * times,
        attack=attacks,
    )
    # 2. What that takes.
    played = [*problems["train"], *problems["test"]]
    size = sum(len(text.encode()) for p in played for text in p.texts.values())
    problem_tokens = size // max(len(played), 1) // _BYTES_PER_TOKEN
    most = _totals(game, problems["train"], problem_tokens, counts, _AT_MOST)
    expected = _totals(game, problems["train"], problem_tokens, counts, _EXPECTED)
    # 3. Room on the disk, for all texts and for what is recorded of tokens.
    episodes = iterations * trains * per_iteration + counts.test + counts.gate + counts.attack
    text = episodes * (problem_tokens + _PROMPT_TOKENS) + most.completion_tokens
    disk_bytes = text * _BYTES_PER_TOKEN + most.recorded_tokens * _BYTES_PER_RECORDED_TOKEN
    return Estimate(
        iterations=iterations,
        train_episodes=iterations * per_iteration * trains,
        test_episodes=counts.test,
        gate_episodes=counts.gate,
        attack_episodes=attacks,
        calls=round(most.calls),
        prompt_tokens=round(most.prompt_tokens),
        completion_tokens=round(most.completion_tokens),
        training_tokens=round(most.training_tokens),
        usd=most.usd(parameters),
        expected_calls=round(expected.calls),
        expected_prompt_tokens=round(expected.prompt_tokens),
        expected_completion_tokens=round(expected.completion_tokens),
        expected_training_tokens=round(expected.training_tokens),
        expected_usd=expected.usd(parameters),
        missing_prices=missing_prices(parameters),
        disk_bytes=round(disk_bytes * _TABLES_AND_JOURNAL),
        test_problems=per_test,
        test_questions=len(sizes),
        smallest_change=detectable_change(sizes) if tests > 1 else None,
    )


def _totals(
    game: Game,
    train: Sequence[Problem],
    problem_tokens: int,
    counts: _Counts,
    assumed: _Assumed,
) -> _Totals:
    """Add up what the whole run takes, under what is assumed."""
    parameters, iterations = game.parameters, game.parameters.rl.num_iterations
    trains = parameters.base_run.base_run_type != "rerun_tests"
    totals = _Totals(training=dict.fromkeys(parameters.trainable_groups if trains else (), 0.0))
    # 1. Episodes that are evaluated, as they are.
    plain = [_loads_of(game, seed, problem_tokens, assumed) for seed in range(_SEEDS)]
    totals.add(parameters, counts.test + counts.gate, plain, assumed)
    if counts.attack:
        attacks = [_attack_loads(game, seed, loads) for seed, loads in enumerate(plain)]
        totals.add(parameters, counts.attack, attacks, assumed)
    # 2. Those of training, and what is trained on them.
    for iteration in range(iterations * trains):
        method = parameters.method(iteration)
        possible = plain
        if method == "dpo":
            possible = _trees(game, train, iteration, problem_tokens, assumed)
        totals.add(parameters, counts.per_iteration, possible, assumed)
        played = [max(possible, key=_tokens)] if assumed.is_bound else possible
        chosen = 1.0 if method == "trajectories" else assumed.share_chosen
        for loads in played:
            for group, tokens in _training_tokens(parameters, iteration, loads).items():
                part = counts.per_iteration * tokens / len(played)
                totals.training[group] += chosen * part
            if method == "trajectories":
                totals.recorded_tokens += counts.per_iteration * _tokens(loads) / len(played)
    return totals


def _questions(game: Game, problems: Sequence[Problem]) -> list[int]:
    """The number of problems of each question, or of each text by which problems are split."""
    split_by = game.scenario.split_by
    keys = (shared_text(p.question_id, p.columns, split_by) for p in problems)
    return list(Counter(keys).values())


def _may_be_gated(parameters: HyperParameters, iteration: int) -> bool:
    trained = (parameters.training_agents(g, iteration) for g in parameters.trainable_groups)
    return parameters.promotion.enabled and any(trained)


def _tokens(loads: Loads) -> int:
    return sum(load.completion_tokens + load.prompt_tokens for load in loads.values())


def _loads_of(
    game: Game,
    seed: int,
    problem_tokens: int,
    assumed: _Assumed,
    shape: Sequence[int] | None = None,
) -> Loads:
    """By agent, in an episode of this seed; or in a tree, `shape` being the children by round."""
    protocol, agents = game.protocol, game.parameters.model_agents
    loads = {agent: _Load(conversation_tokens=problem_tokens + _PROMPT_TOKENS) for agent in agents}
    answers = {a: round(assumed.share_of_limit * game.parameters.max_tokens(a)) for a in agents}
    nodes = 1
    for round_ in range(_rounds(game, seed, assumed)):
        active = protocol.active(round_, seed)
        children = 1 if shape is None else shape[round_]
        for agent in active:
            if agent in loads:  # a random agent costs nothing
                load, answer = loads[agent], answers[agent]
                load.calls += nodes
                load.prompt_tokens += nodes * load.conversation_tokens
                load.completion_tokens += nodes * children * answer
                if children > 1:
                    load.pair_tokens += nodes * 2 * (load.conversation_tokens + answer)
        nodes *= children
        for agent, channels in active.items():
            tokens = answers.get(agent, _RANDOM_TOKENS)
            for reader, load in loads.items():
                if reader == agent or set(channels) & set(protocol.visible_channels(reader)):
                    load.conversation_tokens += tokens
    return loads


def _rounds(game: Game, seed: int, assumed: _Assumed) -> int:
    """The rounds of an episode: all, or those until the middle one of its possible ends."""
    protocol = game.protocol
    last = protocol.max_message_rounds - 1
    if assumed.is_bound:
        return last + 1
    first = protocol.min_message_rounds - 1
    ends = [r for r in range(first, last) if "verifier" in protocol.active(r, seed)]
    ends.append(last)
    return ends[len(ends) // 2] + 1


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
    game: Game, problems: Sequence[Problem], iteration: int, problem_tokens: int, assumed: _Assumed
) -> list[Loads]:
    """The loads of some of the trees that the iteration may play."""
    parameters = game.parameters
    branching = Branching(parameters, game.protocol, iteration)
    trees = []
    for problem in problems[:_TREES]:
        spec = episode_spec(parameters, "train", iteration, problem, 0)
        shape = branching.shape(spec)
        trees.append(_loads_of(game, spec.seed, problem_tokens, assumed, shape))
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
