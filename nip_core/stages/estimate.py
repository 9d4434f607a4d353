"""What a run will take, before it is started: episodes, calls, tokens, money, disk.

Calls and tokens are upper bounds: every episode plays all its rounds and every message is as
long as it may be, with four bytes to a token. Invalid answers that are asked for again come on
top. An estimate of training tokens counts every rollout as chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nip_core.agents.render import Game
from nip_core.parameters import HyperParameters
from nip_core.scenarios.code_validation.datasets import Problem

_BYTES_PER_TOKEN = 4
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


def estimate_run(game: Game, problems: Mapping[str, Sequence[Problem]]) -> Estimate:
    """Upper bounds from settings and problems; no call is made."""
    parameters, protocol = game.parameters, game.protocol
    iterations = parameters.rl.num_iterations
    per_iteration = parameters.rl.rollouts_per_iteration or len(problems["train"])
    per_test = len(problems["test"]) * parameters.rl.num_test_iterations
    if not parameters.text_rl.test_on_whole_dataset:
        per_test = min(per_iteration, len(problems["test"])) * parameters.rl.num_test_iterations
    tests = sum(is_tested(parameters, i) for i in range(iterations + 1))
    train, test = iterations * per_iteration, tests * per_test
    everything = [*problems["train"], *problems["test"]]
    size = sum(len(p.question.encode()) + len(p.solution.encode()) for p in everything)
    problem_tokens = size // max(len(everything), 1) // _BYTES_PER_TOKEN + 300
    calls = prompt = completion = 0
    said = 0
    by_model: dict[str, list[int]] = {}
    for round_ in range(protocol.max_message_rounds):
        length = 0
        for agent in protocol.active(round_, 0):
            settings = parameters.model_agents.get(agent)
            if settings is None:
                continue  # a random agent costs nothing
            tokens = by_model.setdefault(settings.model_name, [0, 0])
            calls += 1
            tokens[0] += problem_tokens + said
            tokens[1] += settings.effective_max_tokens
            length += settings.effective_max_tokens
        said += length
    prompt = sum(tokens[0] for tokens in by_model.values())
    completion = sum(tokens[1] for tokens in by_model.values())
    episodes = train + test
    epochs = {
        g: parameters.group_parameters(g).num_epochs or parameters.rl.num_epochs
        for g in parameters.trainable_groups
    }
    rollouts_seen = (
        per_iteration * iterations * (iterations + 1) // 2
        if parameters.text_rl.fine_tune_on_all_previous_rollouts
        else train
    )
    training = {
        g: rollouts_seen * epochs[g] * (problem_tokens + said) * len(parameters.groups[g])
        for g in epochs
    }
    usd, missing = _cost(parameters, by_model, episodes, training)
    text_bytes = (problem_tokens + completion) * _BYTES_PER_TOKEN
    return Estimate(
        iterations=iterations,
        train_episodes=train,
        test_episodes=test,
        calls=calls * episodes,
        prompt_tokens=prompt * episodes,
        completion_tokens=completion * episodes,
        training_tokens=sum(training.values()),
        usd=usd,
        missing_prices=missing,
        disk_bytes=text_bytes * episodes * _TABLES_AND_JOURNAL,
    )


def _cost(
    parameters: HyperParameters,
    by_model: Mapping[str, Sequence[int]],
    episodes: int,
    training: Mapping[str, int],
) -> tuple[float | None, tuple[str, ...]]:
    """US dollars; one's own hardware costs nothing here."""
    paid = {
        a.model_name for a in parameters.model_agents.values() if a.model_provider != "SelfHosted"
    }
    missing = tuple(sorted(paid - set(parameters.prices)))
    if missing:
        return None, missing
    usd = 0.0
    for model in paid:
        price = parameters.prices[model]
        prompt, completion = by_model[model]
        usd += episodes * (prompt * price.prompt_usd + completion * price.completion_usd) / 1e6
    for group, tokens in training.items():
        model = parameters.group_parameters(group).model_name
        if model in paid:
            usd += tokens * parameters.prices[model].training_usd / 1e6
    return usd, ()
