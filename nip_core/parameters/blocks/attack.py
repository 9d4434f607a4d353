"""The settings of an attack on another run's verifier."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from nip_core.attacks import ATTACKS, USUAL_ATTACK, Attack, make_attack
from nip_core.attacks.base import CHATS
from nip_core.attacks.course import PLATEAU, STEPS, TEST, VALIDATION
from nip_core.hashing import canonical_json
from nip_core.parameters.basis.base import Parameters
from nip_core.parameters.basis.plain import PlainDict
from nip_core.parameters.blocks.base_run import RunName
from nip_core.parameters.blocks.loop_settings import ImitationParameters

Candidates = Annotated[int, Field(ge=1, le=4096)]
_OPTIONS = "options"


class AttackParameters(Parameters):
    """An attack on the verifier of another run (docs/attack.md). `nip attack` fills it in."""

    run: RunName | None = None
    """The run, in the same `run_store`, whose verifier is attacked. None: this run attacks none."""
    iteration: Annotated[int, Field(ge=0, le=9999)] = 0
    """The models that play this iteration there are attacked, 0 to 9999; 0: those that it began
    with."""
    by: Annotated[str, Field(min_length=1)] = USUAL_ATTACK
    """How: "best-of-n", of several messages the one is played that makes the verifier likeliest to
    accept; "sneaky", provers that begin with their base model are trained against the verifier;
    "script", a function writes the provers' messages. Or an attack of your own (docs/attack.md):
    "path/to/file.py:Class" or "package.module:Class"."""
    options: dict[str, Any] = Field(default_factory=dict)
    """For an attack of your own: the `Options` that its class declares, such as `n`, the
    messages that the provers' models are asked for in a turn."""
    script: Annotated[str, Field(min_length=1)] | None = None
    """For script: the function that writes the provers' messages. One that comes with the scenario,
    by its name (docs/attack.md), or one of your own: "path/to/file.py:function" or
    "package.module:function", which runs as your code, with all that you may do."""
    n: Annotated[tuple[Candidates, ...], Field(min_length=1)] = (1, 4, 16, 64)
    """For best-of-n: how many messages there are to choose from in each of a prover's turns, 1 to
    4096, in ascending order. Each number is an attack of its own; they share their messages."""
    problems: Annotated[int, Field(ge=1)] | None = None
    """Test with at most this many problems of each label, at least 1, chosen by a stable shuffle.
    None: every test problem that is wrong, and as many that are right."""
    continuations: Annotated[int, Field(ge=1, le=64)] = 4
    """For best-of-n: how often the game is played on after each different message to estimate how
    likely it is to be accepted, 1 to 64."""
    score_by: Literal["log_probs", "verdicts"] = "log_probs"
    """For best-of-n: the count of each of these continuations: "log_probs", the probability of
    acceptance at the word that decides (by the verdict, where an answer has no log-probabilities,
    and always with the deterministic engine); "verdicts", 1 or 0 by the verdict."""

    course_on: Literal["test", "validation"] = TEST
    """For sneaky: on which problems the provers are tested while they are trained. "validation",
    which `nip attack` sets: then test problems are played twice, before any training and with the
    provers that were the worst on validation problems. "test", as in earlier versions: then the
    worst prover is that of the lowest test, and its soundness is biased downwards."""
    until: Literal["steps", "plateau"] = STEPS
    """For sneaky: when training ends. "steps", after `rl.num_iterations` of them; "plateau", once
    more training takes no more soundness, or has nothing to learn from (docs/attack.md), and after
    so many at the latest, at least 30."""
    start_from: Annotated[str, Field(min_length=1)] | None = None
    """For sneaky: the messages that the provers imitate before they are trained, in a step of its
    own. A run in the same `run_store` with the same scenario and protocol, of which it is the
    messages that fooled a verifier; or a file of chats, "path/to/chats.jsonl" (docs/attack.md)."""
    imitate: Annotated[int, Field(ge=10, le=100_000)] = 200
    """With `start_from`: at most so many messages, or chats, for each attacking prover, 10 to
    100000."""
    imitation_epochs: Annotated[int, Field(ge=1, le=1000)] = 3
    """With `start_from`: passes over them, 1 to 1000."""
    exploited_at: Annotated[float, Field(gt=0, le=1)] = 0.5
    """For sneaky: the share, above 0, at most 1, of the soundness that the verifier had in its own
    run's test, from whose loss on it counts as exploited."""

    @property
    def way(self) -> Attack:
        """Return the attack as an object."""
        return make_attack(self)

    @property
    def start_file(self) -> str | None:
        """Return the file of chats that the provers imitate first; None for a run, or nothing."""
        is_file = self.start_from is not None and self.start_from.endswith(CHATS)
        return self.start_from if is_file else None

    @property
    def tests_worst(self) -> bool:
        """Tell whether provers are trained, and the worst by validation is tested."""
        # Without the object where the settings alone say it.
        return self.run is not None and self.course_on == VALIDATION and self.way.trains

    @property
    def may_end_early(self) -> bool:
        """Tell whether a verdict on its tests may end it before its most steps."""
        return self.until == PLATEAU

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(later <= earlier for earlier, later in zip(self.n, self.n[1:], strict=False)):
            raise ValueError(
                f"n must ascend, each number larger than the one before (got {list(self.n)})"
            )
        self._refuse_settings_of_others(self.way)
        for name in ("imitate", "imitation_epochs"):
            default = type(self).model_fields[name].default
            if self.start_from is None and getattr(self, name) != default:
                raise ValueError(f"{name}: no effect without start_from; set both, or leave it out")
        if self.run is None:
            plain = type(self).model_construct()
            changes = [n for n in type(self).model_fields if getattr(self, n) != getattr(plain, n)]
            if changes:
                raise ValueError(
                    f"{', '.join(changes)}: no effect without run, the run whose verifier is "
                    "attacked; name it, or leave this out"
                )
        return self

    @field_validator(_OPTIONS)
    @classmethod
    def _keep_plain(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Refuse values that are no JSON, as settings are kept as JSON: infinity, or a set."""
        for name, value in options.items():
            try:
                canonical_json(value)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{name} has to be text, a finite number, true or false, or a list or mapping "
                    f"of these (got {value!r}: {error})"
                ) from None
        return options

    def _refuse_settings_of_others(self, way: Attack) -> None:
        """Raise ValueError for a setting that only another attack reads."""
        for attack in ATTACKS:
            for name in attack.own_settings:
                default = type(self).model_fields[name].default
                if name not in way.own_settings and getattr(self, name) != default:
                    trains = "it trains nobody" if attack.trains else f"set by: {attack.name}"
                    raise ValueError(
                        f"{name}: no effect with by: {self.by}; {trains}, or leave it out"
                    )

    def to_dict(self) -> PlainDict:
        """Return the settings; `options` are among them where there are any."""
        # Settings of before there were any have the same digest.
        values = super().to_dict()
        if not self.options:
            del values[_OPTIONS]
        return values


class AttackQuestions:
    """Answers about the attack in a run's settings, or its beginning, for code that knows none."""

    if TYPE_CHECKING:
        attack: AttackParameters
        imitation: ImitationParameters

    @property
    def target_run(self) -> str | None:
        """Return the run whose verifier this one attacks; None for one that attacks none."""
        return self.attack.run

    @property
    def choice(self) -> Attack | None:
        """Return the attack by whose choice of messages the run is played; None for any other."""
        way = self.attack.way if self.attack.run is not None else None
        return None if way is None or way.trains else way

    @property
    def tests_apart(self) -> bool:
        """Tell whether tests by step are on validation problems, and those that count apart."""
        return self.attack.tests_worst

    @property
    def may_end_early(self) -> bool:
        """Tell whether a verdict on its tests may end the run before its last iteration."""
        return self.attack.may_end_early

    @property
    def imitated(self) -> str | None:
        """Return the run, or the file of chats, that agents imitate first; None: nothing."""
        return self.attack.start_from or self.imitation.chats

    @property
    def imitated_file(self) -> str | None:
        """Return the file of chats that agents imitate first; None for a run, or nothing."""
        return self.attack.start_file or self.imitation.chats

    @property
    def imitation_setting(self) -> str:
        """Name the setting that says what is imitated."""
        return "attack.start_from" if self.imitation.chats is None else "imitation.chats"

    @property
    def most_imitated(self) -> int:
        """Return how many messages, or chats, are imitated at most for each agent."""
        return self.attack.imitate if self.imitation.chats is None else self.imitation.most

    @property
    def imitation_epochs(self) -> int:
        """Return how often what is imitated is read."""
        is_attack = self.imitation.chats is None
        return self.attack.imitation_epochs if is_attack else self.imitation.epochs

    def imitates(self, iteration: int) -> bool:
        """Tell whether the run begins with imitation in this iteration, and plays nothing."""
        return iteration == 0 and self.imitated is not None
