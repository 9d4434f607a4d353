"""What a run will take, before it is started: episodes, calls, tokens, money, disk.

Calls and tokens are upper bounds: every episode plays all its rounds and every message is as
long as it may be, with four bytes to a token; an agent reads all that is written in channels that
it sees. Where an episode's seed decides who speaks, the dearest seed counts. Invalid answers that
are asked for again come on top. An estimate of training tokens counts every rollout as chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nip_core.agents.render import Game
from nip_core.parameters import HyperParameters
from nip_core.scenarios.code_validation.datasets import Problem
from nip_core.stages.providers import is_paid

_BYTES_PER_TOKEN = 4
_PROMPT_TOKENS = 300  # instructions, before the problem
_RANDOM_TOKENS = 10  # what an agent without a model says
_SEEDS = 16
_TABLES_AND_JOURNAL = 3  # what is journalled is written again as Parquet; room for both and more


@dataclass(frozen=True)
class Estimate:
    """Upper bounds for a whole run."""

    iterations: int
    train_episodes: int
    test_episodes: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    training_tokens: int
    usd: float | None  # None: a price is missing
    missing_prices: tuple[str, ...]
    disk_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-encodable."""
        return asdict(self)


def is_tested(parameters: HyperParameters, iteration: int) -> bool:
    """Whether the models that play `iteration` are tested (the final ones: num_iterations)."""
    return scheme_tests(parameters.text_rl.test_scheme, parameters.rl.num_iterations, iteration)


def scheme_tests(scheme: str, last: int, iteration: int) -> bool:
    """`is_tested` by the test scheme and the number of iterations."""
    match scheme:
        case "all":
            return True
        case "last":
            return iteration == last
        case "first_and_last":
            return iteration in (0, last)
    return False


@dataclass
class _Load:
    """Bounds for one agent in one episode."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    conversation_tokens: int = 0  # its whole chat at the end: what one training example has


def estimate_run(game: Game, problems: Mapping[str, Sequence[Problem]]) -> Estimate:
    """Upper bounds from settings and problems; no call is made."""
    parameters = game.parameters
    iterations = parameters.rl.num_iterations
    per_iteration = parameters.rollouts_per_iteration or len(problems["train"])
    per_test = len(problems["test"]) * parameters.rl.num_test_iterations
    if not parameters.text_rl.test_on_whole_dataset:
        per_test = min(per_iteration, len(problems["test"])) * parameters.rl.num_test_iterations
    trains = parameters.base_run.base_run_type != "rerun_tests"
    tests = sum(is_tested(parameters, i) for i in range(iterations + 1))
    train, test = iterations * per_iteration * trains, tests * per_test
    everything = [*problems["train"], *problems["test"]]
    size = sum(len(p.question.encode()) + len(p.solution.encode()) for p in everything)
    problem_tokens = size // max(len(everything), 1) // _BYTES_PER_TOKEN
    by_seed = [_loads_of(game, seed, problem_tokens) for seed in range(_SEEDS)]
    loads = max(by_seed, key=_tokens)
    training = _training_tokens(parameters, loads, per_iteration) if trains else {}
    episodes = train + test
    missing = _missing_prices(parameters)
    usd = None
    if not missing:  # the seed with the most tokens need not be the dearest
        usd = max(_cost(parameters, one, episodes, training) for one in by_seed)
    completion = sum(load.completion_tokens for load in loads.values())
    text_bytes = (problem_tokens + _PROMPT_TOKENS + completion) * _BYTES_PER_TOKEN
    return Estimate(
        iterations=iterations,
        train_episodes=train,
        test_episodes=test,
        calls=episodes * sum(load.calls for load in loads.values()),
        prompt_tokens=episodes * sum(load.prompt_tokens for load in loads.values()),
        completion_tokens=episodes * completion,
        training_tokens=sum(training.values()),
        usd=usd,
        missing_prices=missing,
        disk_bytes=text_bytes * episodes * _TABLES_AND_JOURNAL,
    )


def _tokens(loads: Mapping[str, _Load]) -> int:
    return sum(load.completion_tokens + load.prompt_tokens for load in loads.values())


def _loads_of(game: Game, seed: int, problem_tokens: int) -> dict[str, _Load]:
    """By agent with a model, in an episode of this seed."""
    protocol, agents = game.protocol, game.parameters.model_agents
    loads = {agent: _Load(conversation_tokens=problem_tokens + _PROMPT_TOKENS) for agent in agents}
    for round_ in range(protocol.max_message_rounds):
        active = protocol.active(round_, seed)
        for agent in active:
            if agent in loads:  # a random agent costs nothing
                load = loads[agent]
                load.calls += 1
                load.prompt_tokens += load.conversation_tokens
                load.completion_tokens += game.parameters.max_tokens(agent)
        for agent, channels in active.items():
            said = game.parameters.max_tokens(agent) if agent in agents else _RANDOM_TOKENS
            for reader, load in loads.items():
                if reader == agent or set(channels) & set(protocol.visible_channels(reader)):
                    load.conversation_tokens += said
    return loads


def _training_tokens(
    parameters: HyperParameters, loads: Mapping[str, _Load], per_iteration: int
) -> dict[str, int]:
    """By group, over all iterations in which it is trained."""
    tokens = dict.fromkeys(parameters.trainable_groups, 0)
    for iteration in range(parameters.rl.num_iterations):
        seen = iteration + 1 if parameters.text_rl.fine_tune_on_all_previous_rollouts else 1
        for group in tokens:
            epochs = parameters.group_parameters(group).num_epochs or parameters.rl.num_epochs
            for agent in parameters.training_agents(group, iteration):
                episode = loads[agent].conversation_tokens
                tokens[group] += seen * per_iteration * epochs * episode
    return tokens


def _cost(
    parameters: HyperParameters,
    loads: Mapping[str, _Load],
    episodes: int,
    training: Mapping[str, int],
) -> float:
    """US dollars; one's own hardware costs nothing here."""
    usd = 0.0
    for name, agent in parameters.model_agents.items():
        if not is_paid(agent):
            continue
        price, load = parameters.prices[agent.model_name], loads[name]
        spent = (
            load.prompt_tokens * price.prompt_usd + load.completion_tokens * price.completion_usd
        )
        usd += episodes * spent / 1e6
    for group, tokens in training.items():
        agent = parameters.group_parameters(group)
        if is_paid(agent):
            usd += tokens * parameters.prices[agent.model_name].training_usd / 1e6
    return usd


def _missing_prices(parameters: HyperParameters) -> tuple[str, ...]:
    paid = {a.model_name for a in parameters.model_agents.values() if is_paid(a)}
    return tuple(sorted(paid - set(parameters.prices)))
