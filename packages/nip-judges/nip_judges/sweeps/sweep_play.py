"""The attacks of a sweep of judges: prepared, counted and played.

survey_sweep    a plan -> SurveyedAttack, one an attack; nothing is asked
play_sweep      the attacks that are left, then each judge's texts shown to the judges compared with
                it
SweptCell       a judged text of a sweep
PlayedSweep     all of them, and how the attacks ended

Each attack is one of `nip attack --judge`, in a folder of its own. An attack that is finished is
not played again.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nip_base.formats.bounds import ReadError, parse_json
from nip_core.errors import NipError, RunConflictError, SettingsError
from nip_core.hashing import canonical_json, derive_key, digest
from nip_judges.documents.judge_document import read_cells
from nip_judges.figures.judge_figures import find_worst
from nip_judges.judges import make_variant
from nip_judges.parts import Cell
from nip_judges.play.asking import Asker, Spending, open_journal
from nip_judges.play.attack import (
    USUAL_N,
    JudgeOptions,
    PreparedAttack,
    attack_judge,
    prepare_attack,
)
from nip_judges.play.course import count_calls, dress_rows
from nip_judges.play.judged_texts import Text, judge_texts, show_text
from nip_judges.sweeps.sweep_plan import JudgeSweep, SweptAttack, list_pairs
from nip_judges.wordings.writing import list_wordings

JOURNAL = "calls.journal"
_UNFINISHED = "NOT FINISHED"
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class SurveyedAttack:
    """An attack of a sweep, by its files alone."""

    attack: SweptAttack
    label: str
    """The judge's own name: of its model, function or file."""
    judge_digest: str
    rows_digest: str
    """Of the rows that are played, and of their parts."""
    all_rows: str
    """Of all rows, however they are split."""
    identity: str
    """Of all that decides which texts are shown to which judge."""
    check: str | None
    no_verdict: str
    compares_pairs: bool
    kinds: tuple[str, ...]
    held_out: tuple[str, ...]
    wrong_questions: int
    right_questions: int
    calls: Mapping[str, int]
    """By part of the course, at most."""
    is_paid: bool
    prompt_tokens: int
    """Of all calls, by the length of one of them."""
    prompt_usd: float | None
    """US dollars of these tokens; None without prices."""
    has_begun: bool
    folder: Path


@dataclass(frozen=True)
class SweptCell:
    """A judged text of a sweep."""

    judge: str
    seed: int
    texts_of: str
    """The judge whose attack it is: itself, or one that it is compared with."""
    cell: Cell
    way: str = ""
    """The name of an attack by a model; "" for wordings."""


@dataclass
class PlayedSweep:
    """The judged texts of a sweep, and how its attacks ended."""

    cells: list[SweptCell] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """By attack, the reason for which it is not finished."""
    errors: list[NipError] = field(default_factory=list)
    spending: Spending = field(default_factory=Spending)
    usd: float | None = 0.0
    """None where a judge has no prices."""


Tell = Callable[[str, int], None]


@contextlib.asynccontextmanager
async def prepare_swept(plan: JudgeSweep, attack: SweptAttack) -> AsyncIterator[PreparedAttack]:
    """Prepare an attack of a sweep; raises SettingsError as `prepare_attack` does."""
    path, variant = plan.find_judge(attack.judge)
    options = JudgeOptions(
        run_store=plan.run_store,
        name=attack.name,
        problems=plan.file.problems,
        overrides=(*plan.overrides, f"seed={attack.seed}"),
    )
    if attack.way:
        options = replace(options, **plan.file.attacks[attack.way].model_dump())
    else:
        file = plan.file
        options = replace(options, kinds=file.kinds, script=plan.script, hold_out=file.hold_out)
    async with prepare_attack(path, options) as prepared:
        yield prepared if variant is None else _vary(prepared, variant)


def _vary(prepared: PreparedAttack, variant: str) -> PreparedAttack:
    """Put a bundled variant in the judge's place."""
    judge = make_variant(variant, prepared.parts.judge, prepared.file)
    wordings = list_wordings(judge, prepared.options.kinds, prepared.options.script)
    changes = {"judge": judge.digest, "wordings": [wording.key for wording in wordings]}
    return replace(
        prepared,
        parts=replace(prepared.parts, judge=judge, wordings=wordings),
        identity={**prepared.identity, **changes},
    )


async def survey_sweep(plan: JudgeSweep) -> tuple[SurveyedAttack, ...]:
    """Look at all attacks of a plan; nothing is asked, and nothing is written.

    Raises SettingsError for judges that can't be compared, and RunConflictError for an attack that
    was begun with another judge or other rows.
    """
    pairs = list_pairs(plan.judges, plan.file.hypotheses)
    surveyed = []
    for attack in plan.attacks:
        async with prepare_swept(plan, attack) as prepared:
            _check_folder(prepared)
            transferred = 0 if attack.way else sum(judge == attack.judge for judge, _ in pairs)
            surveyed.append(_survey(prepared, attack, transferred))
    for one in surveyed:
        _check_alike(one, next(two for two in surveyed if two.attack.seed == one.attack.seed))
    return tuple(surveyed)


def _survey(prepared: PreparedAttack, attack: SweptAttack, transferred: int) -> SurveyedAttack:
    rows, parts, caps = prepared.rows, prepared.parts, prepared.caps
    kinds = tuple(dict.fromkeys(wording.kind for wording in parts.wordings))
    chooses = parts.judge.scores and prepared.file.judge.threshold is None
    edits = len(parts.edits)
    calls = {**count_calls(rows, parts.wordings, edits, needs_threshold=chooses)}
    if attack.way:
        # Of a trained attacker those of its training come on top.
        counts = prepared.options.n or USUAL_N
        texts = len(rows.wrong_test) * (2 * counts[-1] + len(counts))
        calls = {part: calls[part] for part in ("first look", "as they are")}
        calls["texts of a model"] = texts
    else:
        calls["texts of others"] = transferred * len(rows.wrong_test) * len(kinds)
    if parts.compares_pairs:
        calls = {part: 2 * count for part, count in calls.items()}
    row = rows.wrong_test[0]
    opponent = rows.find_opponent(row).response if parts.compares_pairs else None
    characters = len(parts.judge.compose(show_text(row, row.response, opponent)))
    paid = sum(calls.values()) if parts.judge.is_paid else 0
    tokens = paid * (characters // _CHARACTERS_PER_TOKEN)
    price = caps.prompt_usd
    return SurveyedAttack(
        attack=attack,
        label=parts.judge.name,
        judge_digest=parts.judge.digest,
        rows_digest=rows.digest,
        all_rows=digest(sorted(derive_key(r.question, r.response, r.is_right) for r in rows.rows)),
        identity=digest(prepared.identity),
        check=prepared.file.check,
        no_verdict=prepared.file.no_verdict,
        compares_pairs=parts.compares_pairs,
        kinds=kinds,
        held_out=tuple(prepared.held_out),
        wrong_questions=len({row.question_id for row in rows.wrong_test}),
        right_questions=len({row.question_id for row in rows.right_test}),
        calls=calls,
        is_paid=parts.judge.is_paid,
        prompt_tokens=tokens,
        prompt_usd=0.0 if not tokens else None if price is None else tokens * price / 1e6,
        has_begun=(prepared.folder / JOURNAL).exists(),
        folder=prepared.folder,
    )


def _check_folder(prepared: PreparedAttack) -> None:
    """Raise RunConflictError if the folder has an attack on another judge, or with other rows."""
    settings = prepared.folder / "settings.json"
    if not settings.exists():
        return
    new_identity = json.loads(canonical_json(prepared.identity))
    old_identity = json.loads(settings.read_text(encoding="utf-8"))
    changed_keys = sorted(key for key in new_identity if new_identity[key] != old_identity.get(key))
    if changed_keys:
        raise RunConflictError(
            f"{prepared.folder}: begun with another {' and '.join(changed_keys)}; put that back, "
            "or give the sweep another name: a changed judge is another try"
        )


def _check_alike(second: SurveyedAttack, first: SurveyedAttack) -> None:
    """Raise SettingsError unless two judges are shown the same rows and read in the same way."""
    blocks = {
        "data": (second.rows_digest, first.rows_digest),
        "check": (second.check, first.check),
        "no_verdict": (second.no_verdict, first.no_verdict),
        "judge.pair": (second.compares_pairs, first.compares_pairs),
    }
    for block, (value, expected) in blocks.items():
        if value != expected:
            raise SettingsError(
                f"judges {first.attack.judge} and {second.attack.judge} differ in {block}; all "
                "judges of a sweep get the same rows and check, so write it alike in their files"
            )


async def play_sweep(
    plan: JudgeSweep,
    on_part: Tell = lambda _name, _texts: None,
    on_answer: Callable[[], None] = lambda: None,
) -> PlayedSweep:
    """Play the attacks that are not finished, one after the other.

    An attack that fails is named in the result, and the others go on.
    """
    outcome = PlayedSweep()
    for seed in plan.file.seeds:
        async with contextlib.AsyncExitStack() as stack:
            prepared = {
                attack.judge: await stack.enter_async_context(prepare_swept(plan, attack))
                for attack in plan.attacks
                if attack.seed == seed and not attack.way
            }
            await _play_seed(plan, seed, prepared, outcome, on_part, on_answer)
    for attack in plan.attacks:
        if attack.way:
            async with prepare_swept(plan, attack) as prepared_way:
                await _play_way(prepared_way, attack, outcome, on_part, on_answer)
    return outcome


async def _play_way(
    prepared: PreparedAttack,
    attack: SweptAttack,
    outcome: PlayedSweep,
    on_part: Tell,
    on_answer: Callable[[], None],
) -> None:
    """Play an attack by a model; the rows as they are stand with the wordings already."""
    cells = await _play_one(prepared, outcome, on_part, on_answer)
    outcome.cells += [
        SweptCell(attack.judge, attack.seed, attack.judge, cell, attack.way)
        for cell in cells
        if cell.phase == "test"
    ]
    if prepared.folder.exists():
        async with open_journal(prepared.folder / JOURNAL) as journal:
            asker = Asker(journal, prepared.caps, concurrency=1, seed=attack.seed)
            _count(outcome, asker.spending, prepared)


async def _play_one(
    prepared: PreparedAttack, outcome: PlayedSweep, on_part: Tell, on_answer: Callable[[], None]
) -> list[Cell]:
    """Play an attack, or read it; one that fails is named, and gives the cells so far."""
    name = prepared.folder.name
    try:
        return await _play_or_read(prepared, _tell_of(name, on_part), on_answer)
    except NipError as error:
        outcome.failures[name] = str(error)
        outcome.errors.append(error)
        return _read_cells(prepared.folder)


async def _play_seed(
    plan: JudgeSweep,
    seed: int,
    prepared: Mapping[str, PreparedAttack],
    outcome: PlayedSweep,
    on_part: Tell,
    on_answer: Callable[[], None],
) -> None:
    cells: dict[str, list[Cell]] = {}
    for judge, attack in prepared.items():
        cells[judge] = await _play_one(attack, outcome, on_part, on_answer)
        outcome.cells += [SweptCell(judge, seed, judge, cell) for cell in cells[judge]]
    pairs = list_pairs(plan.judges, plan.file.hypotheses)
    for judge, attack in prepared.items():
        if not attack.folder.exists():  # its first call failed
            continue
        sources = [against for one, against in pairs if one == judge]
        names = {prepared[one].folder.name for one in (judge, *sources)}
        async with open_journal(attack.folder / JOURNAL) as journal:
            asker = Asker(
                journal,
                attack.caps,
                concurrency=attack.file.concurrency,
                seed=attack.file.seed,
                on_answer=on_answer,
            )
            _keep_threshold(asker, attack)
            try:
                if not names & {*outcome.failures} and _has_test(cells[judge]):
                    for source in sources:
                        texts = _choose_texts(prepared[source], cells[source])
                        on_part(f"{attack.folder.name}: texts of {source}", len(texts))
                        cells_of_source = await judge_texts(attack.parts, asker, texts)
                        outcome.cells += [
                            SweptCell(judge, seed, source, cell) for cell in cells_of_source
                        ]
            except NipError as error:
                outcome.failures[attack.folder.name] = str(error)
                outcome.errors.append(error)
            _count(outcome, asker.spending, attack)


async def _play_or_read(
    attack: PreparedAttack, on_part: Tell, on_answer: Callable[[], None]
) -> list[Cell]:
    """Read the cells of an attack that is finished, else play it.

    Raises the error by which it was stopped.
    """
    if _is_finished(attack.folder):
        return _read_cells(attack.folder)
    result = await attack_judge(attack, on_part, on_answer)
    if result.stopped is not None:
        raise result.stopped
    # As they lie there, so that a second look has the same order.
    return _read_cells(attack.folder)


def _is_finished(folder: Path) -> bool:
    """Tell whether judge.json, which is written after the cells, is there and whole."""
    return _read_document(folder).get("verdict") not in (None, _UNFINISHED)


def _read_document(folder: Path) -> dict[str, Any]:
    """Read judge.json; {} where it is not there, or was cut by a kill."""
    try:
        document = parse_json((folder / "judge.json").read_bytes())
    except (OSError, ReadError):
        return {}
    return document if isinstance(document, dict) else {}


def _keep_threshold(asker: Asker, attack: PreparedAttack) -> None:
    """Read scores by the threshold that the attack chose, where its file sets none."""
    threshold = _read_document(attack.folder).get("threshold")
    if threshold is not None:
        asker.set_threshold(attack.parts.judge, float(threshold["value"]))


def _read_cells(folder: Path) -> list[Cell]:
    path = folder / "cells.parquet"
    return read_cells(path) if path.exists() else []


def _has_test(cells: Sequence[Cell]) -> bool:
    """Tell whether an attack came to its test: a coin's ends before."""
    return any(cell.phase == "test" for cell in cells)


def _choose_texts(source: PreparedAttack, cells: Sequence[Cell]) -> list[Text]:
    """Choose the texts that were tested on a judge: of each kind those of its worst wording."""
    by_key = {wording.key: wording for wording in source.parts.wordings}
    worst = find_worst(cells, [*by_key], source.parts.no_verdict).values()
    wordings = [by_key[key] for key in worst] if _has_test(cells) else []
    return list(dress_rows(source.parts, wordings, source.rows.wrong_test, "test"))


def _tell_of(name: str, on_part: Tell) -> Tell:
    return lambda part, texts: on_part(f"{name}: {part}", texts)


def _count(outcome: PlayedSweep, spending: Spending, attack: PreparedAttack) -> None:
    total = outcome.spending
    total.calls += spending.calls
    total.prompt_tokens += spending.prompt_tokens
    total.completion_tokens += spending.completion_tokens
    if spending.prompt_tokens + spending.completion_tokens == 0 and not attack.parts.judge.is_paid:
        return
    usd = spending.price(attack.caps)
    outcome.usd = None if usd is None or outcome.usd is None else outcome.usd + usd
