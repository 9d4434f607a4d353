"""An attack on a judge from its file to its documents; `nip attack --judge` prints the result.

JudgeOptions   all that is asked for beside the judge's file
PreparedAttack judges, rows, wordings and folder of an attack, checked; nothing is paid for yet
prepare_attack makes it; attack_judge plays it
publish_run    all judged texts as a run

The folder of an attack, STORE/judges/NAME: settings.json, calls.journal with each answer,
cells.parquet, judge.json, screen.txt, texts.txt. An attack that was stopped goes on from there.
"""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_base.formats.bounds import parse_json
from nip_core.errors import NipError, RunConflictError, SettingsError, StageError
from nip_core.hashing import canonical_json, digest
from nip_core.nearest import did_you_mean
from nip_core.redaction import redact
from nip_core.rollouts.client.chat_client import ChatClient
from nip_judges.checks.answer_checks import make_check
from nip_judges.documents.gallery import choose_texts
from nip_judges.documents.judge_document import write_cells, write_document
from nip_judges.documents.screen import write_screen, write_texts
from nip_judges.judges import VARIANTS, make_judge, make_variant
from nip_judges.judges.chat_asking import list_served_models
from nip_judges.parts import JudgeAnswer
from nip_judges.play.asking import Asker, CapReached, Caps, open_journal
from nip_judges.play.course import (
    Course,
    Tell,
    play_control,
    play_course,
    tell_none,
)
from nip_judges.play.judged_texts import AGAINST, AttackParts, judge_texts, repeat_text, show_text
from nip_judges.play.option_checks import BEST_OF_N, check_options, keep_surfaces, name_attack
from nip_judges.play.result import AttackResult, make_result
from nip_judges.rows.graded_rows import GradedRows, read_rows
from nip_judges.rows.row_checks import NO_BUDGET
from nip_judges.seat.run_folder import digest_cells, write_run
from nip_judges.settings.judge_file import JudgeFile, load_judge_file
from nip_judges.settings.named_texts import hash_named
from nip_judges.whole_files import write_whole
from nip_judges.wordings.writing import list_wordings, split_kinds
from nip_judges.writers.best_of_n import play_best_of_n
from nip_judges.writers.model_attacks import find_attacker, open_writer, play_trained

_RETRIES = 5
USUAL_N = (1, 4, 16)
ASKINGS = (2, 3, 4)
"""Further askings of each text that is shown, after those of the course."""


@dataclass(frozen=True)
class JudgeOptions:
    """Everything that is asked for beside the judge's file."""

    run_store: str = "runs"
    name: str | None = None
    kinds: Sequence[str] | None = None
    hold_out: bool = False
    script: str | None = None
    problems: int | None = None
    against: str | None = None
    max_fooled: float | None = None
    """In percent."""
    max_usd: float | None = None
    max_calls: int | None = None
    by: str | None = None
    """best-of-n, sneaky, or None for wordings alone."""
    attacker: str | None = None
    n: Sequence[int] | None = None
    steps: int | None = None
    until: str | None = None
    start_from: str | None = None
    overrides: Sequence[str] = ()


@dataclass(frozen=True)
class PreparedAttack:
    """The judges, rows, wordings and folder of an attack."""

    file: JudgeFile
    options: JudgeOptions
    parts: AttackParts
    against: AttackParts | None
    held_out: tuple[str, ...]
    folder: Path
    caps: Caps
    identity: Mapping[str, Any]
    """All that decides which texts are shown to which judge."""
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> GradedRows:
        return self.parts.rows


@contextlib.asynccontextmanager
async def prepare_attack(path: Path, options: JudgeOptions) -> AsyncIterator[PreparedAttack]:
    """Read and check all that an attack needs; raises SettingsError before anything is paid for."""
    file = load_judge_file(path, options.overrides)
    check_options(file, options)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(_make_client(file))
        judge = make_judge(file, client)
        rows = read_rows(file, options.problems)
        check = make_check(file)
        wordings = keep_surfaces(file, list_wordings(judge, options.kinds, options.script))
        parts = AttackParts(
            rows,
            judge,
            wordings,
            check,
            no_verdict=file.no_verdict,
            compares_pairs=file.judge.pair,
        )
        against = await _prepare_against(stack, file, client, parts, options)
        held_out = split_kinds([w.kind for w in wordings])[1] if options.hold_out else ()
        identity = _identify(file, parts, against, options)
        name = name_attack(path, options, identity)
        caps = _find_caps(file, options)
        is_capped = caps.usd is not None or caps.calls is not None
        yield PreparedAttack(
            file=file,
            options=options,
            parts=parts,
            against=against,
            held_out=tuple(held_out),
            folder=Path(options.run_store) / "judges" / name,
            caps=caps,
            identity=identity,
            notes=tuple(note for note in rows.notes if not (is_capped and note == NO_BUDGET)),
        )


async def attack_judge(
    prepared: PreparedAttack,
    on_part: Tell = tell_none,
    on_answer: Callable[[], None] = lambda: None,
) -> AttackResult:
    """Play an attack, or go on with it, and write its documents.

    A cap that is reached, or a judge that fails for good, gives a result that is not finished.
    Raises RunConflictError for a folder of another attack.
    """
    began_s = time.monotonic()
    claim_folder(prepared)
    course = Course()
    stopped: NipError | None = None
    async with open_journal(prepared.folder / "calls.journal") as journal:
        asker = Asker(
            journal,
            prepared.caps,
            concurrency=prepared.file.concurrency,
            seed=prepared.file.seed,
            on_answer=on_answer,
        )
        try:
            await try_judge(prepared, asker)
            await _play(prepared, asker, course, on_part)
        except NipError as error:
            if not course.cells and not isinstance(error, CapReached):
                raise
            by_cap = None if prepared.options.by in (None, BEST_OF_N) else asker.cap
            stopped = by_cap or error
    seconds = time.monotonic() - began_s
    result = make_result(prepared, course, asker, stopped, seconds)
    order = [wording.key for wording in prepared.parts.wordings]
    write_cells(prepared.folder / "cells.parquet", course.cells, order)
    write_document(prepared.folder / "judge.json", result.document)
    for name, text in (("screen.txt", write_screen), ("texts.txt", write_texts)):
        write_whole(prepared.folder / name, text(result.document) + "\n")
    return result


async def try_judge(prepared: PreparedAttack, asker: Asker) -> JudgeAnswer:
    """Ask one text, so that a wrong key, address or model costs one call and is named."""
    row, judge = prepared.rows.wrong_test[0], prepared.parts.judge
    try:
        answer = await asker.ask(judge, show_text(row, row.response, show_opponent(prepared)))
    except StageError as error:
        seat = getattr(judge, "seat", None)
        if seat is None or "HTTP 404" not in str(error):
            raise
        models = await list_served_models(seat.endpoint)
        if not models or seat.agent.model_name in models:
            raise
        near = did_you_mean(seat.agent.model_name, models)
        raise StageError(f"{error}; the server has {', '.join(models[:8])}{near}") from None
    if prepared.caps.usd is not None and answer.model and not answer.prompt_tokens:
        raise SettingsError(
            f"a cap of ${prepared.caps.usd:g} can't be kept: {answer.model} answers without the "
            "number of tokens (usage); use --max-calls or budget.calls"
        )
    return answer


async def _play(prepared: PreparedAttack, asker: Asker, course: Course, on_part: Tell) -> None:
    """Play the course of the judge, then that of the second one; cells go into one list."""
    parts, against = prepared.parts, prepared.against
    if prepared.options.by is not None:
        await _play_model(prepared, asker, course, on_part)
        return
    await play_course(parts, asker, course, on_part=on_part)
    if course.ended_early is not None:
        return
    # A single text counts for little where verdicts change: those that are shown are asked again.
    asked_again = [(cell, asking) for cell in choose_texts(course.cells) for asking in ASKINGS]
    on_part("shown texts again", len(asked_again))
    texts = [repeat_text(parts, cell, asking) for cell, asking in asked_again]
    course.cells += await judge_texts(parts, asker, texts)
    if against is not None:
        second = course.second = Course(cells=course.cells)
        tell = _tell_as(AGAINST, on_part)
        await play_course(against, asker, second, also_tested=course.chosen, on_part=tell)


async def _play_model(
    prepared: PreparedAttack, asker: Asker, course: Course, on_part: Tell
) -> None:
    """Play the control, and an attack by a model that writes, as it is or trained."""
    parts, options, file = prepared.parts, prepared.options, prepared.file
    await play_control(parts, asker, course, on_part)
    if course.ended_early is not None:
        return
    if options.by == BEST_OF_N:
        is_around = parts.check is None or "free" not in (file.surface or ("free",))
        async with open_writer(file, options.attacker, prepared.folder, around=is_around) as writer:
            await play_best_of_n(parts, writer, asker, course, options.n or USUAL_N, on_part)
        return
    attack = {"until": options.until, "start_from": options.start_from}
    on_part("an attacker is trained", 0)
    course.cells += await play_trained(
        file,
        parts,
        asker,
        attacker=options.attacker,
        steps=options.steps,
        attack={name: value for name, value in attack.items() if value is not None},
        run=f"{prepared.folder.name}-seat",
        run_store=options.run_store,
        folder=prepared.folder,
    )


def _tell_as(name: str, tell: Tell) -> Tell:
    return lambda part, texts: tell(f"{name}: {part}", texts)


def show_opponent(prepared: PreparedAttack) -> str | None:
    if not prepared.parts.compares_pairs:
        return None
    return prepared.rows.find_opponent(prepared.rows.wrong_test[0]).response


def _make_client(file: JudgeFile) -> contextlib.AbstractAsyncContextManager[ChatClient | None]:
    if file.agent is None:
        return contextlib.nullcontext()
    return ChatClient(
        concurrency=file.concurrency, timeout_s=file.timeout_s, retries=_RETRIES, follows=True
    )


async def _prepare_against(
    stack: contextlib.AsyncExitStack,
    file: JudgeFile,
    client: ChatClient | None,
    parts: AttackParts,
    options: JudgeOptions,
) -> AttackParts | None:
    """Prepare the second judge: a bundled variant of the first by its name, or another file."""
    name = options.against
    if name is None:
        return None
    if name in VARIANTS:
        judge = make_variant(name, parts.judge, file)
    elif Path(name).suffix in (".yaml", ".yml"):
        against_file = load_judge_file(Path(name), ())
        if read_rows(against_file, options.problems).digest != parts.rows.digest:
            raise SettingsError(
                f"{name}: its rows are not those of {file.path.name}; both judges get the same "
                "rows, so write the same block `data`"
            )
        judge = make_judge(
            against_file, await stack.enter_async_context(_make_client(against_file))
        )
    else:
        raise SettingsError(
            f"--against {name}: a judge's file (.yaml), or one of {', '.join(VARIANTS)}"
        )
    return AttackParts(
        parts.rows,
        judge,
        keep_surfaces(file, list_wordings(judge, options.kinds, options.script)),
        parts.check,
        name=AGAINST,
        no_verdict=file.no_verdict,
        compares_pairs=parts.compares_pairs,
    )


def _find_caps(file: JudgeFile, options: JudgeOptions) -> Caps:
    """Take the caps of the options, else of the file. Raises SettingsError for dollars unpriced."""
    prices = file.prices
    usd = options.max_usd if options.max_usd is not None else file.budget.usd
    if usd is not None and not file.asks_model:
        raise SettingsError(
            f"{file.path}: nothing here says what a call costs in dollars; use --max-calls"
        )
    calls = options.max_calls if options.max_calls is not None else file.budget.calls
    if usd is not None and (prices.prompt_usd is None or prices.completion_usd is None):
        raise SettingsError(
            f"{file.path}: a cap of ${usd:g} needs the judge's prices; write prices.prompt_usd and "
            "prices.completion_usd (US dollars for a million tokens), or use --max-calls"
        )
    return Caps(usd, calls, prices.prompt_usd, prices.completion_usd)


def _identify(
    file: JudgeFile, parts: AttackParts, against: AttackParts | None, options: JudgeOptions
) -> dict[str, Any]:
    """Name all that decides which texts are shown to which judge."""
    return {
        "judge": parts.judge.digest,
        "rows": parts.rows.digest,
        "wordings": [wording.key for wording in parts.wordings],
        "check": file.check,
        "no_verdict": file.no_verdict,
        "seed": file.seed,
        "against": None if against is None else against.judge.digest,
        "hold_out": options.hold_out,
        "script": None
        if options.script is None
        else hash_named(Path(), str(Path(options.script).expanduser())),
        "by": options.by,
        "attacker": options.attacker,
        "training": None if options.by is None else _identify_model(file, options),
        "n": None if options.n is None else [*options.n],
    }


def _identify_model(file: JudgeFile, options: JudgeOptions) -> str:
    """Hash all that decides which texts a model writes."""
    training = [options.steps, options.until, options.start_from]
    return digest([find_attacker(file, options.attacker), file.attacker_sees, *training])


def claim_folder(prepared: PreparedAttack) -> None:
    """Create the folder, or see that it is this attack's. Raises RunConflictError."""
    folder, text = prepared.folder, canonical_json(prepared.identity).decode()
    if "://" in prepared.options.run_store:
        raise SettingsError(
            f"--run-store {redact(prepared.options.run_store)}: the answers of a judge are kept in "
            "a folder of this machine; name one"
        )
    settings = folder / "settings.json"
    if not settings.exists():
        if (Path(prepared.options.run_store) / folder.name).exists():
            raise RunConflictError(
                f"--name {folder.name}: {prepared.options.run_store} has a run of this name; name "
                "the attack otherwise"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(settings, text)
        return
    new_document = json.loads(text)
    try:
        old_document = parse_json(settings.read_text(encoding="utf-8"))
    except ValueError:
        old_document = None
    if not isinstance(old_document, dict):
        raise RunConflictError(f"{settings} is damaged; name this attack with --name")
    changed_keys = sorted(key for key in new_document if new_document[key] != old_document.get(key))
    if changed_keys:
        raise RunConflictError(
            f"{folder} has an attack with another {' and '.join(changed_keys)}; name this one with "
            "--name, or leave --name out"
        )


async def publish_run(prepared: PreparedAttack, result: AttackResult) -> str | None:
    """Write all judged texts as a run for `nip view`, `nip show` and exports, and name it.

    None for an attack that was not played to its end.
    """
    if result.stopped is not None or not result.cells:
        return None
    name, store = prepared.folder.name, prepared.options.run_store
    cells = digest_cells(result.cells)
    marker = prepared.folder / "run.sha256"
    # Texts that a model wrote, or a user's function, may be others than those of an earlier run.
    if marker.exists() and marker.read_text(encoding="utf-8") != cells:
        name = f"{name[:34].rstrip('-')}-{cells[:6]}"
    else:
        write_whole(marker, cells)
    await write_run(name, prepared.folder, result.cells, prepared.rows.rows, run_store=store)
    return name
