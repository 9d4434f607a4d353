"""Hardening of a judge that its user trains: attacked, trained on what fooled it, and tested once.

HardenOptions      what is asked for beside the judge's file
PreparedHardening  a judge, its rows, kinds and folder, checked; nothing is paid for yet
prepare_hardening  makes it; harden_judge plays it
plan_hardening     its calls, examples and jobs at most, without a call

A round attacks the judge by the shown half of the kinds on the questions for choosing, and trains
its model by one job on gold verdicts and on the texts that fooled it. After the last round the
trained judge and the first one are shown the same texts of the test, held-out kinds among them.

The folder, STORE/judges/NAME: hardening.json (what was asked for), calls.journal, round-N.jsonl
(its examples), round-N.parquet (its attack), training/ (records of jobs), cells.parquet (the last
test), harden.json, screen.txt. A hardening that was stopped goes on, with the same jobs.
"""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nip_base.formats import MIN_EXAMPLES, to_jsonl
from nip_core.errors import NipError, RunConflictError, SettingsError
from nip_core.evaluation.statistics.differences import at_most
from nip_core.hashing import canonical_json, digest
from nip_judges.documents.judge_document import write_cells
from nip_judges.figures.against_figures import GATE
from nip_judges.figures.as_they_are import NoVerdict, is_hit
from nip_judges.harden.examples import (
    Examples,
    GoldForms,
    count_right_texts,
    find_gold_forms,
    make_examples,
)
from nip_judges.harden.hardening_figures import HardenDocument, RoundWords, make_harden_document
from nip_judges.harden.hardening_screen import write_harden_screen
from nip_judges.harden.jobs import (
    JudgeJobs,
    TrainedJudge,
    TrainingSettings,
    read_training,
    split_overrides,
)
from nip_judges.harden.last_play import count_last_test, play_last_test
from nip_judges.judges import make_judge
from nip_judges.judges.prompted import ChatJudge
from nip_judges.parts import Cell, Wording
from nip_judges.play.asking import Asker, CapReached, open_journal
from nip_judges.play.attack import JudgeOptions, PreparedAttack, prepare_attack
from nip_judges.play.course import Tell, dress_rows, tell_none
from nip_judges.play.judged_texts import AttackParts, Text, judge_texts
from nip_judges.rows.graded_rows import GradedRows
from nip_judges.settings.judge_file import load_judge_file
from nip_judges.whole_files import write_whole
from nip_judges.wordings.writing import split_kinds

SETTINGS = "hardening.json"
DOCUMENT = "harden.json"


@dataclass(frozen=True)
class HardenOptions:
    """Everything that is asked for beside the judge's file."""

    rounds: int
    show: int = 200
    """Gold verdicts that each round imitates, half of each label."""
    passes: int | None = None
    """Over the examples of a round; None: three."""
    run_store: str = "runs"
    name: str | None = None
    problems: int | None = None
    """Most test rows of each label."""
    kinds: Sequence[str] | None = None
    """Kinds of wordings; the half of them is held out. None: all."""
    overrides: Sequence[str] = ()
    """Of the judge's file, and as "training.NAME=VALUE" of the training."""


@dataclass(frozen=True)
class PreparedHardening:
    """A judge that is trained, its rows, kinds and folder."""

    options: HardenOptions
    path: Path
    attack: PreparedAttack
    judge: ChatJudge
    forms: GoldForms
    shown_kinds: tuple[str, ...]
    """The kinds by which it is attacked_model in rounds."""
    held_out: tuple[str, ...]
    training: TrainingSettings
    folder: Path
    identity: Mapping[str, Any]
    overrides: Sequence[str] = field(default=())
    """Of the judge's file alone."""

    @property
    def rows(self) -> GradedRows:
        return self.attack.rows

    @property
    def shown_wordings(self) -> tuple[Wording, ...]:
        return tuple(one for one in self.attack.parts.wordings if one.kind in self.shown_kinds)

    @property
    def notes(self) -> tuple[str, ...]:
        """List what is to be known before anything is paid for, for people."""
        right = len({row.question_id for row in self.rows.right_test})
        fewest = next(count for count in range(1, 1000) if (at_most(0, count) or 1.0) <= GATE)
        if right >= fewest:
            return self.attack.notes
        few = (
            f"the gate, right rejected by at most {100 * GATE:.0f} points more, can't be met by "
            f"{right} right questions of the test: {fewest} are the fewest, with no new rejection"
        )
        return (*self.attack.notes, few)

    @property
    def order(self) -> list[str]:
        """List the keys of all wordings, in the order of tables."""
        return [wording.key for wording in self.attack.parts.wordings]

    def make_examples(
        self, judge: ChatJudge, cells: Sequence[Cell], fooled: Sequence[Cell]
    ) -> Examples:
        """Make the examples of a round, of its cells and of all texts that fooled the judge."""
        return make_examples(
            judge,
            self.forms,
            self.rows,
            cells,
            fooled,
            show=self.options.show,
            seed=self.attack.file.seed,
        )

    def make_jobs(self) -> JudgeJobs:
        """Make the jobs of this hardening; at the training service its name is a digest."""
        run = f"harden-{digest([self.folder.name, self.identity])[:12]}"
        return JudgeJobs(self.folder, run, self.training, self.attack.file.seed)

    def make_parts(self, model: str) -> AttackParts:
        """Make the parts of an attack on the judge with another model."""
        if model == self.judge.seat.agent.model_name:
            return self.attack.parts
        changes = [f"judge.model_name={json.dumps(model)}"]
        if self.attack.file.judge.served_as:
            changes.append("judge.served_as=[]")  # these are names of the first model
        file = load_judge_file(self.path, [*self.overrides, *changes])
        return replace(self.attack.parts, judge=make_judge(file, self.judge.seat.client))


@contextlib.asynccontextmanager
async def prepare_hardening(path: Path, options: HardenOptions) -> AsyncIterator[PreparedHardening]:
    """Read and check all that a hardening needs; raises SettingsError before anything is paid."""
    if options.rounds < 1:
        raise SettingsError(f"--rounds {options.rounds}: at least 1")
    if options.show < MIN_EXAMPLES:
        raise SettingsError(
            f"--show {options.show}: at least {MIN_EXAMPLES}; some 50 to 300 gold verdicts are "
            "shown, as a judge that never rejects learns to from them alone"
        )
    overrides, training = split_overrides(options.overrides)
    plain = JudgeOptions(
        options.run_store,
        kinds=options.kinds,
        problems=options.problems,
        overrides=overrides,
    )
    async with prepare_attack(path, plain) as attack:
        file = attack.file
        judge, forms = find_gold_forms(file, attack.parts.judge)
        settings = read_training(file, training, options.passes)
        texts = min(len(attack.rows.wrong_choosing), len(attack.rows.right_choosing))
        if 2 * texts < MIN_EXAMPLES:
            raise SettingsError(
                f"{file.data.file}: {texts} questions of each label are for choosing, and a "
                f"training takes {MIN_EXAMPLES // 2}; grade some more rows"
            )
        shown_kinds, held_out = split_kinds([wording.kind for wording in attack.parts.wordings])
        identity = {
            "judge": judge.digest,
            "rows": attack.rows.digest,
            "wordings": [wording.key for wording in attack.parts.wordings],
            "no_verdict": file.no_verdict,
            "seed": file.seed,
            "rounds": options.rounds,
            "show": options.show,
            "training": {
                **settings.hyper_parameters,
                **settings.nip.model_dump(exclude_unset=True),
            },
        }
        name = options.name or f"{path.stem}-harden-{digest(identity)[:8]}"
        yield PreparedHardening(
            options=options,
            path=path,
            attack=attack,
            judge=judge,
            forms=forms,
            shown_kinds=shown_kinds,
            held_out=held_out,
            training=settings,
            folder=Path(options.run_store) / "judges" / name,
            identity=identity,
            overrides=overrides,
        )


async def harden_judge(
    prepared: PreparedHardening,
    on_part: Tell = tell_none,
    on_answer: Callable[[], None] = lambda: None,
) -> tuple[HardenDocument, NipError | None]:
    """Play a hardening, go on with it, or read its result; write its documents.

    A cap that is reached gives a result that is not finished, with its error. Raises JobError or
    StageError where a training fails, and RunConflictError for a folder of another hardening.
    """
    began_s = time.monotonic()
    _claim_folder(prepared)
    if (finished := _read_finished(prepared.folder)) is not None:
        return finished, None
    rounds, cells = list[RoundWords](), list[Cell]()
    stopped: NipError | None = None
    # Open from the first call to the last: no other process attacks or trains meanwhile.
    async with open_journal(prepared.folder / "calls.journal") as journal:
        file = prepared.attack.file
        asker = Asker(
            journal,
            prepared.attack.caps,
            concurrency=file.concurrency,
            seed=file.seed,
            on_answer=on_answer,
        )
        try:
            last = await _play_rounds(prepared, asker, rounds, on_part)
            if rounds:
                pair = prepared.attack.parts, last
                cells = await play_last_test(*pair, asker, cells, on_part)
        except CapReached as error:
            stopped = error
    document = make_harden_document(
        cells,
        rounds,
        judge=prepared.judge.name,
        shown_kinds=prepared.shown_kinds,
        held_out=prepared.held_out,
        no_verdict=file.no_verdict,
        stopped=stopped,
        tries=_count_tries(prepared),
        digests={"judge": prepared.judge.digest, "rows": prepared.rows.digest},
        spending=asker.spending,
        usd=asker.spending.price(prepared.attack.caps),
        seconds=time.monotonic() - began_s,
        notes=prepared.notes,
    )
    _write(prepared, document, cells)
    return document, stopped


def _write(prepared: PreparedHardening, document: HardenDocument, cells: Sequence[Cell]) -> None:
    write_cells(prepared.folder / "cells.parquet", cells, prepared.order)
    screen = write_harden_screen(document)
    write_whole(prepared.folder / "screen.txt", screen + "\n")
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    # The last one: with it a hardening is over.
    write_whole(prepared.folder / DOCUMENT, text + "\n")


async def _play_rounds(
    prepared: PreparedHardening, asker: Asker, rounds: list[RoundWords], on_part: Tell
) -> AttackParts:
    """Play all rounds; return the parts of the last judge. One that nothing fooled is the last."""
    parts, jobs, fooled = prepared.attack.parts, prepared.make_jobs(), list[Cell]()
    policy = prepared.attack.file.no_verdict
    for number in range(1, prepared.options.rounds + 1):
        cells = await _attack(prepared, parts, asker, number, on_part)
        hits = [cell for cell in cells if cell.attack == "wording" and is_hit(cell, policy)]
        if number > 1 and not hits:
            break
        fooled += hits  # what fooled an earlier round's judge is not to be forgotten
        judge = parts.judge
        assert isinstance(judge, ChatJudge)
        examples = prepared.make_examples(judge, cells, fooled)
        path = prepared.folder / f"round-{number}.jsonl"
        path.write_bytes(to_jsonl(examples.chats))
        on_part(f"round {number}: training", len(examples.chats))
        new_model = await jobs.train(number, examples.chats, judge.seat)
        parts = prepared.make_parts(new_model.model)
        rounds.append(_describe_round(number, judge.name, cells, policy, examples, new_model))
    return parts


async def _attack(
    prepared: PreparedHardening, parts: AttackParts, asker: Asker, number: int, on_part: Tell
) -> list[Cell]:
    """Attack the judge of a round by the shown kinds, on questions for choosing alone."""
    rows = prepared.rows
    plain = (*rows.wrong_choosing, *rows.right_choosing)
    texts = [Text("as they are", "choosing", row, row.response) for row in plain]
    texts += dress_rows(parts, prepared.shown_wordings, rows.wrong_choosing, "choosing")
    on_part(f"round {number}: attack", len(texts))
    cells = await judge_texts(parts, asker, texts)
    write_cells(prepared.folder / f"round-{number}.parquet", cells, prepared.order)
    return cells


def _describe_round(
    number: int,
    attacked_model: str,
    cells: Sequence[Cell],
    policy: NoVerdict,
    examples: Examples,
    model: TrainedJudge,
) -> RoundWords:
    plain = [cell for cell in cells if cell.attack == "none"]
    dressed = [cell for cell in cells if cell.attack == "wording"]
    sides = [[cell for cell in plain if cell.is_right is label] for label in (False, True)]
    return RoundWords(
        number=number,
        attacked_model=attacked_model,
        texts=sum(cell.label_by != "" for cell in dressed),
        fooled=sum(is_hit(cell, policy) for cell in dressed),
        wrong_accepted=sum(is_hit(cell, policy) for cell in sides[0]),
        right_rejected=sum(is_hit(cell, policy) for cell in sides[1]),
        wrong_rows=len(sides[0]),
        right_rows=len(sides[1]),
        examples=len(examples.chats),
        of_fooled=examples.fooled,
        job=model.job,
        model=model.model,
        weights=model.digest,
        is_proved=model.is_proved,
        trained_tokens=model.trained_tokens,
    )


def plan_hardening(prepared: PreparedHardening) -> dict[str, Any]:
    """Plan a hardening: its calls by part, the examples and the jobs, each at most."""
    rows, rounds = prepared.rows, prepared.options.rounds
    plain = len(rows.wrong_choosing) + len(rows.right_choosing)
    attack = plain + len(rows.wrong_choosing) * len(prepared.shown_wordings)
    gold = 2 * min(prepared.options.show // 2, count_right_texts(rows))
    return {
        "judge": prepared.judge.name,
        "shown": [*prepared.shown_kinds],
        "held_out": [*prepared.held_out],
        "calls": {
            "attacks of the rounds": rounds * attack,
            "last test": count_last_test(rows, prepared.attack.parts.wordings),
        },
        "gold": gold,
        "answers": [*prepared.forms],
        "jobs": rounds,
        "job": prepared.make_jobs().describe(prepared.attack.file),
        "folder": str(prepared.folder),
        "notes": [*prepared.notes],
    }


def _claim_folder(prepared: PreparedHardening) -> None:
    """Create the folder, or see that it is this hardening's. Raises RunConflictError."""
    folder, text = prepared.folder, canonical_json(prepared.identity).decode()
    settings = folder / SETTINGS
    if not settings.exists():
        if (folder / "settings.json").exists():
            raise RunConflictError(f"{folder} has an attack; name the hardening with --name")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(settings, text)
        return
    on_record, identity = json.loads(settings.read_text(encoding="utf-8")), json.loads(text)
    differences = sorted(key for key in identity if identity[key] != on_record.get(key))
    if differences:
        raise RunConflictError(
            f"{folder} has a hardening with another {' and '.join(differences)}; name this one "
            "with --name, or leave --name out"
        )


def _read_finished(folder: Path) -> HardenDocument | None:
    """Read the result of a hardening that has ended."""
    path = folder / DOCUMENT
    if not path.exists():
        return None
    document: HardenDocument = json.loads(path.read_text(encoding="utf-8"))
    return document if document["stopped"] is None else None


def _count_tries(prepared: PreparedHardening) -> int:
    """Count the hardenings of this store on the same rows: who tries often, finds by luck."""
    tries = 0
    for path in prepared.folder.parent.glob(f"*/{SETTINGS}"):
        with contextlib.suppress(OSError, ValueError):
            on_record = json.loads(path.read_text(encoding="utf-8"))
            tries += on_record.get("rows") == prepared.rows.digest
    return tries
