"""The differences of two runs: settings, code, data, models and results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nip_core.errors import DatasetError
from nip_core.evaluation.split_metrics import Interval95
from nip_core.parameters.basis.plain import Plain
from nip_core.run_store.settings_difference import ABSENT, flatten
from nip_study.compare.played import LABELS, PlayedRun, compare_tests, subtract_settings


@dataclass(frozen=True)
class DifferingRun:
    """One of the two runs."""

    run: str
    place: str
    status: str


@dataclass(frozen=True)
class ModelOnRecord:
    """A model of a group, as a run has it on record."""

    model: str
    digest: str | None
    """Of its weights, where it was trained here."""
    base: str | None
    """Its name, where it was not: by that it is known."""


@dataclass(frozen=True)
class ModelPair:
    """The models of a group in both runs."""

    a: ModelOnRecord | None
    b: ModelOnRecord | None
    same: bool | None
    """Whether the weights are; None: not known."""


@dataclass(frozen=True)
class GroupModels:
    """The models of a group in both runs: the first, and the last."""

    first: ModelPair
    last: ModelPair


@dataclass(frozen=True)
class RatePair:
    """A rate in both runs, and how much higher it is in `b`, paired by problem."""

    a: float | None
    b: float | None
    difference: float | None
    ci95: Interval95 | None
    problems: int
    questions: int | None
    p: float | None


@dataclass(frozen=True)
class LoneAgent:
    """An agent that only one of the runs has."""

    run: str
    """Which: "a" or "b"."""
    model: str | None
    """Its base model; None of an agent that acts at random."""


@dataclass(frozen=True)
class PairedTest:
    """A test of each run, compared."""

    test: str
    """Which: "first" or "last"."""
    iterations: tuple[int, int]
    rates: dict[str, RatePair]


@dataclass(frozen=True)
class RunDifferences:
    """The differences of two runs `a` and `b`."""

    runs: tuple[DifferingRun, DifferingRun]
    settings: dict[str, tuple[Plain, Plain]]
    """By dotted key."""
    code: tuple[str, str]
    data: dict[str, tuple[Plain, Plain]]
    """By name (``problems.test``, ``templates.prover``, ...) the digests that differ."""
    models: dict[str, GroupModels]
    """By group."""
    results: tuple[PairedTest, ...]
    """The first test and the last of both, where there are such."""
    not_compared: str | None
    """Why there are no results, if there are none."""


def find_differences(a: PlayedRun, b: PlayedRun) -> RunDifferences:
    """Compare two runs: settings, code, data, models, and results where both were tested alike."""
    contents = [flatten(dict(run.record.contents)) for run in (a, b)]
    names = sorted({*contents[0], *contents[1]})
    results, not_compared = _compare_results(a, b)
    return RunDifferences(
        runs=(_describe(a), _describe(b)),
        settings=subtract_settings(a, b),
        code=(a.record.code_version, b.record.code_version),
        data={
            name: (contents[0].get(name), contents[1].get(name))
            for name in names
            if contents[0].get(name) != contents[1].get(name)
        },
        models=_compare_models(a, b),
        results=results,
        not_compared=not_compared,
    )


def find_lone_agents(settings: Mapping[str, tuple[Plain, Plain]]) -> dict[str, LoneAgent]:
    """Find the agents that only one run has, by name, among settings that differ."""
    lone = {}
    for key, values in settings.items():
        block, _, rest = key.partition(".")
        name, _, setting = rest.partition(".")
        # Every agent with a model has one of these, and every other one the second.
        if block == "agents" and setting in ("model_name", "is_random") and ABSENT in values:
            has_it = 1 if values[0] == ABSENT else 0
            model = settings.get(f"agents.{name}.model_name", values)[has_it]
            lone[name] = LoneAgent("ab"[has_it], str(model) if isinstance(model, str) else None)
    return lone


def _describe(run: PlayedRun) -> DifferingRun:
    return DifferingRun(run.name, run.place, run.status)


def _compare_models(a: PlayedRun, b: PlayedRun) -> dict[str, GroupModels]:
    """Pair by group the first models of both runs, and the last ones."""
    first, last = (_first_models(a), _first_models(b)), (_last_models(a), _last_models(b))
    groups = [*first[0], *(group for group in first[1] if group not in first[0])]
    return {
        group: GroupModels(
            _pair(first[0].get(group), first[1].get(group)),
            _pair(last[0].get(group), last[1].get(group)),
        )
        for group in groups
    }


def _pair(a: ModelOnRecord | None, b: ModelOnRecord | None) -> ModelPair:
    """Compare two models by their weights, or by their names where they were not trained here."""
    model_names = [model and (model.digest or model.base) for model in (a, b)]
    return ModelPair(a, b, model_names[0] == model_names[1] if all(model_names) else None)


def _first_models(run: PlayedRun) -> dict[str, ModelOnRecord]:
    names = run.records.shown.first_models
    return {group: ModelOnRecord(name, None, name) for group, name in names.items()}


def _last_models(run: PlayedRun) -> dict[str, ModelOnRecord]:
    swaps = [record.swap for record in run.records.all() if record.swap is not None]
    if not swaps:
        return _first_models(run)
    groups = swaps[-1].groups
    return {
        group: ModelOnRecord(
            model.model,
            model.digest,
            # A model that was not trained is known by its name.
            model.model if model.trained_in is None else None,
        )
        for group, model in groups.items()
    }


def _compare_results(a: PlayedRun, b: PlayedRun) -> tuple[tuple[PairedTest, ...], str | None]:
    """Compare the tests of both runs; or say why they can't be compared."""
    untested = " and ".join(repr(run.name) for run in (a, b) if not run.tests)
    if untested:
        return (), f"there is no test yet of {untested}"
    try:
        return tuple(_pair_tests(a, b)), None
    except DatasetError as error:
        # All else that differs is shown all the same: different data is often the answer sought.
        return (), str(error)


def _pair_tests(a: PlayedRun, b: PlayedRun) -> Iterator[PairedTest]:
    """Compare the first tests, and the last ones where these are others."""
    pairs = {"first": (a.tests[0], b.tests[0]), "last": (a.tests[-1], b.tests[-1])}
    for moment, (of_a, of_b) in pairs.items():
        if moment == "last" and pairs["first"] == pairs["last"]:
            return
        differences = compare_tests((a, of_a), (b, of_b))
        tests = (a.test(of_a), b.test(of_b))
        yield PairedTest(
            moment,
            (of_a, of_b),
            {
                rate: RatePair(
                    tests[0].rates[rate],
                    tests[1].rates[rate],
                    difference.difference,
                    difference.ci95,
                    difference.problems,
                    difference.questions,
                    difference.p,
                )
                for rate, difference in ((rate, differences[rate]) for rate in LABELS)
            },
        )
