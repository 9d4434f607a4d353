"""The plan of a sweep of judges: several judges, some splits of the rows, the same attacks.

read_sweep_plan  a YAML file -> JudgeSweep
JudgeSweep       judges, seeds, hypotheses and the options of all attacks
SweepHypothesis  a statement about two judges: a claim, or the gate of claims
ModelAttack      an attack by a model, beside the wordings
SweptAttack      a judge with a seed, whose attack has a name of its own

    sweep: graders
    judges: {old: judge.yaml, strict: stricter.yaml, answer-first: require-answer}
    seeds: [0, 1, 2]        # splits of the rows in those for choosing and those of the test
    hold_out: true
    hypotheses:
      - {judge: answer-first, against: old, figure: wrong_accepted_held_out, direction: below}
      - {judge: answer-first, against: old, gate: right_rejected, margin: 0.03}
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from nip_base.formats.bounds import ReadError
from nip_base.formats.untrusted import parse_yaml, read_text
from nip_core.errors import SettingsError
from nip_core.nearest import did_you_mean
from nip_core.run_store.run import RUN_NAME
from nip_judges.judges import VARIANTS
from nip_judges.settings.file_errors import describe_error
from nip_judges.settings.judge_settings import Settings
from nip_judges.settings.yaml_lines import Written, read_written

SweepFigure = Literal[
    "wrong_accepted",
    "wrong_accepted_worst",
    "wrong_accepted_worst_own",
    "wrong_accepted_held_out",
    "wrong_accepted_held_out_own",
    "right_rejected",
]
"""Shares of the test rows. As they are: ``wrong_accepted`` and ``right_rejected``. Under the
wording that fooled the judge `against` most in choosing, which both are shown: ``…_worst``, and of
the kinds held out ``…_held_out``. Each judge under the wording that fooled itself most:
``…_own``, which no hypothesis is about: two choices differ by chance, and then all questions do."""
FIGURES: tuple[SweepFigure, ...] = get_args(SweepFigure)
OWN = "_own"
MARGIN = 0.03
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=100)]
_YAML = (".yaml", ".yml")


class SweepHypothesis(Settings):
    """A statement about two judges of a sweep."""

    judge: str
    against: str
    figure: SweepFigure | None = None
    """Of a claim."""
    direction: Literal["below", "above"] | None = None
    """Of `judge`, as against `against`: the whole 95 % interval lies there."""
    gate: SweepFigure | None = None
    """The figure of a gate: no claim about these two judges is shown unless it is met."""
    margin: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Of a gate: so much more the one-sided upper 95 % bound may be; 0.03 where left out."""

    @model_validator(mode="after")
    def _check(self) -> "SweepHypothesis":
        if (self.figure is None) == (self.gate is None):
            raise ValueError("write either figure, for a claim, or gate")
        if (self.figure is None) != (self.direction is None):
            raise ValueError("direction (below or above) belongs to figure, and figure needs it")
        if self.gate is None and self.margin is not None:
            raise ValueError("margin belongs to gate")
        if self.measure.endswith(OWN):
            raise ValueError(
                f"{self.measure} is shown, not tested: two wordings that were chosen apart differ "
                f"by chance, for all questions at once; take {self.measure.removesuffix(OWN)}"
            )
        if self.judge == self.against:
            raise ValueError(f"judge and against are both {self.judge}; name two")
        return self

    @property
    def measure(self) -> SweepFigure:
        """Return the figure of the claim, or of the gate."""
        figure = self.figure or self.gate
        assert figure is not None  # it was checked
        return figure

    @property
    def limit(self) -> float:
        """Return the margin of a gate."""
        return MARGIN if self.margin is None else self.margin


class ModelAttack(Settings):
    """An attack by a model that writes against each judge, with the options of `nip attack`."""

    by: Literal["best-of-n", "sneaky"]
    attacker: str | None = None
    n: Annotated[list[int], Field(min_length=1)] | None = None
    steps: Annotated[int, Field(ge=1)] | None = None
    until: Literal["steps", "plateau"] | None = None

    @field_validator("n")
    @classmethod
    def _check_rising(cls, n: list[int] | None) -> list[int] | None:
        if n is not None and (min(n) < 1 or sorted({*n}) != n):
            raise ValueError(f"n must ascend from 1 or more (got {n})")
        return n


class SweepFile(Settings):
    """The content of a plan's file."""

    sweep: Name
    judges: Annotated[dict[Name, str], Field(min_length=2, max_length=50)]
    """By name a judge's file, seen from this one, or a bundled variant of the first. The first one
    is the baseline, and a file."""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=100)] = (
        Field(default_factory=lambda: [0])
    )
    hold_out: bool = False
    kinds: Annotated[list[str], Field(min_length=1)] | None = None
    script: str | None = None
    problems: Annotated[int, Field(ge=1)] | None = None
    attacks: Annotated[dict[Name, ModelAttack], Field(max_length=20)] = Field(default_factory=dict)
    """By name attacks by models, beside the wordings, each against its own judge: shown, not
    tested."""
    run_store: str = "runs"
    hypotheses: list[SweepHypothesis] = Field(default_factory=list)

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: list[int]) -> list[int]:
        if len({*seeds}) < len(seeds):
            raise ValueError(f"each seed once (got {seeds})")
        return seeds

    @field_validator("hypotheses")
    @classmethod
    def _check_once(cls, hypotheses: list[SweepHypothesis]) -> list[SweepHypothesis]:
        if len({*hypotheses}) < len(hypotheses):
            raise ValueError("each hypothesis once; the same one stands there twice")
        return hypotheses

    @model_validator(mode="after")
    def _check_names(self) -> "SweepFile":
        baseline, first = next(iter(self.judges.items()))
        if first in VARIANTS:
            raise ValueError(
                f"judges.{baseline}: the first judge is the baseline, and a judge's file; variants "
                "are variants of it"
            )
        for place, hypothesis in enumerate(self.hypotheses):
            for name in (hypothesis.judge, hypothesis.against):
                if name not in self.judges:
                    hint = did_you_mean(name, self.judges)
                    raise ValueError(f"hypotheses.{place}: no judge {name!r} in this plan{hint}")
            if "held_out" in hypothesis.measure and not self.hold_out:
                raise ValueError(f"hypotheses.{place}: {hypothesis.measure} needs hold_out: true")
        return self


@dataclass(frozen=True)
class SweptAttack:
    """A judge with a seed, and the name of its attack."""

    judge: str
    seed: int
    name: str
    way: str = ""
    """The name of an attack by a model; "" for wordings."""


@dataclass(frozen=True)
class JudgeSweep:
    """A plan that was read and checked."""

    path: Path
    file: SweepFile
    overrides: tuple[str, ...]
    run_store: str

    @property
    def name(self) -> str:
        return self.file.sweep

    @property
    def folder(self) -> Path:
        """Return where the declaration and the results are."""
        return Path(self.run_store) / "sweeps" / self.name

    @property
    def judges(self) -> tuple[str, ...]:
        return tuple(self.file.judges)

    @property
    def baseline(self) -> str:
        return self.judges[0]

    @property
    def attacks(self) -> tuple[SweptAttack, ...]:
        """List the attacks: by way and seed all judges, the baseline first."""
        names = {way: f"-{way}" if way else "" for way in ("", *self.file.attacks)}
        return tuple(
            SweptAttack(judge, seed, f"{self.name}-{judge}-{seed}{end}", way)
            for way, end in names.items()
            for seed in self.file.seeds
            for judge in self.judges
        )

    @property
    def script(self) -> str | None:
        """Return the address of the user's own wordings, seen from the plan's file."""
        script = self.file.script
        return None if script is None else str(self.path.parent / script)

    def find_judge(self, judge: str) -> tuple[Path, str | None]:
        """Find the file of a judge, and the name of the variant of it, if it is one."""
        value = self.file.judges[judge]
        if value in VARIANTS:
            return self.path.parent / self.file.judges[self.baseline], value
        return self.path.parent / value, None


def list_pairs(
    judges: Sequence[str], hypotheses: Iterable[SweepHypothesis]
) -> list[tuple[str, str]]:
    """List the pairs that are compared: each judge with the first, then those of hypotheses."""
    pairs = [(judge, judges[0]) for judge in judges[1:]]
    pairs += [(one.judge, one.against) for one in hypotheses]
    return list(dict.fromkeys(pairs))


def read_sweep_plan(path: Path, overrides: Sequence[str] = ()) -> JudgeSweep:
    """Read a plan. `overrides` are of all judges' files, and `run_store=…` of the plan.

    Raises SettingsError, one line.
    """
    try:
        text = read_text(path)
        values = parse_yaml(text)
    except ReadError as error:
        raise SettingsError(f"{path}: {' '.join(str(error).split())}") from None
    marks = read_written(text) if isinstance(values, dict) else Written({}, {})
    try:
        file = SweepFile.model_validate(values)
    except ValidationError as error:
        raise SettingsError(describe_error(error, str(path), marks, SweepFile)) from None
    stores = [one for one in overrides if one.startswith("run_store=")]
    store = stores[-1].partition("=")[2].strip() if stores else file.run_store
    if "://" in store:
        raise SettingsError(f"run_store={store}: attacks on judges are kept in a folder")
    overrides_of_files = tuple(one for one in overrides if one not in stores)
    if any(one.partition("=")[0].strip() == "seed" for one in overrides_of_files):
        raise SettingsError(f"--set seed: the seeds of a sweep stand in {path}, as seeds: [0, 1]")
    plan = JudgeSweep(path, file, overrides_of_files, store)
    for name, value in file.judges.items():
        if value not in VARIANTS and Path(value).suffix not in _YAML:
            hint = did_you_mean(value, VARIANTS)
            line = marks.find_line(("judges", name))
            raise SettingsError(
                f"{path}, line {line}: judges.{name}: {value!r} is neither a judge's file (.yaml) "
                f"nor one of {', '.join(VARIANTS)}{hint}"
            )
    for attack in plan.attacks:
        if not RUN_NAME.fullmatch(attack.name):
            raise SettingsError(
                f"{path}: the attack {attack.name!r} has {len(attack.name)} characters, at most 41 "
                "are possible; give sweep or judge a shorter name"
            )
    return plan
