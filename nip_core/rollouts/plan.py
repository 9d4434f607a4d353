"""The episodes of a split: a pure function of settings, problems and iteration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict

from nip_core.game.answer_rows import AnswerPlace
from nip_core.hashing import derive_key, derive_seed
from nip_core.parameters import HyperParameters
from nip_core.scenarios import NO_LABEL, Problem

TRAIN, VALIDATION, TEST = SPLITS = ("train", "validation", "test")
CANDIDATE = "candidate"
"""The split in which the models that an iteration has trained play its validation episodes; in
``validation`` the models that have played the iteration do."""
ATTACK = "attack"
"""The split in which provers attack the verifier on test problems: by chosen messages, see
`message_choice`; or, once trained, as they are."""
EVERY_SPLIT = (TEST, TRAIN, VALIDATION, CANDIDATE, ATTACK)
"""All that an iteration may have, in the order in which they are shown."""


OpponentKey = int | str
"""The first iteration that an earlier model has played, or the name of another run."""


class SplitPlan(BaseModel):
    """``plan.json`` of a split: its episodes and shards."""

    model_config = ConfigDict(frozen=True)

    episodes: int
    episodes_per_shard: int
    plan_digest: str
    """Over the keys of the episodes."""

    @property
    def shards(self) -> tuple[str, ...]:
        """Name the shards in order."""
        count = -(-self.episodes // self.episodes_per_shard)
        return tuple(f"{i:04d}" for i in range(count))


@dataclass(frozen=True)
class EpisodeSpec:
    """One episode to play. Keys carry the run's name, seeds don't: equal seeds, equal data."""

    key: str
    run: str
    split: str
    iteration: int
    problem: Problem
    sample: int  # counts the plays of this problem in this split's order
    seed: int  # of the situation: who is drawn to speak, and the like
    stance: int | None
    branch_path: str = ""
    seeds_of: str | None = None  # the split whose seeds its calls have; None: its own
    opponent: str | None = None  # whom an earlier model or another run plays, see `league`
    opponent_iteration: int | None = None  # the first that this model has played
    opponent_run: str | None = None  # the other run; None: this one

    @property
    def opponent_key(self) -> "OpponentKey | None":
        """Tell which opponent plays; None: all play with present models."""
        return self.opponent_iteration if self.opponent_run is None else self.opponent_run

    def generation_key(self, place: AnswerPlace) -> str:
        """Make the identity of one model call of this episode."""
        return derive_key("generation", self.run, *self._node(self.split), *place.name_parts)

    def generation_seed(self, base_seed: int, place: AnswerPlace) -> int:
        """Make the sampling seed of one model call of this episode."""
        node = self._node(self.seeds_of or self.split)
        return derive_seed("generation", base_seed, *node, *place.name_parts)

    def _node(self, split: str) -> tuple[str | int, ...]:
        return (split, self.iteration, self.problem.id, self.sample, self.branch_path)


def plan_episodes(
    parameters: HyperParameters, problems: Sequence[Problem], split: str, iteration: int
) -> list[EpisodeSpec]:
    """Plan the episodes of a split, in a stable order.

    Training takes the next `rollouts_per_iteration` problems of an endless sequence of shuffled
    passes, so each problem is played once before any is played twice. Where episodes are compared
    (trainer pure_text_grpo), a problem is played `group_size` times in a row instead, and an
    iteration takes so many times fewer problems. Tests play every problem `num_test_iterations`
    times, or by setting as many problems as an iteration. An attack plays wrong problems and as
    many right ones, as often as tests do; so do the tests of a run that attacks by training.
    """
    ordered = sorted(problems, key=lambda p: p.id)
    plays: list[tuple[Problem, int]]
    if split == "train":
        size = group_size(parameters, split)
        count = len(ordered)
        if parameters.rollouts_per_iteration is not None:
            count = parameters.rollouts_per_iteration // size
        passes = _take_from_passes(ordered, parameters.seed, iteration * count, count)
        plays = [
            (problem, pass_ * size + member) for problem, pass_ in passes for member in range(size)
        ]
    else:
        times = parameters.rl.num_test_iterations
        if split == ATTACK or (split == TEST and parameters.target_run is not None):
            ordered = _choose_attacked(parameters, ordered)
        elif split == "test" and not parameters.text_rl.test_on_whole_dataset:
            count = parameters.rollouts_per_iteration or len(ordered)
            ordered = _shuffle(ordered, parameters.seed, split)[:count]
        plays = [(problem, sample) for sample in range(times) for problem in ordered]
    return [
        episode_spec(parameters, split, iteration, problem, sample) for problem, sample in plays
    ]


def list_splits(parameters: HyperParameters) -> tuple[str, ...]:
    """List the splits that are played with the models at hand, without any training."""
    return SPLITS if parameters.target_run is None else (*SPLITS, ATTACK)


def find_played_problems(
    parameters: HyperParameters, problems: Mapping[str, Sequence[Problem]], split: str
) -> Sequence[Problem]:
    """Find the problems of a split's episodes, by the dataset's splits in `problems`."""
    source_split = name_played_problems(parameters, split)
    return problems[TEST if source_split == ATTACK else source_split]


def name_played_problems(parameters: HyperParameters, split: str) -> str:
    """Name the dataset's split, or the purpose, of a split's problems, for the user who watches."""
    if parameters.tests_apart:
        return {TEST: VALIDATION, ATTACK: TEST}.get(split, split)
    return split


def may_choose(split: str) -> bool:
    """Tell whether the split is one in which messages may be chosen."""
    return split == ATTACK


def is_final_test(parameters: HyperParameters, split: str, iteration: int) -> bool:
    """Tell whether a split is the last test of an attack by training.

    The provers that did worst in the earlier tests play it.
    """
    return split == ATTACK and iteration > 0 and parameters.tests_apart


def _choose_attacked(parameters: HyperParameters, ordered: list[Problem]) -> list[Problem]:
    """Choose the problems of an attack: wrong ones, and as many right ones if there are enough.

    All wrong ones are taken, or as many as the settings say.
    """
    by_label = {
        y: _shuffle([p for p in ordered if p.y == y], parameters.seed, ATTACK) for y in (0, 1)
    }
    wrong = by_label[0][: parameters.attack.problems]
    return sorted([*wrong, *by_label[1][: len(wrong)]], key=lambda p: p.id)


def group_size(parameters: HyperParameters, split: str) -> int:
    """Tell how many episodes of a problem are compared with each other; 1 where none are.

    Samples 0 to n - 1 of a problem are its first group, n to 2 n - 1 the second, and so on.
    """
    compares = split == "train" and parameters.trainer == "pure_text_grpo"
    return parameters.pure_text_grpo.group_size if compares else 1


def _take_from_passes(
    ordered: list[Problem], seed: int, start: int, count: int
) -> list[tuple[Problem, int]]:
    plays: list[tuple[Problem, int]] = []
    pass_ = start // len(ordered)
    while len(plays) < count:
        shuffled = _shuffle(ordered, seed, pass_)
        first = max(0, start - pass_ * len(ordered))
        plays += [(problem, pass_) for problem in shuffled[first:]]
        pass_ += 1
    return plays[:count]


def _shuffle(problems: list[Problem], seed: int, order_name: str | int) -> list[Problem]:
    return sorted(problems, key=lambda p: derive_key("order", seed, order_name, p.id))


def episode_spec(
    parameters: HyperParameters, split: str, iteration: int, problem: Problem, sample: int
) -> EpisodeSpec:
    """Plan one episode of a split, with its key, seed and stance.

    The episodes of a group have the seed of their first one, and one stance: the same prover is
    drawn to speak (merlin_arthur), channels are shown in the same order, names are dealt alike. So
    their rewards differ only by the models' answers, for which every call has a seed of its own.
    """
    first = sample - sample % group_size(parameters, split)
    place = (split, iteration, problem.id, sample, "")
    stance = None
    if parameters.protocol_common.randomize_prover_stance:
        # A solution that is still to be written can't decide the draw, so its place does.
        drawn_by: tuple[str | int, ...] = (problem.solution,)
        if problem.y == NO_LABEL:
            drawn_by = (parameters.seed, split, iteration, problem.id, first)
        stance = derive_seed("stance", *drawn_by) & 1
    return EpisodeSpec(
        key=derive_key("episode", parameters.run_name, *place),
        run=parameters.run_name,
        split=split,
        iteration=iteration,
        problem=problem,
        sample=sample,
        seed=derive_seed("episode", parameters.seed, split, iteration, problem.id, first, ""),
        stance=stance,
    )


def replay_episodes(specs: Sequence[EpisodeSpec], split: str) -> list[EpisodeSpec]:
    """Plan the same episodes, seeds included, for a split of another name and its models."""
    return [
        replace(
            spec,
            key=derive_key(
                "episode", spec.run, split, spec.iteration, spec.problem.id, spec.sample, ""
            ),
            split=split,
            seeds_of=spec.split,
        )
        for spec in specs
    ]


def shuffle_labels(problems: Sequence[Problem], seed: int) -> list[Problem]:
    """Draw the labels of the problems by a stable hash: the control in which nothing is learned."""
    return [replace(p, y=derive_seed("label", seed, p.id) & 1) for p in problems]


def cut_into_shards(
    specs: Sequence[EpisodeSpec], episodes_per_shard: int
) -> list[list[EpisodeSpec]]:
    """Cut a split into shards of at most `episodes_per_shard` episodes."""
    return [
        list(specs[i : i + episodes_per_shard]) for i in range(0, len(specs), episodes_per_shard)
    ]
