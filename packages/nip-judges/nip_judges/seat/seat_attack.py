"""nip's own attacks on a judge in the verifier's seat: trained provers, best-of-n, one's own.

write_seat_problems         the rows as a dataset: train and validation of those for choosing, test
make_seat_settings          the settings of the game itself, of which nothing is trained
attack_settings_for_judge   the game as a run on record, and the settings of an attack on it
read_seat_cells             the cells of such an attack's last test, or of one before

An attack of nip's is one on a run on record. No run has trained the judge, so that run is the
game with zero iterations. By default it plays nothing, as the attack tests the untrained attacker.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nip_core.attacks.course import TESTED_EVERY
from nip_core.errors import SettingsError
from nip_core.game.render import parse_columns
from nip_core.loop import train
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.parameters.attack_settings import derive_attack
from nip_core.parameters.stored import complete_settings
from nip_core.rollouts.storage.table_rows import Episode, Generation, read_rows
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.origin import check_attacked
from nip_judges.parts import Cell, GradedRow
from nip_judges.seat.judge_service import SeatRecord, SeatService, read_record
from nip_judges.seat.scenario import PROVIDER, SCENARIO, compose_text, make_problem, read_row

_VALIDATION_EVERY = 3
"""Of the questions for choosing, every third is one of validation."""


def write_seat_problems(
    directory: Path, choosing: Iterable[GradedRow], test: Iterable[GradedRow]
) -> Path:
    """Write the wrong rows for choosing and for the test as a dataset; return its folder.

    Raises SettingsError for a part that has too few questions.
    """
    wrong_rows = [row for row in choosing if not row.is_right]
    questions = [*dict.fromkeys(row.question_id for row in wrong_rows)]
    held = set(questions[_VALIDATION_EVERY - 1 :: _VALIDATION_EVERY])
    by_split = {
        "train": [row for row in wrong_rows if row.question_id not in held],
        "validation": [row for row in wrong_rows if row.question_id in held],
        "test": [row for row in test if not row.is_right],
    }
    if empty := [split for split, rows in by_split.items() if not rows]:
        raise SettingsError(
            f"there is no wrong row for {', '.join(empty)}: an attack by a model takes wrong rows "
            f"of {_VALIDATION_EVERY} questions for choosing and of one for the test"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for split, rows in by_split.items():
        lines = (json.dumps(make_problem(row), ensure_ascii=False) + "\n" for row in rows)
        (directory / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return directory


def make_seat_settings(
    name: str,
    problems: Path,
    service: SeatService,
    attacker: Mapping[str, Any],
    *,
    run_store: str = "runs",
    surface: Literal["free", "around"] = "free",
    judge_prompt: str = "",
    system_prompt_version: Literal["v1", "v3", "short"] = "v1",
    tests: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> HyperParameters:
    """Make the settings of the game of an attacker and the judge that `service` answers for.

    `attacker` are settings of an agent (`model_provider`, `model_name`, …). With `tests` the
    attacker is tested as it is. `settings` are laid on top, block by block. Raises SettingsError.
    """
    values: dict[str, Any] = {
        "run_name": name,
        "run_store": run_store,
        "scenario": SCENARIO,
        "scenario_settings": {
            "surface": surface,
            "judge_prompt": judge_prompt,
            "system_prompt_version": system_prompt_version,
        },
        "dataset": str(problems),
        "interaction_protocol": "adp",
        "agents": {
            "prover": {"fine_tune_from_scratch": False, **attacker},
            "verifier": {
                "model_provider": PROVIDER,
                "model_name": service.models[0],
                "base_url": service.url,
                "freeze_agent": True,
                # A judge that gives no verdict has given none: it is not asked again.
                "num_invalid_generation_retries": 0,
            },
        },
        "rl": {"num_iterations": 0},
        "text_rl": {"test_scheme": "last" if tests else "none"},
        "dataset_options": {"make_balanced": False},
        "rollouts": {"record_p_accept": True},
    }
    for block, value in (settings or {}).items():
        old = values.get(block)
        is_block = isinstance(old, dict) and isinstance(value, Mapping)
        values[block] = {**old, **value} if is_block else value  # type: ignore[dict-item]
    return load_parameters(values)


async def attack_settings_for_judge(
    game: HyperParameters,
    *,
    by: str = "sneaky",
    steps: int | None = None,
    every: int = TESTED_EVERY,
    name: str | None = None,
    attack: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> HyperParameters:
    """Put the game on record, if it is not yet, and make the settings of an attack on its verifier.

    `attack` has further settings of that block (`n`, `until`, `start_from`, `problems`). The
    attack's settings go to `nip_core.loop.train` while the judge's service runs. An attack that
    goes on needs the service at the same address, see `choose_port`. Raises SettingsError.
    """
    run = RunStore(open_store(game.run_store), game.run_name)
    if not run.store.exists(f"{run.root}/run.json"):
        await train(game)
    options = {"by": by, "run": game.run_name, "iteration": 0, **(attack or {})}
    parameters = derive_attack(
        game,
        options,
        steps=steps,
        every=every,
        name=name or f"{game.run_name}-{by}",
        overrides=overrides,
    )
    check_attacked(parameters, run)
    return parameters


def read_seat_cells(
    run_store: str,
    name: str,
    *,
    split: str = "attack",
    iteration: int | None = None,
    label_by: str = "check",
) -> list[Cell]:
    """Read the judged texts of an attack by training, as cells, in the order of play.

    By default those of its last test, which the worst attacker by validation has played; where
    that is the untrained one, of the test before any step. An episode that failed is not certain.
    `label_by` is the check's name. Raises SettingsError for a split that was not played.
    """
    run = RunStore(open_store(run_store, read_only=True), name)
    parameters = complete_settings(run.open().parameters)
    last = int(parameters["rl"]["num_iterations"])
    tried = [last, 0] if iteration is None else [iteration]
    committed = [i for i in tried if is_committed(run.store, run.rollouts(i, split))]
    if not committed:
        raise SettingsError(f"run {name!r} has not played the split {split} yet; let it go on")
    tables = read_rollouts(run.store, run.rollouts(committed[0], split))
    answers: dict[str, dict[str, Generation]] = {}
    for row in read_rows(tables.generations, Generation):
        if row.invalid_reason is None:
            answers.setdefault(row.episode, {})[row.agent] = row
    surface = parameters["scenario_settings"]["surface"]
    return [
        _read_cell(episode, answers.get(episode.key, {}), surface, label_by)
        for episode in read_rows(tables.episodes, Episode)
    ]


def _read_cell(
    episode: Episode,
    answers: Mapping[str, Generation],
    surface: str,
    label_by: str,
) -> Cell:
    row = read_row(parse_columns(episode.columns)["row"])
    prover, verifier = answers.get("prover"), answers.get("verifier")
    record = None if verifier is None else read_record(verifier.text)
    if record is None:
        record = SeatRecord("none", "", episode.error or "no answer", "not certain")
    outcome = {"accept": "fooled", "reject": "rejected", "none": "no verdict"}[record.verdict]
    if record.label in ("right after all", "not certain"):
        outcome = record.label
    # nip reads a message without the white space around it.
    message = "" if prover is None else prover.text.strip()
    return Cell(
        judge="judge",
        phase="test",
        part="test",
        row=row.id,
        question_id=row.question_id,
        is_right=row.is_right,
        attack="trained",
        kind="",
        name="" if prover is None else prover.model_served,
        asking=0,
        response=compose_text(message, row.response, surface),
        verdict=record.verdict,
        outcome=outcome,
        label_by="" if record.label in (None, "not certain") else label_by,
        words=record.words,
        reason=record.reason,
        score=record.score,
        p_accept=record.p_accept,
        model=record.model,
        prompt_tokens=0 if verifier is None else verifier.prompt_tokens,
        completion_tokens=0 if verifier is None else verifier.completion_tokens,
    )
