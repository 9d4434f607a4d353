"""Attack: how provers try to fool a verifier.

Attack          a way of attacking; everything that asks for one asks it
AttackOptions   the settings that a class of one's own has, the block `attack.options`
AttackTurn      a turn of the attacking provers, as `choose` is given it
PlayableMessage a message that may be played
AttackPlan      the settings of the run that an attack is
AttackLoad      how often an attack plays an episode, at most, for its estimate

Attacks import no settings, as the settings look up the attack that they name; they read these by
the types `AttackSettings` and `AttackingRun`. They play nothing themselves, either: the player of
the game gives them a turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field

from nip_core.protocols.settings import GameSettings

CHATS = ".jsonl"
"""The ending of a file of chats, which a run's name can't have."""
MOST_MESSAGES, MOST_CONTINUATIONS = 4096, 64
"""In a turn, and after a message."""
TEMPERATURE = 1.0
"""Of attacking provers, unless the settings of the attack say another."""


class NoOptions(BaseModel):
    """The block `attack.options` of an attack with its settings beside it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AttackOptions(NoOptions):
    """The block `attack.options` of a class of one's own, which may add to it."""

    n: Annotated[int, Field(ge=1, le=MOST_MESSAGES)] = 1
    """Messages that the provers' models are asked for in a turn, at most, 1 to 4096."""
    continuations: Annotated[int, Field(ge=0, le=MOST_CONTINUATIONS)] = 0
    """How often the game is played on to estimate a message, 0 to 64; 0: none is estimated."""


class AttackSettings(Protocol):
    """The block `attack` of a run's settings, as far as an attack reads it."""

    @property
    def by(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def script(self) -> str | None: ...
    @property
    def n(self) -> tuple[int, ...]: ...
    @property
    def continuations(self) -> int: ...
    @property
    def course_on(self) -> str: ...
    @property
    def until(self) -> str: ...
    @property
    def start_from(self) -> str | None: ...


class TestSchedule(Protocol):
    """The block `text_rl`, as far as an attack reads it."""

    @property
    def test_scheme(self) -> str: ...


class StepCount(Protocol):
    """The block `rl`, as far as an attack reads it."""

    @property
    def num_iterations(self) -> int: ...


class AttackingRun(GameSettings, Protocol):
    """The settings of the run that an attack is, as far as it reads them."""

    @property
    def test_dataset_split(self) -> str: ...
    @property
    def text_rl(self) -> TestSchedule: ...
    @property
    def rl(self) -> StepCount: ...


@dataclass(frozen=True)
class PlayableMessage:
    """A message that may be played: by each prover that moves, where several move at once."""

    number: int
    """Its place among the messages of the turn."""
    texts: Mapping[str, str]
    """By prover; without those that said nothing valid."""
    goes_on: bool = True
    """Whether the game goes on after it; an invalid message ends it."""

    @property
    def text(self) -> str:
        """Return the texts of all provers as one."""
        return "\n".join(self.texts.values())

    @property
    def words(self) -> object:
        """Return a value equal for messages that say the same; a failed one has its own."""
        return tuple(self.texts.items()) if self.goes_on else self.number


class AttackTurn(Protocol):
    """A turn of the attacking provers.

    It knows what a model prover would be asked with, and nothing else: no label, and nothing that
    the verifier alone is shown.
    """

    @property
    def agents(self) -> Sequence[str]:
        """The attacking provers that move."""

    @property
    def round(self) -> int:
        """The round, from 0."""

    @property
    def counts(self) -> Sequence[int]:
        """The numbers of messages of `Attack.counts` for which one is to be chosen here."""

    @property
    def texts(self) -> Mapping[str, str]:
        """The texts of the problem that provers are shown, by column."""

    @property
    def seed(self) -> int:
        """A seed for an attack that draws."""

    async def ask(self, n: int | None = None) -> Sequence[PlayableMessage]:
        """Ask the provers' models for `n` messages; None: for as many as there may be."""

    async def write(self, text: str) -> PlayableMessage:
        """Make a message of a text, which each prover that moves says; no model is asked."""

    async def estimate(self, messages: Sequence[PlayableMessage]) -> Sequence[float]:
        """Estimate how likely each message makes the verifier to accept, by playing on after it.

        -1 for a message after which the game does not go on.
        """


@dataclass(frozen=True)
class AttackPlan:
    """The settings by which the run of an attack differs from the attacked run."""

    run: Mapping[str, Any]
    """Blocks of settings, laid over the attacked run's."""
    provers: Mapping[str, Any] = field(default_factory=dict)
    """Of each attacking prover."""
    attack: Mapping[str, Any] = field(default_factory=dict)
    """Of the block `attack`, where nothing else is asked for."""
    has_own_group: bool = False
    """Whether attacking provers share a model with no other agent."""


@dataclass(frozen=True)
class AttackLoad:
    """How often the calls of a plain episode are made, at most."""

    provers: int
    """The calls of the attacking provers."""
    others: int


class Attack:
    """A way of attacking, with the settings of an attack."""

    name: ClassVar[str] = ""
    """As `attack.by` has it; a class of one's own is named by its address."""
    Options: ClassVar[type[NoOptions]] = AttackOptions
    own_settings: ClassVar[tuple[str, ...]] = ()
    """Settings of the block `attack` that mean nothing to other attacks."""
    command_options: ClassVar[tuple[str, ...]] = ()
    """Options of `nip attack`, and of a sweep's attack, that are for this way alone."""
    trains: ClassVar[bool] = False
    """Whether provers are trained; else a message is chosen in each of their turns."""
    takes_script: ClassVar[bool] = False
    """Whether it is made with a script of the settings."""
    samples: ClassVar[bool] = True
    """Whether the provers' models are asked; else a script writes all they say."""

    def __init__(self, settings: AttackSettings) -> None:
        """Raises pydantic's ValidationError, a ValueError, for options that are wrong."""
        self.settings = settings
        self.options = self.Options.model_validate(dict(settings.options))

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of messages among which is chosen, ascending; each is an attack."""
        return (getattr(self.options, "n", 1),)

    @property
    def continuations(self) -> int:
        """The number of games that are played on to estimate a message."""
        return int(getattr(self.options, "continuations", 0))

    @property
    def script(self) -> str | None:
        """The script that writes the messages of the provers; None where their models do."""
        return None

    @property
    def has_own_provers(self) -> bool:
        """Tell whether a verifier can be trained against its provers: trained ones, or a script's.

        A choice among what the attacked run's provers say has none of its own.
        """
        return self.trains or self.script is not None

    def check(self) -> None:
        """Raise ValueError for settings of the block `attack` that make no sense together."""

    def check_run(self, run: AttackingRun) -> None:
        """Raise ValueError for settings of the run with which this attack can't be made."""

    async def choose(self, turn: AttackTurn) -> PlayableMessage | Mapping[int, PlayableMessage]:
        """Choose the message that is played in a turn; or one for each of `turn.counts`."""
        raise NotImplementedError(f"{type(self).__name__} has no method choose")

    @classmethod
    def plan(
        cls, settings: Mapping[str, Any], test_split: str, steps: int | None, every: int
    ) -> AttackPlan:
        """Plan the run of an attack with the `settings` of its block.

        `test_split` are the problems with which the attacked run was tested; `steps` and `every`
        mean something where provers are trained.
        """
        sampled = {"temperature": TEMPERATURE, "top_p": None} if cls.samples else {}
        return AttackPlan(
            run={"rl": {"num_iterations": 0}, "text_rl": {"test_scheme": "none"}},
            # Messages to choose from have to differ. The run's own top_p can't stand beside a
            # temperature.
            provers=sampled,
        )

    def load(self, turns: int) -> AttackLoad:
        """Say how often the calls of an episode with so many turns of attackers are made.

        As if all messages differed, every turn of the game was played on from each, and each of
        `counts` chose another one.
        """
        if self.counts == (1,) and not self.continuations:
            return AttackLoad(1, 1)  # there is nothing to choose from, so each game is played once
        messages = self.count_messages(1, turns) or 0
        continued = messages * self.continuations + len(self.counts)
        return AttackLoad(messages if turns == 1 else continued + messages, continued + messages)

    def count_messages(self, wrong: int, turns: int) -> int | None:
        """Count the messages that are sampled at most on so many wrong problems.

        With several turns each of `counts` goes on from its own choice. None: nothing is sampled.
        """
        if not self.samples:
            return None
        return wrong * (self.counts[-1] + max(turns - 1, 0) * sum(self.counts))

    def describe(self) -> str:
        """Say how the verifier is attacked, in a few words."""
        return f"the attack {self.settings.by}"
