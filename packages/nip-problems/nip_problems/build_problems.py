"""Builds a dataset from problems with tests: `nip problems build`.

    BuildOptions   the options of a build
    build          from a source to Parquet files and a datasheet
    Built          the results of a build

Everything that costs nothing is done first. Then an estimate is made, and only then is a model
asked. The test reports and its answers are in journals in the directory that is built: a build that
was stopped goes on where it stopped, and one that is repeated runs and asks for nothing.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nip_core.errors import CorruptionError, SettingsError
from nip_core.evaluation.figures_in_words import amount
from nip_core.game.answer_rows import AnswerPlace
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.model_names import base_name
from nip_core.rollouts.storage.journal import Journal
from nip_core.scenarios.rows import Row
from nip_problems import difficulty, written_bugs
from nip_problems.asked_model import (
    AGENT,
    AskedModelOptions,
    find_agent,
    make_settings,
    open_model,
    price_tokens,
    refuse_unpriced,
)
from nip_problems.datasheet import (
    SHEET,
    Datasheet,
    ModelFacts,
    Option,
    collect_datasheet,
    read_source_facts,
    write_built_dataset,
)
from nip_problems.from_tests import (
    LIMITS,
    MAX_STEPS,
    Examined,
    WrittenVariants,
    examine_source,
    make_rows,
    name_moved_splits,
)
from nip_problems.known_reports import KnownReports
from nip_problems.sources import Source, read_source
from nip_problems.tested import LeftOut, TestRunner
from nip_problems.written_bugs import STYLES, Record
from nip_sandbox.sandbox import SandboxError

TESTS = "tests.journal"
ANSWERS = "answers.journal"
VERDICTS = "verdicts.journal"
Say = Callable[[str], None]
Rows = dict[str, list[Row]]


@dataclass(frozen=True)
class BuildOptions:
    """The options that decide about a built dataset."""

    out: Path
    """The directory that becomes the dataset."""
    licence: str | None = None
    """Of the source, for the datasheet."""
    variants: int = 6
    """As many right and as many buggy rows of a problem at most."""
    max_steps: int = MAX_STEPS
    """Lines that a test of a right solution may execute."""
    workers: int | None = None
    """Processes that run tests at the same time; None: one for each core."""
    allow_without_namespaces: bool = False
    writer: AskedModelOptions | None = None
    """The model that writes bugs; None: mutations alone."""
    styles: tuple[str, ...] = tuple(STYLES)
    samples: int = 1
    """Answers of each style for each problem."""
    verifier: AskedModelOptions | None = None
    """The model by which difficulty is measured; None: it is as the source says."""
    at_most_usd: float | None = None
    replace: bool = False
    """Replace the dataset of another source, if one is in `out`."""
    dry_run: bool = False
    """Stop before a model is asked, and write nothing."""

    def __post_init__(self) -> None:
        if unknown := [style for style in self.styles if style not in STYLES]:
            style_names = ", ".join(STYLES)
            raise SettingsError(f"--styles: {unknown[0]!r} is none of {style_names}")


@dataclass(frozen=True)
class BuildEstimate:
    """Upper bounds of the requests that models have yet to answer."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float


@dataclass(frozen=True)
class Built:
    """The results of a build, or of a dry run."""

    files: tuple[Path, ...]
    """Those of the dataset; none in a dry run."""
    estimate: BuildEstimate
    """As it was before models were asked."""
    sheet: Datasheet | None
    """None in a dry run."""

    def to_dict(self) -> dict[str, object]:
        """Return the same for `--json`."""
        facts = {} if self.sheet is None else {"facts": self.sheet.model_dump(exclude_unset=True)}
        return {
            "files": [str(file) for file in self.files],
            "estimate": vars(self.estimate),
            **facts,
        }


@dataclass
class _Build:
    """The state of a build."""

    options: BuildOptions
    examined: Examined
    environment: Mapping[str, str]
    say: Say
    models: dict[str, ModelFacts] = field(default_factory=dict)
    """The models' work, for the datasheet."""

    def rows(
        self,
        variants_by_problem: Mapping[str, WrittenVariants],
        levels: Mapping[str, str] | None = None,
    ) -> tuple[Rows, list[LeftOut]]:
        return make_rows(self.examined, self.options.variants, variants_by_problem, levels)


def build(
    source: Path,
    options: BuildOptions,
    say: Say = lambda line: None,
    environment: Mapping[str, str] = os.environ,
) -> Built:
    """Build the dataset.

    Raises:
        SettingsError: an option is wrong, the estimate is above `at_most_usd`, or this system
            can't keep untrusted code in.
        DatasetError: the source can't be read, or gives no dataset.
        StageError, ServerError: a model's server refuses or is silent; running again goes on.
    """
    # 1. Check the arguments.
    _check_out(options.out)
    for model, option in ((options.writer, "--price"), (options.verifier, "--difficulty-price")):
        if model is not None:
            refuse_unpriced(make_settings(model, "problems-build"), option)
    source_data = read_source(source)
    say(f"{len(source_data.problems)} problems of {source}, {len(source_data.left_out)} left out")
    for note in source_data.notes:
        say(note)
    _check_made_of(options, source_data, source)
    with KnownReports(options.out / TESTS, is_kept=not options.dry_run) as reports:
        return _build(source_data, options, reports, say, environment)


def _build(
    source_data: Source,
    options: BuildOptions,
    reports: KnownReports,
    say: Say,
    environment: Mapping[str, str],
) -> Built:
    # 2. Do the work that costs nothing.
    if reports.by_key:
        say(f"{len(reports.by_key)} reports of tests are known from a build before")
    runner = TestRunner(
        options.workers or os.cpu_count() or 1,
        options.max_steps,
        options.allow_without_namespaces,
        LIMITS,
        say=say,
        known=reports.by_key,
        keep=reports.keep,
    )
    try:
        examined = examine_source(source_data, runner, options.variants)
    except SandboxError as error:
        flag = "pass allow_without_namespaces=True"
        raise SettingsError(str(error).replace(flag, "give --allow-without-namespaces")) from error
    build = _Build(options, examined, environment, say)
    say(
        f"{examined.passed} of {examined.tried} solutions pass their tests; "
        f"{len(examined.reports)} mutants of them were run"
    )
    # 3. Add the models' work.
    rows, left_out, estimate = asyncio.run(_with_models(build))
    for note in name_moved_splits(source_data, rows):
        say(note)
    if options.dry_run:
        return Built((), estimate, None)
    # 4. The files.
    sheet = collect_datasheet(
        examined,
        rows,
        [*source_data.left_out, *examined.left_out, *left_out],
        licence=options.licence,
        options=_recorded(options),
        models=build.models,
    )
    files = write_built_dataset(options.out, rows, sheet)
    return Built(tuple(files), estimate, sheet)


def _check_out(out: Path) -> None:
    """Refuse a directory with anything else in it: files of the same names would be replaced."""
    if out.exists() and not out.is_dir():
        raise SettingsError(f"--out {out}: is a file; give a directory")
    parent = next((path for path in out.absolute().parents if path.exists()), out)
    if not out.exists() and not parent.is_dir():
        raise SettingsError(f"--out {out}: can't be made, {parent} is a file; give another")
    names = [path.name for path in out.iterdir() if path.name[0] != "."] if out.exists() else []
    if names and not {SHEET, TESTS, ANSWERS, VERDICTS} & set(names):
        raise SettingsError(f"--out {out}: is not empty and was not built by this; give another")


def _check_made_of(options: BuildOptions, source_data: Source, source: Path) -> None:
    """Refuse a directory with the dataset of another source, unless it is to be replaced."""
    if options.replace:
        return
    try:
        made_of = read_source_facts(options.out)
        if made_of is None or (made_of.name, made_of.sha256) == (
            source_data.name,
            source_data.sha256,
        ):
            return
        earlier_source = f"{made_of.name} (SHA-256 {made_of.sha256:.12})"
    except CorruptionError as error:
        earlier_source = f"what can't be read ({type(error.__cause__).__name__} in {SHEET})"
    raise SettingsError(
        f"--out {options.out}: holds a dataset made of {earlier_source}, and {source} is not "
        f"the same (SHA-256 {source_data.sha256:.12}); "
        "give another directory, or --replace to replace it"
    )


def _recorded(options: BuildOptions) -> dict[str, Option]:
    recorded_options: dict[str, Option] = {
        "variants": options.variants,
        "max_steps": options.max_steps,
    }
    if options.writer is not None:
        recorded_options |= {"styles": ", ".join(options.styles), "samples": options.samples}
        recorded_options |= {"temperature": options.writer.temperature}
    return recorded_options


async def _with_models(build: _Build) -> tuple[Rows, list[LeftOut], BuildEstimate]:
    """Ask the models for the answers that their journals lack. Returns rows, and the estimate."""
    options, out = build.options, build.options.out
    answers, verdicts = _read_journal(out / ANSWERS), _read_journal(out / VERDICTS)
    # 1. Find the pending requests, and their greatest cost.
    requests: list[written_bugs.Request] = []
    if options.writer is not None:
        parameters = make_settings(options.writer, "problems-build")
        name = base_name(parameters, find_agent(parameters))
        requests = written_bugs.make_requests(
            build.examined, parameters, options.styles, options.samples, name
        )
    pending = written_bugs.find_pending(requests, answers)
    variants_by_problem: dict[str, WrittenVariants] = {}
    if requests and not pending:
        variants_by_problem = _sorted(build, requests, answers)
    rows, left_out = build.rows(variants_by_problem)
    estimate = _estimate(build, pending, rows, verdicts)
    _agree(options, estimate, build.say)
    if options.dry_run:
        return rows, left_out, estimate
    # 2. Bugs.
    if pending:
        answers |= await _write_bugs(build, pending, is_first=not answers)
        variants_by_problem = _sorted(build, requests, answers)
        rows, left_out = build.rows(variants_by_problem)
    # 3. Difficulty.
    if options.verifier is not None:
        levels = await _measure_difficulty(build, options.verifier, rows)
        rows, left_out = build.rows(variants_by_problem, levels)
    return rows, left_out, estimate


def _read_journal(path: Path) -> dict[str, Record]:
    """Return the records of a journal by key; none where there is no journal."""
    if not path.exists():
        return {}
    journal = Journal(path)
    try:
        records = journal.replay()
    finally:
        journal.close()
    return {record.get("key") or record["generation"]["key"]: record for record in records}


def _estimate(
    build: _Build,
    pending: Sequence[written_bugs.Request],
    rows: Rows,
    verdicts: Mapping[str, Record],
) -> BuildEstimate:
    """Return upper bounds of the pending requests; asking again for an answer comes on top."""
    options = build.options
    calls, prompt, completion, usd = len(pending), 0, 0, 0.0
    if options.writer is not None:
        prompt = sum(request.prompt_tokens for request in pending)
        completion = calls * options.writer.max_tokens
        usd = price_tokens(make_settings(options.writer, "problems-build"), prompt, completion)
    if options.verifier is not None:
        game = difficulty.make_game(options.verifier)
        specs = [
            spec
            for spec in difficulty.plan_episodes_on_bugs(
                game, [r for part in rows.values() for r in part]
            )
            if spec.generation_key(AnswerPlace(0, AGENT)) not in verdicts
        ]
        # Bugs that are still to be written may fill every place.
        spec_count = len(specs)
        if pending:
            spec_count = max(spec_count, options.variants * len(build.examined.candidates))
        prompt_tokens = difficulty.estimate_prompt_tokens(specs) * spec_count // max(len(specs), 1)
        answer_tokens = spec_count * options.verifier.max_tokens
        calls, prompt, completion = (
            calls + spec_count,
            prompt + prompt_tokens,
            completion + answer_tokens,
        )
        usd += price_tokens(game.parameters, prompt_tokens, answer_tokens)
    return BuildEstimate(calls, prompt, completion, usd)


def _agree(options: BuildOptions, estimate: BuildEstimate, say: Say) -> None:
    """Say the greatest cost, and refuse more than was allowed."""
    if options.writer is None and options.verifier is None:
        return
    say(
        f"at most {amount(estimate.calls, 'call')}, {estimate.prompt_tokens:,} prompt and "
        f"{estimate.completion_tokens:,} generated tokens, ${estimate.usd:,.2f}"
    )
    if options.at_most_usd is not None and estimate.usd > options.at_most_usd:
        raise SettingsError(
            f"--at-most-usd {options.at_most_usd:g}: it may cost ${estimate.usd:.2f}, so "
            "nothing was asked; allow more, or ask for fewer --samples or --styles"
        )


def _sorted(
    build: _Build, requests: Sequence[written_bugs.Request], answers: Mapping[str, Record]
) -> dict[str, WrittenVariants]:
    """Run the written variants, and note for the datasheet how they ended."""
    assert build.options.writer is not None
    variants_by_problem, outcomes = written_bugs.sort_answers(requests, answers, build.examined)
    used = [answers[request.key] for request in requests if request.key in answers]
    totals = (
        len(used),
        sum(record["prompt_tokens"] for record in used),
        sum(record["completion_tokens"] for record in used),
    )
    parameters = make_settings(build.options.writer, "problems-build")
    build.models["Bugs written by a language model"] = _spent(parameters, totals, outcomes)
    return variants_by_problem


def _spent(
    parameters: HyperParameters, totals: tuple[int, int, int], outcomes: Mapping[str, int]
) -> ModelFacts:
    agent, (calls, prompt, completion) = find_agent(parameters), totals
    return ModelFacts(
        model=agent.model_name,
        provider=agent.model_provider,
        calls=calls,
        prompt_tokens=prompt,
        completion_tokens=completion,
        usd=price_tokens(parameters, prompt, completion),
        answers=dict(outcomes),
    )


async def _write_bugs(
    build: _Build, pending: Sequence[written_bugs.Request], *, is_first: bool
) -> dict[str, Record]:
    """Ask for bugs; returns the new records by key."""
    assert build.options.writer is not None
    parameters = make_settings(build.options.writer, "problems-build")
    async with (
        open_model(parameters, build.environment) as model,
        Journal(build.options.out / ANSWERS) as journal,
    ):
        records, refusals = await written_bugs.ask_all(
            pending, model, journal, build.say, is_first=is_first
        )
    build.say(f"{len(records)} answers, {len(refusals)} requests refused")
    return {record["key"]: record for record in records}


async def _measure_difficulty(
    build: _Build, options: AskedModelOptions, rows: Rows
) -> dict[str, str]:
    """Let the verifier decide about every bug; returns the difficulty by problem."""
    game = difficulty.make_game(options)
    specs = difficulty.plan_episodes_on_bugs(game, [row for part in rows.values() for row in part])
    async with (
        open_model(game.parameters, build.environment) as model,
        Journal(build.options.out / VERDICTS) as journal,
    ):
        noticed, totals = await difficulty.ask_verifier(game, specs, model, journal)
    bugs = [was for each in noticed.values() for was in each]
    outcomes = {"bugs noticed": sum(bugs), "bugs not noticed": len(bugs) - sum(bugs)}
    outcomes["episodes that failed"] = len(specs) - len(bugs)
    build.models["Difficulty, by a verifier that decides alone"] = _spent(
        game.parameters, totals, outcomes
    )
    prefix = f"{build.examined.source.name}/"
    levels = difficulty.rate_difficulty(noticed)
    return {name.removeprefix(prefix): level for name, level in levels.items()}
