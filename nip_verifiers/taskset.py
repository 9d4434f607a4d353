"""The problems of a split as tasks of verifiers.

GameConfig      what is played, under ``env.taskset``
EpisodeTask     an episode: a play of a problem
ProblemTaskset  the episodes of a split, those of a run's iteration 0
"""

from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf
from pydantic import Field, PrivateAttr, model_validator

from nip_core.errors import NipError
from nip_core.game.render import Game
from nip_core.library.games import (
    PlayableGame,
    join_problem_text,
    make_game_parameters,
    open_game,
)
from nip_core.rollouts.plan import EpisodeSpec
from nip_core.scenarios import NO_LABEL
from nip_verifiers.seats import SeatState

PROGRAM = "verifiers"


class GameConfig(vf.TasksetConfig):
    """The game and its problems. A mistake is an error before the first request."""

    config: str | None = None
    """A YAML configuration, or the name of a bundled one, as for `nip play`; its models are not
    used."""
    protocol: str | None = None
    """nip, adp, debate, merlin_arthur, mnip, refereed, solo_verifier, multi_channel_test, or a
    class of one's own: path/to/file.py:Class or package.module:Class. None: that of `config`, else
    nip."""
    scenario: str | None = None
    """code_validation, arithmetic, bags, chain, graphs, reading, reasoning_gym, solutions, or
    a class of one's own. None: that of `config`, else code_validation."""
    dataset: str | None = None
    """A dataset of the scenario's own, a file or a directory. None: that of `config`, else the
    scenario's first."""
    split: str = "test"
    """train, validation or test."""
    seed: int | None = None
    """Every other seed derives from it, 0 to 2147483647. None: that of `config`, else 6198."""
    settings: list[str] = Field(default_factory=list)
    """Further settings, each as a.b=c, such as nip_protocol.max_message_rounds=5."""
    plays: int | None = Field(None, ge=1)
    """How often each problem is played, each time with seeds of its own. Not for the train split.
    None: as the settings say (rl.num_test_iterations)."""
    send_seeds: bool = True
    """Whether each call has its seed, so that an episode can be had again. With False, rollouts of
    a task differ."""

    _playable: PlayableGame = PrivateAttr()
    _specs: tuple[EpisodeSpec, ...] = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        """Take a single setting for a list of it."""
        if isinstance(data, dict) and isinstance(data.get("settings"), str):
            data = {**data, "settings": [data["settings"]]}
        return data

    @model_validator(mode="after")
    def _check(self) -> "GameConfig":
        lines = list(self.settings)
        if self.plays is not None:
            if self.split == "train":
                raise ValueError(
                    f"plays: an iteration of the train split plays what rl.rollouts_per_iteration "
                    f"says (got {self.plays}); leave it out"
                )
            lines.append(f"rl.num_test_iterations={self.plays}")
        try:
            parameters = make_game_parameters(
                PROGRAM,
                self.config,
                self.protocol,
                self.scenario,
                self.dataset,
                self.seed,
                lines,
            )
            self._playable = open_game(parameters.to_dict())
            self._specs = self._playable.plan(self.split)
        except NipError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def game(self) -> Game:
        """The game that is played."""
        return self._playable.game

    @property
    def specs(self) -> tuple[EpisodeSpec, ...]:
        """The episodes of the split, in the order of play."""
        return self._specs


class EpisodeData(vf.TaskData):
    """The episode's number, and the known facts of its problem."""

    split: str
    problem: str
    sample: int
    """Which play of the problem."""
    question_id: str
    y: int | None
    """The label; None where it is made in play. No agent sees it."""
    difficulty: str | None
    mutation: str | None


class EpisodeTask(vf.Task[EpisodeData, SeatState]):
    """An episode. Its rewards are the protocol's, so that the environment records them."""

    @property
    def key(self) -> str:
        return f"{self.data.split}/{self.data.problem}/{self.data.sample}"


class ProblemTaskset(vf.Taskset[EpisodeTask, GameConfig]):
    """The episodes of a split, in the order of play."""

    def load(self) -> Iterable[EpisodeTask]:
        """A task for each episode."""
        for spec in self.config.specs:
            yield EpisodeTask(data_of(self.config.game, spec), self.config.task)


def data_of(game: Game, spec: EpisodeSpec) -> EpisodeData:
    """Say of an episode what its task tells."""
    problem = spec.problem
    return EpisodeData(
        id=f"{problem.id}.{spec.sample}",
        name=problem.id,
        description=join_problem_text(game, problem.texts),
        split=spec.split,
        problem=problem.id,
        sample=spec.sample,
        question_id=problem.question_id,
        y=None if problem.y == NO_LABEL else problem.y,
        difficulty=problem.difficulty,
        mutation=problem.mutation,
    )
