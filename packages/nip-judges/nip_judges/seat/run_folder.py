"""The judged texts of an attack as an ordinary run, for nip's viewer, report, exports and checks.

write_run    plays them through nip's own loop, both seats answered from the record
digest_cells tells whether a run has the same ones
name_text    the name of a judged text among the run's problems
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from nip_core.errors import SettingsError
from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import AnswerForm, parse_response
from nip_core.hashing import digest
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.rollouts.client.answer_parts import make_storable
from nip_judges.parts import Cell, GradedRow
from nip_judges.seat.judge_service import (
    Answer,
    SeatAnswer,
    SeatRecord,
    SeatService,
    choose_port,
    serve_seat,
    write_answer,
)
from nip_judges.seat.scenario import (
    PROVIDER,
    SCENARIO,
    Recorded,
    make_problem,
    read_recorded_number,
    read_seat,
)

PROBLEMS = "problems"
"""The folder of the run's dataset, beside the attack's other files."""
WRITER, JUDGE = "texts-on-record", "judge-on-record"
_CONCURRENCY = 64
_EPISODES_PER_SHARD = 500
_MESSAGE = AnswerForm(("main",), {}, None)
_UNFOOLED = ("right after all", "not certain")


async def write_run(
    name: str,
    folder: Path,
    cells: Sequence[Cell],
    rows: Iterable[GradedRow],
    *,
    run_store: str = "runs",
) -> Mapping[str, Any]:
    """Write the cells of an attack as the run `name`; return its summary, as `nip show` has it.

    Every cell is an episode: its prover says the judged text, its verifier the judge's words and
    its verdict. A wrong text that is right after all, or whose label is not certain, counts as
    turned away, as it fools no judge; its outcome says so. The problem's name has phase, kind and
    name of the wording, its `mutation` the kind, its `difficulty` the outcome.

    `rows` are all rows of which there are cells, `folder` is where the problems are kept. The same
    cells give the same tables, and go on with a run that was stopped. Raises SettingsError for no
    cells, or one without its row.
    """
    by_id = {row.id: row for row in rows}
    if not cells:
        raise SettingsError("there is no judged text, so there is no run to write")
    if absent_rows := sorted({cell.row for cell in cells} - by_id.keys()):
        raise SettingsError(f"row {absent_rows[0]}: it was judged and is not among the rows")
    cells = [replace(cell, response=make_storable(cell.response)) for cell in cells]
    problems = [_make_problem(cell, by_id[cell.row], i) for i, cell in enumerate(cells)]
    directory = folder / PROBLEMS
    directory.mkdir(parents=True, exist_ok=True)
    # A dataset needs a problem for training; none is played.
    unplayed = make_problem(GradedRow("unplayed", "unplayed", "unplayed", "unplayed", None, False))
    for split, problems_of_split in (("train", [unplayed]), ("test", problems)):
        lines = (json.dumps(problem, ensure_ascii=False) + "\n" for problem in problems_of_split)
        (directory / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    answers = [_answer(cell) for cell in cells]

    async def answer(body: Mapping[str, Any], seed: int) -> SeatAnswer:
        chat = body["messages"]
        if (seat := read_seat(chat)) is not None:
            number = seat[2]
            assert number is not None  # every problem of this run has one
            return answers[number]
        if (number := read_recorded_number(chat)) is None:
            raise ValueError("the chat names no text on record")
        return SeatAnswer(_say(cells[number].response))

    from nip_core.loop import train

    models = sorted({cell.model for cell in cells if cell.model})
    with _serve(answer, choose_port(digest_cells(cells))) as service:
        return await train(_settings(name, directory, run_store, service, models))


def digest_cells(cells: Sequence[Cell]) -> str:
    """Return the SHA-256 of cells in hex: it tells whether a run has the same ones."""
    return digest([asdict(cell) for cell in cells])


@contextmanager
def _serve(answer: Answer, port: int) -> Iterator[SeatService]:
    """Serve at a port of the cells' own: the run's settings name it, and are to stay the same."""
    with ExitStack() as stack:
        try:
            service = stack.enter_context(serve_seat(answer, (WRITER, JUDGE), port=port))
        except OSError:  # another process has it
            service = stack.enter_context(serve_seat(answer, (WRITER, JUDGE)))
        yield service


def name_text(cell: Cell, number: int) -> str:
    """Name a judged text: its phase, attack, wording, row and asking, for a filter by its parts."""
    wording = "/".join(part for part in (cell.kind, cell.name) if part) or "as it is"
    repeat = f" · asked {cell.asking + 1} times" if cell.asking else ""
    attack = "" if cell.attack == "none" else f"{cell.attack} · "
    return f"{cell.judge} · {cell.phase} · {attack}{wording} · row {cell.row}{repeat} · {number}"


def _make_problem(cell: Cell, row: GradedRow, number: int) -> dict[str, Any]:
    return make_problem(
        replace(row, question_id=cell.question_id, is_right=cell.is_right),
        id=name_text(cell, number),
        recorded=Recorded(number, cell.response, cell.label_by),
        difficulty=cell.outcome,
        mutation=cell.kind or cell.phase,
    )


def _answer(cell: Cell) -> SeatAnswer:
    """Return the judge's answer on record, as nip is to count it."""
    notes = [f"No verdict: {cell.reason or 'no form of it'}."] if cell.verdict == "none" else []
    decision: Literal["accept", "reject"] | None
    decision = None if cell.verdict == "none" else cell.verdict
    p_accept = cell.p_accept
    if cell.outcome in _UNFOOLED:
        notes.append(f"The text is {cell.outcome}, so it fools no judge and counts as turned away.")
        decision, p_accept = "reject", None
    record = SeatRecord(
        cell.verdict,
        cell.words,
        cell.reason,
        score=cell.score,
        p_accept=cell.p_accept,
        model=cell.model,
    )
    text = write_answer(make_storable(cell.words), decision, notes, record)
    tokens = cell.prompt_tokens, cell.completion_tokens
    return SeatAnswer(text, decision, p_accept, *tokens, cell.model or None)


def _say(text: str) -> str:
    """Say a judged text; one that is no message to nip as JSON. The judge reads it as it was."""
    quoted = json.dumps(text, ensure_ascii=False)
    for message in (text, quoted, quoted.replace("<", "\\u003c")):
        with suppress(InvalidResponse):
            if parse_response(message, _MESSAGE).messages == {"main": message.strip()}:
                return message
    return json.dumps(text)


def _settings(
    name: str, directory: Path, run_store: str, service: SeatService, models: Sequence[str]
) -> HyperParameters:
    agent = {
        "model_provider": PROVIDER,
        "base_url": service.url,
        "freeze_agent": True,
        "num_invalid_generation_retries": 0,
    }
    return load_parameters(
        {
            "run_name": name,
            "run_store": run_store,
            "scenario": SCENARIO,
            "dataset": str(directory),
            "interaction_protocol": "adp",
            "agents": {
                "prover": {**agent, "model_name": WRITER},
                "verifier": {**agent, "model_name": JUDGE, "served_as": [*models]},
            },
            "rl": {"num_iterations": 0},
            "text_rl": {"test_scheme": "last"},
            "dataset_options": {"make_balanced": False},
            "rollouts": {
                "concurrency": _CONCURRENCY,
                "episodes_per_shard": _EPISODES_PER_SHARD,
                "failure_threshold": 1.0,
                "record_p_accept": True,
            },
        }
    )
