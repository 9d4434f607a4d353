"""An estimate of a run before it is started: episodes, calls, tokens, money, disk.

What it takes *at most* is an upper bound: every episode plays all its rounds and every message is
as long as it may be, with four bytes to a token; an agent reads all that is written in channels
that it sees. Where an episode's seed decides who speaks, the dearest seed counts; of trees of
responses, the dearest of many. Training counts everything as chosen: every conversation; of
trees, a pair of each agent at each node that branches; of trajectories, every turn with its whole
prompt. A prompt to which several answers are asked for is one call and counts once, for servers
that can do so. Invalid answers that are asked for again come on top.

What is *expected* goes by what runs of the same game took, for each episode and for each pass
over it in training (`nip_core.costs.taken`). Where there is none it is rough: prompts are
counted by the tokenizer of the agent's model, if that is on this machine, messages are taken to
be half as long as they may be, games to end in the middle of the rounds in which the verifier may
end them, and half of what was played to be chosen, where examples are chosen. What was never
played, as an attack on a game that is known without one, is scaled by what was, and rough as
well.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from nip_core.costs.experience import NOTHING, Experience, Keys
from nip_core.costs.loads import (
    AT_MOST,
    BYTES_PER_TOKEN,
    EXPECTED,
    Load,
    Loads,
    average_loads,
    count_all_tokens,
    count_first_prompts,
    count_passes,
    reckon_choice_loads,
    reckon_choice_means,
    reckon_episode_loads,
    reckon_training_tokens,
    reckon_tree_loads,
)
from nip_core.evaluation.spread import shared_text
from nip_core.evaluation.statistics.power import detectable_change
from nip_core.game.render import Game, make_situation
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.prices import find_missing_prices, price_calls, price_training
from nip_core.parameters.derived.tested_iterations import is_tested
from nip_core.rollouts.plan import ATTACK, find_played_problems, group_size, plan_episodes
from nip_core.scenarios import Problem

_PROMPT_TOKENS = 300  # instructions, before the problem
_SEEDS = 16
_BYTES_PER_RECORDED_TOKEN = 8  # its id and log-probability
_TABLES_AND_JOURNAL = 3  # what is journalled is written again as Parquet; room for both and more


@dataclass(frozen=True)
class Estimate:
    """Upper bounds for a whole run, and what of them is expected."""

    iterations: int
    train_episodes: int  # or trees of them
    test_episodes: int
    gate_episodes: int  # on validation problems, old and new models together
    attack_episodes: int  # trees, in which messages are chosen; trained provers play plainly
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
    expected_by: str  # in words, by what it was reckoned
    is_rough: bool  # whether some of what is expected goes by no run of the same game
    missing_prices: tuple[str, ...]
    disk_bytes: int
    test_problems: int  # of one test
    test_questions: int
    smallest_change: float | None
    """Of accuracy between two tests that they probably show, in (0, 1), see `detectable_change`;
    None where there are less than two tests or two questions."""

    @property
    def apart_episodes(self) -> int:
        """Count the trees, or episodes, that are played against a verifier under attack."""
        return self.attack_episodes

    @property
    def expected_tokens(self) -> int:
        """Add up all expected tokens, trained ones included."""
        played = self.expected_prompt_tokens + self.expected_completion_tokens
        return played + self.expected_training_tokens


@dataclass(frozen=True)
class _Counts:
    """Episodes of a whole run, or trees of them."""

    per_iteration: int  # in training
    test: int
    gate: int
    apart: int  # of an attack


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

    def add(self, parameters: HyperParameters, count: int, possible: Sequence[Loads]) -> None:
        """Add `count` episodes, or trees: each as the dearest of the `possible` ones."""
        for load in max(possible, key=count_all_tokens).values():
            self.calls += count * load.calls
            self.prompt_tokens += count * load.prompt_tokens
            self.completion_tokens += count * load.completion_tokens
        # What has the most tokens need not be the dearest.
        self.calls_usd += count * max(_usd(parameters, loads) for loads in possible)

    def cover(self, other: "_Totals") -> None:
        """Be no less than `other`, in anything."""
        for name in ("calls", "prompt_tokens", "completion_tokens", "calls_usd"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for group, tokens in other.training.items():
            self.training[group] = max(self.training[group], tokens)

    def usd(self, parameters: HyperParameters) -> float | None:
        """All of it in US dollars; None where a price is missing."""
        if find_missing_prices(parameters):
            return None
        trained = (price_training(parameters, g, n) or 0.0 for g, n in self.training.items())
        return self.calls_usd + sum(trained)


def estimate_run(
    game: Game, problems: Mapping[str, Sequence[Problem]], known: Experience = NOTHING
) -> Estimate:
    """Upper bounds, and what is expected, from settings, problems and what is `known` of runs of
    the same game; no call is made."""
    # 1. How much is played, trained and tested.
    parameters = game.parameters
    iterations = parameters.rl.num_iterations
    trains = parameters.base_run.base_run_type != "rerun_tests"
    playing = (iterations - parameters.imitates(0)) * trains  # iterations that play
    per_iteration = parameters.rollouts_per_iteration
    if per_iteration is None:
        per_iteration = len(problems["train"]) * group_size(parameters, "train")
    times = parameters.rl.num_test_iterations
    tested = find_played_problems(parameters, problems, "test")
    per_test = len(tested)
    if not parameters.text_rl.test_on_whole_dataset:
        per_test = min(per_iteration, per_test)
    sizes = _questions(game, tested[:per_test])
    tests = sum(is_tested(parameters, i) for i in range(iterations + 1))
    gates = sum(_may_be_gated(parameters, i) for i in range(iterations)) * trains
    apart = 0
    if parameters.choice is not None or parameters.tests_apart:
        apart = len(plan_episodes(parameters, problems["test"], ATTACK, iterations))
        apart *= 1 + parameters.tests_apart  # before any training, and the worst provers
    counts = _Counts(
        per_iteration,
        test=tests * per_test * times,
        gate=gates * 2 * len(problems["validation"]) * times,
        apart=apart,
    )
    # 2. What that takes.
    played = [
        *problems["train"],
        *problems["test"],
        *(tested if parameters.tests_apart else ()),
    ]
    size = sum(len(text.encode()) for p in played for text in p.texts.values())
    problem_tokens = size // max(len(played), 1) // BYTES_PER_TOKEN
    prompts, counted = count_first_prompts(game, played)
    longest = {agent: max(n, problem_tokens + _PROMPT_TOKENS) for agent, n in prompts.items()}
    most = _totals(_AtMost(game, problems["train"], longest), counts)
    by = _Expected(game, problems["train"], prompts, known)
    expected = _totals(by, counts)
    most.cover(expected)  # what runs took has answers that were asked for again
    # 3. Room on the disk, for all texts and for what is recorded of tokens.
    episodes = playing * per_iteration + counts.test + counts.gate + counts.apart
    text = episodes * (problem_tokens + _PROMPT_TOKENS) + most.completion_tokens
    disk_bytes = text * BYTES_PER_TOKEN + most.recorded_tokens * _BYTES_PER_RECORDED_TOKEN
    return Estimate(
        iterations=iterations,
        train_episodes=playing * per_iteration,
        test_episodes=counts.test,
        gate_episodes=counts.gate,
        attack_episodes=apart,
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
        expected_by=by.in_words(counted),
        is_rough=by.is_rough,
        missing_prices=find_missing_prices(parameters),
        disk_bytes=round(disk_bytes * _TABLES_AND_JOURNAL),
        test_problems=per_test,
        test_questions=len(sizes),
        smallest_change=detectable_change(sizes) if tests > 1 else None,
    )


class _AtMost:
    """The dearest that may be played: each list has what is possible, all of it to the last."""

    assumed = AT_MOST

    def __init__(self, game: Game, train: Sequence[Problem], prompts: Mapping[str, float]) -> None:
        self.game, self._train, self._prompts = game, train, prompts
        seeds = range(_SEEDS)
        self._by_seed = [reckon_episode_loads(game, seed, prompts, self.assumed) for seed in seeds]

    def plain(self) -> list[Loads]:
        """Of an episode."""
        return self._by_seed

    def chosen(self) -> list[Loads]:
        """Give the loads of a problem on which messages are chosen."""
        return [
            reckon_choice_loads(self.game, seed, loads) for seed, loads in enumerate(self._by_seed)
        ]

    def trees(self, iteration: int) -> list[Loads]:
        """Of a tree of responses."""
        return reckon_tree_loads(self.game, self._train, iteration, self._prompts, self.assumed)

    def trained(self, iteration: int, loads: Loads) -> Mapping[str, float]:
        """Give by group the tokens of its job for each episode or tree of this load."""
        return reckon_training_tokens(self.game.parameters, iteration, loads)


class _Expected(_AtMost):
    """What is to be expected: each list has one entry, as runs took it, or else the mean."""

    assumed = EXPECTED

    def __init__(
        self,
        game: Game,
        train: Sequence[Problem],
        prompts: Mapping[str, float],
        known: Experience,
    ) -> None:
        super().__init__(game, train, prompts)
        self._known, self._keys = known, Keys.of(game.parameters.to_dict())
        self._guessed = average_loads(self._by_seed)
        self.is_rough = False

    def plain(self) -> list[Loads]:
        return [self._as_taken(self._keys.game, self._guessed)]

    def chosen(self) -> list[Loads]:
        by = (self._prompts, self.assumed, self._known.repeated)
        apart = any(
            self.game.drawn_again(make_situation(problem, None, 0), 0)
            for problem in self._train[:1]
        )
        each = [reckon_choice_means(self.game, seed, *by, apart=apart) for seed in range(_SEEDS)]
        return [self._as_taken(self._keys.choices, average_loads(each))]

    def trees(self, iteration: int) -> list[Loads]:
        return [self._as_taken(self._keys.trees, average_loads(super().trees(iteration)))]

    def _as_taken(self, key: str, guessed: Loads) -> Loads:
        """Return known loads, completed by guesses; without any, the guess, scaled.

        It is made as
        much larger or smaller as the guess for plain episodes is known to be wrong.
        """
        episodes, taken = self._known.episodes, self._known.episodes.get(key)
        if taken is None:
            self.is_rough = True
            by = episodes.get(self._keys.game, self._guessed)
            return {a: of.scaled(self._guessed[a], by.get(a, of)) for a, of in guessed.items()}
        return {a: of.scaled(of, taken.get(a, Load())) for a, of in guessed.items()}

    def trained(self, iteration: int, loads: Loads) -> Mapping[str, float]:
        parameters = self.game.parameters
        method = parameters.method(iteration)
        by_group = self._known.trained.get(self._keys.training, {})
        imitates = parameters.imitates(iteration)  # of which every message is trained on
        is_all = imitates or method == "trajectories"
        chosen = 1.0 if is_all else self.assumed.share_chosen
        tokens = {}
        for group, guess in reckon_training_tokens(parameters, iteration, loads).items():
            taken = None if imitates else by_group.get(f"{group} {method}")
            if taken is None and guess:
                self.is_rough = True
            times = count_passes(parameters, iteration, group) * bool(guess)
            tokens[group] = chosen * guess if taken is None else times * taken
        return tokens

    def in_words(self, counted: Collection[str]) -> str:
        """By what it was reckoned."""
        if not self.is_rough:
            return f"by {self._known.source}"
        how = "prompts at four bytes a token"
        if counted:
            how = f"prompts of {', '.join(sorted(counted))} counted in tokens"
        guessed = f"{how}, messages half as long as they may be"
        if self._known.source:
            guessed = f"by {self._known.source}, which did not do all of this"
        return f"roughly: {guessed}"


def _totals(by: _AtMost, counts: _Counts) -> _Totals:
    """Add up what the whole run takes."""
    parameters = by.game.parameters
    iterations = parameters.rl.num_iterations
    trains = parameters.base_run.base_run_type != "rerun_tests"
    totals = _Totals(training=dict.fromkeys(parameters.trainable_groups if trains else (), 0.0))
    # 1. Episodes that are evaluated, as they are.
    if counts.test + counts.gate:
        totals.add(parameters, counts.test + counts.gate, by.plain())
    if counts.apart:
        is_chosen = parameters.choice is not None
        totals.add(parameters, counts.apart, by.chosen() if is_chosen else by.plain())
    # 2. Those of training, and what is trained on them.
    for iteration in range(iterations * trains):
        method = parameters.method(iteration)
        possible = by.trees(iteration) if method == "dpo" else by.plain()
        is_imitation = parameters.imitates(iteration)
        count = parameters.most_imitated if is_imitation else counts.per_iteration
        if not is_imitation:
            totals.add(parameters, count, possible)
        loads = max(possible, key=count_all_tokens)
        for group, tokens in by.trained(iteration, loads).items():
            totals.training[group] += count * tokens
        if method == "trajectories":
            totals.recorded_tokens += counts.per_iteration * count_all_tokens(loads)
    return totals


def _questions(game: Game, problems: Sequence[Problem]) -> list[int]:
    """Count the problems of each question, or of each text by which problems are split."""
    split_by = game.scenario.split_by
    keys = (shared_text(p.question_id, p.columns, split_by) for p in problems)
    return list(Counter(keys).values())


def _may_be_gated(parameters: HyperParameters, iteration: int) -> bool:
    trained = (parameters.training_agents(g, iteration) for g in parameters.trainable_groups)
    return parameters.promotion.enabled and any(trained)


def _usd(parameters: HyperParameters, loads: Loads) -> float:
    """US dollars for the calls of one episode or tree; no price may be missing."""
    tokens = {name: (load.prompt_tokens, load.completion_tokens) for name, load in loads.items()}
    return price_calls(parameters, tokens) or 0.0
