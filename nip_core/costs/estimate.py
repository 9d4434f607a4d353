"""An estimate of a run before it is started: episodes, calls, tokens, money, disk.

*At most* is an upper bound: every episode plays all its rounds and every message is as long as it
may be, with four bytes to a token; an agent reads all that is written in channels
that it sees. Where an episode's seed decides who speaks, the dearest seed counts; of trees of
responses, the dearest of many. Training counts everything as chosen: every conversation; of
trees, a pair of each agent at each node that branches; of trajectories, every turn with its whole
prompt. A prompt to which several answers are asked for is one call and counts once, for servers
that can do so. Invalid answers that are asked for again come on top.

*Expected* figures go by runs of the same game, for each episode and for each pass over it in
training (`nip_core.costs.taken`). Without such a run they are rough. Prompts are counted by the
tokenizer of the agent's model, if that is on this machine. Messages are taken to be half as long
as they may be, and games to end in the middle of the rounds in which the verifier may end them.
Where examples are chosen, half of the episodes are taken to be. A part that no run has played, such
as the attack on a game, is scaled by the parts that were played, and is rough as well.
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
    count_imitated,
    count_passes,
    count_read_examples,
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
_TABLES_AND_JOURNAL = 3  # journals are written again as Parquet; room for both and more


@dataclass(frozen=True)
class Estimate:
    """Upper bounds for a whole run, and the expected figures."""

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
    expected_training_by_group: Mapping[str, int]
    read_examples: Mapping[str, list[int | None]]
    """By trained group and job, see `count_read_examples`."""
    expected_usd: float | None
    expected_by: str  # the runs or guesses that it was reckoned by, in words
    is_rough: bool  # whether some expected figure goes by no run of the same game
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
        call_tokens = self.expected_prompt_tokens + self.expected_completion_tokens
        return call_tokens + self.expected_training_tokens


@dataclass(frozen=True)
class _Counts:
    """Episodes of a whole run, or trees of them."""

    per_iteration: int  # in training
    test: int
    gate: int
    attack: int  # of an attack


@dataclass
class _Totals:
    """Calls, tokens and dollars of a whole run, under one assumption."""

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
        # The loads with the most tokens need not be the dearest.
        self.calls_usd += count * max(_usd(parameters, loads) for loads in possible)

    def cover(self, totals: "_Totals") -> None:
        """Be no less than `totals`, in anything."""
        for name in ("calls", "prompt_tokens", "completion_tokens", "calls_usd"):
            setattr(self, name, max(getattr(self, name), getattr(totals, name)))
        for group, tokens in totals.training.items():
            self.training[group] = max(self.training[group], tokens)

    def usd(self, parameters: HyperParameters) -> float | None:
        """All of it in US dollars; None where a price is missing."""
        if find_missing_prices(parameters):
            return None
        prices = (price_training(parameters, g, n) or 0.0 for g, n in self.training.items())
        return self.calls_usd + sum(prices)


def estimate_run(
    game: Game, problems: Mapping[str, Sequence[Problem]], experience: Experience = NOTHING
) -> Estimate:
    """Return upper bounds and expected figures, from settings, problems and the `experience` of
    runs of the same game; no call is made."""
    # 1. How much is played, trained and tested.
    parameters = game.parameters
    iterations = parameters.rl.num_iterations
    trains = parameters.base_run.base_run_type != "rerun_tests"
    playing = (iterations - parameters.imitates(0)) * trains  # iterations that play
    per_iteration = parameters.rollouts_per_iteration
    if per_iteration is None:
        per_iteration = len(problems["train"]) * group_size(parameters, "train")
    times = parameters.rl.num_test_iterations
    test_problems = find_played_problems(parameters, problems, "test")
    per_test = len(test_problems)
    if not parameters.text_rl.test_on_whole_dataset:
        per_test = min(per_iteration, per_test)
    sizes = _questions(game, test_problems[:per_test])
    tests = sum(is_tested(parameters, i) for i in range(iterations + 1))
    gates = sum(_may_be_gated(parameters, i) for i in range(iterations)) * trains
    attack_episodes = 0
    if parameters.choice is not None or parameters.tests_apart:
        attack_episodes = len(plan_episodes(parameters, problems["test"], ATTACK, iterations))
        attack_episodes *= 1 + parameters.tests_apart  # before any training, and the worst provers
    counts = _Counts(
        per_iteration,
        test=tests * per_test * times,
        gate=gates * 2 * len(problems["validation"]) * times,
        attack=attack_episodes,
    )
    # 2. The calls and tokens of it.
    played_problems = [
        *problems["train"],
        *problems["test"],
        *(test_problems if parameters.tests_apart else ()),
    ]
    size = sum(len(text.encode()) for p in played_problems for text in p.texts.values())
    problem_tokens = size // max(len(played_problems), 1) // BYTES_PER_TOKEN
    prompts, counted_agents = count_first_prompts(game, played_problems)
    longest = {agent: max(n, problem_tokens + _PROMPT_TOKENS) for agent, n in prompts.items()}
    bounds = _totals(_AtMost(game, problems["train"], longest), counts)
    expectation = _Expected(game, problems["train"], prompts, experience)
    expected = _totals(expectation, counts)
    bounds.cover(expected)  # what runs took has answers that were asked for again
    # 3. Room on the disk, for all texts and for tokens on record.
    episodes = playing * per_iteration + counts.test + counts.gate + counts.attack
    text = episodes * (problem_tokens + _PROMPT_TOKENS) + bounds.completion_tokens
    disk_bytes = text * BYTES_PER_TOKEN + bounds.recorded_tokens * _BYTES_PER_RECORDED_TOKEN
    return Estimate(
        iterations=iterations,
        train_episodes=playing * per_iteration,
        test_episodes=counts.test,
        gate_episodes=counts.gate,
        attack_episodes=attack_episodes,
        calls=round(bounds.calls),
        prompt_tokens=round(bounds.prompt_tokens),
        completion_tokens=round(bounds.completion_tokens),
        training_tokens=round(bounds.training_tokens),
        usd=bounds.usd(parameters),
        expected_calls=round(expected.calls),
        expected_prompt_tokens=round(expected.prompt_tokens),
        expected_completion_tokens=round(expected.completion_tokens),
        expected_training_tokens=round(expected.training_tokens),
        expected_training_by_group={name: round(n) for name, n in expected.training.items()},
        read_examples={
            group: count_read_examples(parameters, group, per_iteration)
            for group in (parameters.trainable_groups if trains else ())
        },
        expected_usd=expected.usd(parameters),
        expected_by=expectation.in_words(counted_agents),
        is_rough=expectation.is_rough,
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
    """Expected loads: each list has one entry, by earlier runs, or else the mean."""

    assumed = EXPECTED

    def __init__(
        self,
        game: Game,
        train: Sequence[Problem],
        prompts: Mapping[str, float],
        experience: Experience,
    ) -> None:
        super().__init__(game, train, prompts)
        self._known, self._keys = experience, Keys.of(game.parameters.to_dict())
        self._guessed = average_loads(self._by_seed)
        self.is_rough = False

    def plain(self) -> list[Loads]:
        return [self._as_taken(self._keys.game, self._guessed)]

    def chosen(self) -> list[Loads]:
        assumptions = (self._prompts, self.assumed, self._known.repeated)
        has_own_calls = any(
            self.game.drawn_again(make_situation(problem, None, 0), 0)
            for problem in self._train[:1]
        )
        each = [
            reckon_choice_means(self.game, seed, *assumptions, has_own_calls=has_own_calls)
            for seed in range(_SEEDS)
        ]
        return [self._as_taken(self._keys.choices, average_loads(each))]

    def trees(self, iteration: int) -> list[Loads]:
        return [self._as_taken(self._keys.trees, average_loads(super().trees(iteration)))]

    def _as_taken(self, key: str, guessed: Loads) -> Loads:
        """Return known loads, completed by guesses; without any, the guess, scaled.

        It is made as
        much larger or smaller as the guess for plain episodes is known to be wrong.
        """
        episodes, loads = self._known.episodes, self._known.episodes.get(key)
        if loads is None:
            self.is_rough = True
            reference = episodes.get(self._keys.game, self._guessed)
            return {
                a: load.scaled(self._guessed[a], reference.get(a, load))
                for a, load in guessed.items()
            }
        return {a: load.scaled(load, loads.get(a, Load())) for a, load in guessed.items()}

    def trained(self, iteration: int, loads: Loads) -> Mapping[str, float]:
        parameters = self.game.parameters
        method = parameters.method(iteration)
        by_group = self._known.trained.get(self._keys.training, {})
        imitates = parameters.imitates(iteration)  # of which every message is trained on
        is_all = imitates or method == "trajectories"
        share = 1.0 if is_all else self.assumed.share_chosen
        tokens = {}
        for group, guess in reckon_training_tokens(parameters, iteration, loads).items():
            tokens_per_pass = None if imitates else by_group.get(f"{group} {method}")
            if tokens_per_pass is None and guess:
                self.is_rough = True
            times = count_passes(parameters, iteration, group) * bool(guess)
            tokens[group] = share * guess if tokens_per_pass is None else times * tokens_per_pass
        return tokens

    def in_words(self, counted_agents: Collection[str]) -> str:
        """Say by which runs or guesses it was reckoned."""
        if not self.is_rough:
            return f"by {self._known.source}"
        prompts = "prompts at four bytes a token"
        if counted_agents:
            prompts = f"prompts of {', '.join(sorted(counted_agents))} counted in tokens"
        guessed = f"{prompts}, messages half as long as they may be"
        if self._known.source:
            guessed = f"by {self._known.source}, which did not do all of this"
        return f"roughly: {guessed}"


def _totals(assumption: _AtMost, counts: _Counts) -> _Totals:
    """Add up what the whole run takes."""
    parameters = assumption.game.parameters
    iterations = parameters.rl.num_iterations
    trains = parameters.base_run.base_run_type != "rerun_tests"
    totals = _Totals(training=dict.fromkeys(parameters.trainable_groups if trains else (), 0.0))
    # 1. Episodes that are evaluated, as they are.
    if counts.test + counts.gate:
        totals.add(parameters, counts.test + counts.gate, assumption.plain())
    if counts.attack:
        is_chosen = parameters.choice is not None
        totals.add(
            parameters, counts.attack, assumption.chosen() if is_chosen else assumption.plain()
        )
    # 2. Episodes of training, and the tokens that are trained on.
    for iteration in range(iterations * trains):
        method = parameters.method(iteration)
        possible = assumption.trees(iteration) if method == "dpo" else assumption.plain()
        is_imitation = parameters.imitates(iteration)
        count = count_imitated(parameters) if is_imitation else counts.per_iteration
        if not is_imitation:
            totals.add(parameters, count, possible)
        loads = max(possible, key=count_all_tokens)
        for group, tokens in assumption.trained(iteration, loads).items():
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
    agents_by_group = (
        parameters.training_agents(g, iteration) for g in parameters.trainable_groups
    )
    return parameters.promotion.enabled and any(agents_by_group)


def _usd(parameters: HyperParameters, loads: Loads) -> float:
    """US dollars for the calls of one episode or tree; no price may be missing."""
    tokens = {name: (load.prompt_tokens, load.completion_tokens) for name, load in loads.items()}
    return price_calls(parameters, tokens) or 0.0
