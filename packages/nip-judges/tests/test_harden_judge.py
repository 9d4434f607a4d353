"""A judge that its user trains: attacked by shown kinds, trained once a round, tested once."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.cells import cell_len
from typer.testing import CliRunner, Result

from nip_core.errors import BudgetError, JobError, NipError, RunConflictError, SettingsError
from nip_judges.documents.judge_document import read_cells
from nip_judges.harden.hardening import (
    HardenOptions,
    harden_judge,
    plan_hardening,
    prepare_hardening,
)
from nip_judges.harden.hardening_figures import HardenDocument, make_harden_document
from nip_judges.harden.hardening_screen import write_harden_plan, write_harden_screen
from nip_judges.parts import Cell, Phase
from nip_judges.play.asking import Spending
from nip_lm_server.testing import ServerDouble, serve_double

JOBS = "/v1/fine_tuning/jobs"
ACCEPT, REJECT = "Decision: accept", "Decision: reject"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerDouble]:
    with serve_double(tmp_path_factory.mktemp("server"), ["sim"]) as double:
        yield double


@pytest.fixture
def double(served: ServerDouble, monkeypatch: pytest.MonkeyPatch) -> ServerDouble:
    """A judge that rejects a guess, and without training accepts all that is none."""
    served.reset()
    served.reply(REJECT, last_contains="I guess")
    served.reply(ACCEPT, last_contains="The sum is")
    served.reply(REJECT, min_generation=1)
    served.reply(ACCEPT)
    monkeypatch.setenv("NIP_API_KEY", served.api_key)
    return served


def write_judge(folder: Path, url: str, judge: str = "", right: int = 12, wrong: int = 12) -> Path:
    counts = {"The sum is": right, "I guess": wrong}
    rows = [
        {"question": f"{begin} {n} + 2?", "response": f"{begin} {n}.", "right": begin != "I guess"}
        for begin, count in counts.items()
        for n in range(1000, 1000 + count)
    ]
    (folder / "graded.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "grader.txt").write_text("{response}")
    (folder / "judge.yaml").write_text(
        f"judge:\n  prompt: grader.txt\n  model_provider: SelfHosted\n  model_name: sim\n"
        f"  base_url: {url}\n  accept: '{ACCEPT}'\n  reject: '{REJECT}'\n{judge}"
        "data:\n  file: graded.jsonl\n"
    )
    return folder / "judge.yaml"


def harden(
    path: Path, on_part: Callable[[str, int], None] = lambda part, texts: None, **options: Any
) -> HardenDocument:
    options = {"rounds": 1, "run_store": str(path.parent / "runs"), "name": "hard", **options}
    options.setdefault("kinds", ("nothing", "opener"))

    async def play() -> HardenDocument:
        async with prepare_hardening(path, HardenOptions(**options)) as prepared:
            document, stopped = await harden_judge(prepared, on_part)
        if stopped is not None:
            raise stopped
        return document

    return asyncio.run(play())


def count_jobs(double: ServerDouble) -> int:
    return sum(r.method == "POST" and r.path == JOBS and r.status == 200 for r in double.requests)


def without_time(document: HardenDocument) -> dict[str, Any]:
    return {**document, "cost": {**document["cost"], "seconds": 0}}


def test_shown_kinds_train_it_and_a_held_out_kind_says_once_whether_it_is_harder_to_fool(
    double: ServerDouble, tmp_path: Path
) -> None:
    path = write_judge(tmp_path, double.base_url, right=140)
    document = harden(path, rounds=2, show=60)
    # The second round found nothing more, so it trained nothing.
    assert document["verdict"] == "HARDER" and document["meets_gate"], document["sentence"]
    assert count_jobs(double) == len(document["rounds"]) == 1
    (first,) = document["rounds"]
    assert first["is_proved"] and first["model"].startswith("ft:sim:harden-")
    assert document["primary"] == "opener/thought process" and document["change"] is not None
    assert document["change"]["change"] == -1 and document["is_better"]
    assert (document["shown_kinds"], document["held_out"]) == (["nothing"], ["opener"])
    # Examples are balanced, of questions for choosing, and of no held-out kind.
    folder = tmp_path / "runs" / "judges" / "hard"
    examples = [json.loads(line) for line in (folder / "round-1.jsonl").read_text().splitlines()]
    answers = Counter(example["messages"][-1]["content"] for example in examples)
    assert answers[ACCEPT] == answers[REJECT] == first["examples"] // 2
    cells = read_cells(folder / "cells.parquet")
    seen = {example["messages"][0]["content"] for example in examples}
    tested = {c.response for c in cells if c.part == "test" and c.phase == "as they are"}
    assert tested and seen.isdisjoint(tested)
    held = {c.response for c in cells if c.kind in document["held_out"]}
    assert held and seen.isdisjoint(held)
    screen = write_harden_screen(document)
    assert "opener" in screen and max(map(cell_len, screen.splitlines())) <= 100
    # It has ended: nothing is asked again.
    double.requests.clear()
    assert harden(path, rounds=2, show=60) == document and not double.requests


def make_cell(judge: str, row: int, is_right: bool, name: str, phase: Phase, hit: bool) -> Cell:
    outcomes = ("accepted", "wrongly rejected") if is_right else ("rejected", "fooled")
    return Cell(
        judge=judge,
        phase=phase,
        part="choosing" if phase == "choosing" else "test",
        row=f"{row} {is_right}",
        question_id=f"{row} {is_right}",
        is_right=is_right,
        attack="wording" if name else "none",
        kind="opener" if name else "",
        name=name,
        asking=0,
        response="",
        verdict="accept" if hit != is_right else "reject",
        outcome=outcomes[hit],
        label_by="row",
        words="",
        reason="",
        score=None,
        p_accept=None,
        model="",
        prompt_tokens=0,
        completion_tokens=0,
    )


def test_a_hole_that_moves_within_its_kind_is_not_called_closed() -> None:
    cells = []
    for judge, hole in (("judge", "Solution"), ("against", "Respuesta")):
        for row in range(120):
            cells += [
                make_cell(judge, row, side, "", "as they are", False) for side in (True, False)
            ]
            for name in ("Solution", "Respuesta"):
                phase: Phase = "choosing" if row < 20 else "test"
                cells.append(make_cell(judge, row, False, name, phase, name == hole))
    document = make_harden_document(
        cells,
        [],
        judge="sim",
        shown_kinds=["nothing"],
        held_out=["opener"],
        no_verdict="reject",
        stopped=None,
        tries=1,
        digests={},
        spending=Spending(),
        usd=None,
        seconds=0,
        notes=[],
    )
    # Nothing was trained here; with a round it would be "not shown".
    assert document["verdict"] == "NO CHANGE" and not document["is_better"]
    assert (document["primary"], document["own_worst"]) == ("opener/Solution", "opener/Respuesta")
    assert document["change"] is not None and document["change"]["change"] == 0
    assert document["same_text"] is not None and document["same_text"]["change"] == -1


def test_a_stop_at_any_part_goes_on_with_the_same_job(double: ServerDouble, tmp_path: Path) -> None:
    parts: list[str] = []
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    path = write_judge(tmp_path / "whole", double.base_url)
    whole = harden(path, lambda part, texts: parts.append(part))
    path = write_judge(tmp_path / "parts", double.base_url)
    double.requests.clear()
    assert parts[1:3] == ["round 1: training", "first judge: choosing"]
    for stop in (parts[1], parts[-1]):

        def end(part: str, texts: int, stop: str = stop) -> None:
            if part == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            harden(path, end)
    double.requests.clear()
    document = harden(path)
    assert without_time(document) == without_time(whole)
    jobs = list((tmp_path / "parts").glob("runs/judges/hard/training/iterations/*/jobs/*.json"))
    assert len(jobs) == 1 and not json.loads(jobs[0].read_text())["previous"]
    with pytest.raises(RunConflictError, match="another show; name this one"):
        harden(path, show=20)


def test_a_job_that_was_cut_off_is_adopted_and_one_that_failed_is_a_new_attempt(
    double: ServerDouble, tmp_path: Path
) -> None:
    path = write_judge(tmp_path, double.base_url)

    async def cut_off() -> None:
        store = str(tmp_path / "runs")
        options = HardenOptions(1, run_store=store, name="cut", kinds=("nothing", "opener"))
        async with prepare_hardening(path, options) as prepared:
            play = asyncio.create_task(harden_judge(prepared))
            while not count_jobs(double):
                await asyncio.sleep(0.01)
            play.cancel()
            with pytest.raises(asyncio.CancelledError):
                await play

    rules = {"rules": [], "default": [{"text": ACCEPT}]}
    double.script(training={"seconds": 1.0}, **rules)
    asyncio.run(cut_off())
    document = harden(path, name="cut")
    assert count_jobs(double) == 1 and document["rounds"][0]["job"]
    # A judge that accepts whatever it is given, after a training too, is called so.
    assert document["verdict"] == "CAN'T SAY", document
    assert "100.0 % of wrong ones" in document["sentence"]
    double.script(training={"fail_rate": 1.0}, **rules)
    with pytest.raises(JobError, match=r"round 1: job .* ended as failed .*injected_failure"):
        harden(path, name="again")
    double.script(**rules)
    assert harden(path, name="again")["verdict"] == "CAN'T SAY"


def test_a_cap_ends_it_unfinished_and_more_goes_on(double: ServerDouble, tmp_path: Path) -> None:
    path = write_judge(tmp_path, double.base_url)
    with pytest.raises(BudgetError, match="cap of 30 calls"):
        harden(path, overrides=["budget.calls=30"])
    text = (tmp_path / "runs/judges/hard/screen.txt").read_text()
    assert text.startswith("NOT FINISHED.") and count_jobs(double) == 0


def test_a_dry_run_asks_nothing_and_says_calls_examples_and_jobs(
    double: ServerDouble, tmp_path: Path
) -> None:
    path = write_judge(tmp_path, double.base_url)
    options = HardenOptions(3, show=50, overrides=["training.learning_rate=2e-3"])

    async def plan() -> dict[str, Any]:
        async with prepare_hardening(path, options) as prepared:
            return plan_hardening(prepared)

    planned = asyncio.run(plan())
    assert not double.requests and planned["jobs"] == 3 and planned["gold"] == 50
    assert planned["job"]["learning_rate"] == 0.002 and planned["job"]["n_epochs"] == 3
    text = write_harden_plan(planned)
    assert "held out for the last test: opener" in text and "can't be met by 6" in text


@pytest.mark.parametrize(
    ("judge", "options", "message"),
    [
        ("", {"rounds": 0}, "--rounds 0"),
        ("", {"show": 4}, "--show 4: at least 10"),
        ("", {"overrides": ["training.learnig_rate=1"]}, "did you mean 'learning_rate'"),
        ("", {"overrides": ["training.n_epochs=many"]}, "n_epochs: a whole number"),
        ("  pattern: 'verdict=(\\w+)'\n", {}, "are not read as accept and reject"),
    ],
)
def test_what_can_not_be_trained_is_refused_in_a_line(
    double: ServerDouble, tmp_path: Path, judge: str, options: dict[str, Any], message: str
) -> None:
    path = write_judge(tmp_path, double.base_url, judge)
    with pytest.raises(SettingsError, match=message) as error:
        harden(path, **options)
    assert "\n" not in str(error.value) and not double.requests


def test_providers_and_judges_that_train_nothing_are_refused(
    double: ServerDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_judge(tmp_path, double.base_url)
    monkeypatch.setenv("OPENROUTER_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    refused: list[tuple[list[str], str]] = [
        (["judge.model_provider=OpenRouter"], "line 3: model_provider OpenRouter trains no model"),
        (
            ["judge.model_provider=OpenAI", "training.lora_rank=8"],
            "training.lora_rank: OpenAI does not take it",
        ),
    ]
    for overrides, message in refused:
        with pytest.raises(NipError, match=message):
            harden(path, overrides=overrides)
    (tmp_path / "own.py").write_text("def judge(question, response):\n    return True\n")
    path.write_text("judge:\n  function: own.py:judge\ndata:\n  file: graded.jsonl\n")
    with pytest.raises(SettingsError, match="trains a judge that is a prompt"):
        harden(path)


def test_the_command_takes_a_judge_in_the_place_of_a_run(
    double: ServerDouble, tmp_path: Path
) -> None:
    from nip_study.commands.harden import harden as command

    path = write_judge(tmp_path, double.base_url)

    app = typer.Typer()
    app.command()(command)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["--judge", str(path), *arguments])

    done = call("--rounds", "1", "--dry-run", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["jobs"] == 1
    refused = call("--rounds", "1", "--attack", "sneaky")
    assert isinstance(refused.exception, SettingsError)
    assert "--attack is not for --judge" in str(refused.exception)


@pytest.mark.long  # it loads torch and trains
def test_a_real_model_that_learned_nothing_imitates_gold_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_double(tmp_path / "server", ["tiny"], has_weights=True) as tiny:
        monkeypatch.setenv("NIP_API_KEY", tiny.api_key)
        limits = "  temperature: 0\n  max_tokens_per_message: 12\n"
        path = write_judge(tmp_path, tiny.base_url, limits, right=40, wrong=40)
        training = ["training.learning_rate=2e-3", "training.batch_size=4"]
        training.append("judge.model_name=tiny")
        document = harden(path, show=100, passes=5, problems=15, overrides=training)
    before, after = document["old"]["as_they_are"], document["new"]["as_they_are"]
    assert before["right_rejected"] and after["right_rejected"] and after["wrong_accepted"]
    assert after["right_rejected"]["rate"] + after["wrong_accepted"]["rate"] <= 0.1
    assert before["right_rejected"]["rate"] > after["right_rejected"]["rate"]
    assert document["rounds"][0]["is_proved"] and document["rounds"][0]["weights"]
