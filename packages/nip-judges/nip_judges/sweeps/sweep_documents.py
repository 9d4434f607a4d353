"""The documents of a sweep of judges: facts.json and results.json.

SweepFacts     facts.json: everything that is no figure
SweepResults   results.json: every figure
SweptRates, SweptChange, TestedClaim, TestedGate   its parts

Shares are fractions of 1.
"""

from typing import Any, TypedDict

from pydantic import BaseModel, ConfigDict

from nip_judges.documents.judge_document import ChangeWords, RateWords
from nip_judges.figures.as_they_are import NoVerdict
from nip_judges.sweeps.sweep_plan import SweepHypothesis


class SweepFacts(BaseModel):
    """The document facts.json: everything about a sweep that is no figure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    format: int = 1
    sweep: str
    judges: dict[str, str]
    """By name the judge's own name: of its model, function or file."""
    order: tuple[str, ...]
    seeds: tuple[int, ...]
    all_rows: str
    kinds: tuple[str, ...]
    held_out: tuple[str, ...]
    ways: tuple[str, ...]
    """The names of attacks by models."""
    no_verdict: NoVerdict
    hypotheses: tuple[SweepHypothesis, ...]
    """Of the plan's file. Those of the declaration are tested."""
    runs: dict[str, str]
    """By the name of an attack the digest of all that decides its texts."""
    failures: dict[str, str]
    declaration: str | None
    """SHA-256 of it; None where nothing was declared."""
    departures: tuple[str, ...]
    earlier: tuple[str, ...]
    calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float | None


class KeyedRate(TypedDict):
    """A rate under one wording."""

    key: str
    rate: RateWords


class SeedRates(TypedDict):
    """A judge with a seed."""

    seed: int
    verdict: str
    """The first word about it."""
    wrong_accepted: RateWords | None
    right_rejected: RateWords | None
    no_verdict: float
    worst: KeyedRate | None
    """Under the wording that fooled it most in choosing."""
    held_out: KeyedRate | None
    """The same of the kinds held out."""


class SweptRates(TypedDict):
    """A judge of a sweep."""

    judge: str
    label: str
    seeds: list[SeedRates]


class KindRates(TypedDict):
    """A kind of wordings: wrong answers accepted over all seeds, by judge."""

    kind: str
    is_held_out: bool
    rates: dict[str, RateWords]
    """Each judge under the wording of the kind that fooled itself most in choosing; a judge of
    which a seed has no test is left out."""


class WayRates(TypedDict):
    """A judge under texts that a model wrote against it, of the strongest attack."""

    way: str
    judge: str
    rate: RateWords | None
    """Over all seeds; None where a seed has no test."""
    seeds: list[KeyedRate]


class SeedChange(TypedDict):
    """A difference in one seed."""

    seed: int
    key: str
    """The wording; of two judges under their own, both; "" as they are."""
    change: float


class SweptChange(TypedDict):
    """The difference of two judges over all seeds."""

    judge: str
    against: str
    figure: str
    mean: float | None
    """Over all rows of all seeds; None where a seed has no such test."""
    change: ChangeWords | None
    """With its interval; None, too, of two judges under their own wordings: each choice is chance
    of its own, which questions do not show."""
    seeds: list[SeedChange]


class TestedGate(TypedDict):
    """A gate: a bound on how much more a figure may be."""

    judge: str
    against: str
    figure: str
    margin: float
    change: ChangeWords | None
    bound: float | None
    """The one-sided upper 95 % bound."""
    p: float
    is_met: bool


class TestedClaim(TypedDict):
    """A claim, with the gates about the same two judges."""

    judge: str
    against: str
    figure: str
    direction: str
    change: ChangeWords | None
    p: float
    """The largest of its own and of its gates."""
    p_holm: float
    """Adjusted for all claims of the declaration."""
    meets_gates: bool | None
    """None where there is no gate."""
    is_shown: bool


class SweepResults(TypedDict):
    """The document results.json."""

    format: int
    sweep: str
    declaration: str | None
    declared_at: str | None
    tries: int
    """With this one."""
    earlier: list[str]
    departures: list[str]
    failures: dict[str, str]
    held_out: list[str]
    judges: list[SweptRates]
    kinds: list[KindRates]
    ways: list[WayRates]
    claims: list[TestedClaim]
    gates: list[TestedGate]
    differences: list[SweptChange]
    cost: dict[str, Any]
