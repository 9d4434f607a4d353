"""A dataset is built from problems with tests: its labels are theirs, and nothing is paid twice."""

import asyncio
import functools
import json
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from aiohttp import web
from scripted_server import scripted_server
from server_here import one_here
from small_source import apps_rows, human_eval_rows, mbpp_rows, write_files, write_rows

from nip_base.spec import EngineSpec, ServerSpec
from nip_core.errors import CorruptionError, DatasetError, SettingsError, StageError, StoreError
from nip_core.parameters import CodeValidationParameters
from nip_core.rollouts.storage.journal import Journal
from nip_core.scenarios import find_scenario
from nip_core.scenarios.datasets import check_splits, load_problems
from nip_core.scenarios.rows import SPLITS
from nip_problems import build_problems
from nip_problems.asked_model import AskedModelOptions
from nip_problems.build_problems import ANSWERS, TESTS, BuildOptions
from nip_problems.sources import read_source
from nip_problems.tested import TestRunner
from nip_problems.written_bugs import STYLES
from nip_sandbox.sandbox import run_tests_batch

FILES = {"train.parquet", "validation.parquet", "test.parquet", "datasheet.json", "datasheet.md"}
BUGGY = {
    "largest": "def largest(numbers):\n    # subtle\n    return max(numbers)\n",
    "count_even": "def count_even(numbers):\n    return sum(n % 2 == 0 and n > 0 for n in numbers)\n",
    "clamp": "def clamp(x, low, high):\n    return max(low, min(x, high - 1))\n",
    "initials": "def initials(name):\n    return name[:1]\n",
    "running": "def running(numbers):\n    return [sum(numbers)] * len(numbers)\n",
}
RIGHT = "def clamp(x, low, high):\n    return max(low, min(x, high))\n"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("source") / "small.jsonl", human_eval_rows())


@pytest.fixture(autouse=True)
def _examined_once(monkeypatch):
    """A source is run on its tests once, however often it is built."""
    examine = build_problems.examine_source

    def examine_once(source, runner, variants):
        key = (source, runner.max_steps, variants)
        if key not in EXAMINED:
            EXAMINED[key] = examine(source, runner, variants)
        examined = EXAMINED[key]
        return replace(examined, runner=runner.with_steps(examined.runner.steps_of))

    monkeypatch.setattr(build_problems, "examine_source", examine_once)


EXAMINED = {}


def build(source, out, environment=None, say=lambda line: None, **options):
    plain = {"workers": 1, "variants": 3, "max_steps": 20_000, "allow_without_namespaces": True}
    made = BuildOptions(out=out, **{**plain, **options})
    return build_problems.build(source, made, say, environment or {}).to_dict()


@pytest.fixture(scope="module")
def built(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("built") / "small"
    return out, build(source, out, licence="MIT")["facts"]


def rows_in(out):
    return [row for split in SPLITS for row in pq.read_table(out / f"{split}.parquet").to_pylist()]


def test_the_dataset_is_one_that_a_run_takes(built):
    out, facts = built
    assert {path.name for path in out.iterdir()} - {TESTS} == FILES
    scenario = find_scenario("code_validation")(CodeValidationParameters())
    problems = {split: load_problems(scenario, str(out), split) for split in SPLITS}
    check_splits(problems)
    assert sum(map(len, problems.values())) == len(rows_in(out))  # balanced: nothing is left out
    assert facts["problems"] == {"read": 5, "in_dataset": 5}
    assert {row["split"] for row in rows_in(out)} == set(SPLITS)


def test_labels_are_what_the_tests_say_and_each_bug_is_there_once(built, source):
    out, _ = built
    tests = {f"small/{problem.name}": problem for problem in read_source(source).problems}
    runner = TestRunner(1, 200_000, allow_without_namespaces=True)
    rows = rows_in(out)
    reports = runner.run((tests[row["question_id"]], row["solution"]) for row in rows)
    for row in rows:
        report = reports[row["question_id"].removeprefix("small/"), row["solution"]]
        assert report.all_passed == (row["y"] == 1)
        assert (row["mutation"] is None) == (row["y"] == 1)
        assert '"""' not in row["solution"]
    assert len({(row["question_id"], row["solution"]) for row in rows}) == len(rows)
    balance = Counter(row["question_id"] for row in rows if row["y"] == 1)
    assert balance == Counter(row["question_id"] for row in rows if row["y"] == 0)


def test_building_again_gives_equal_bytes_whatever_the_number_of_workers(
    built, source, tmp_path, monkeypatch
):
    out, _ = built
    monkeypatch.setattr(sys.modules[__name__], "EXAMINED", {})
    build(source, tmp_path / "again", licence="MIT", workers=2)
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes(), name


def test_the_datasheet_counts_what_is_there_and_what_is_not(built):
    out, facts = built
    assert facts == json.loads((out / "datasheet.json").read_text())
    rows = rows_in(out)
    assert facts["kinds"] == Counter(row["mutation"] for row in rows if row["mutation"])
    assert sum(counts["rows"] for counts in facts["splits"].values()) == len(rows)
    mutants = facts["mutants"]
    assert mutants["tried"] == sum(v for k, v in mutants.items() if k != "tried") > 30
    page = (out / "datasheet.md").read_text()
    assert "- Licence: MIT" in page
    assert facts["source"]["sha256"] in page


@pytest.mark.parametrize(
    "form",
    ["MBPP", *(pytest.param(form, marks=pytest.mark.long) for form in ("APPS", "Python files"))],
)
def test_every_form_becomes_a_dataset(form, tmp_path):
    if form == "Python files":
        given = write_files(tmp_path / "mine", 3)
    else:
        rows = mbpp_rows()[:3] if form == "MBPP" else apps_rows()
        given = write_rows(tmp_path / "mine.jsonl", rows)
    facts = build(given, tmp_path / "out", max_steps=2_000_000, variants=2)["facts"]
    assert facts["source"]["form"] == form
    assert facts["problems"]["in_dataset"] == facts["problems"]["read"] >= 3
    assert all(facts["splits"][split]["buggy"] for split in SPLITS)
    if form == "APPS":
        (out,) = facts["left_out"]
        assert (out["problem"], out["reason"]) == ("1", "solution is not Python")
        assert {row["difficulty"] for row in rows_in(tmp_path / "out")} == {"introductory"}


def test_a_solution_that_is_too_long_is_left_out_by_name_and_not_waited_for(tmp_path):
    lines = "".join(f"    v{n} = {n} + {n}\n" for n in range(20_000))
    long = {"task_id": "long", "text": "Long.", "test_list": ["assert f() == 1"]}
    long["code"] = f"def f():\n{lines}    return 1\n"
    source = write_rows(tmp_path / "long.jsonl", [*mbpp_rows(), long])
    facts = build(source, tmp_path / "out", variants=1)["facts"]
    [out] = [out for out in facts["left_out"] if out["problem"] == "long"]
    assert out["reason"] == "solution is too long"
    assert out["detail"] == f"{len(long['code'])} characters, at most 100000 are read"


def test_what_fails_its_tests_or_never_ends_is_left_out_and_counted(tmp_path):
    rows = human_eval_rows()
    names = ("wrong", "endless", "untold", "absent")
    bodies = (
        "    return 1\n",
        "    while True:\n        pass\n",
        "    return (\n",
        "    import numpy\n",
    )
    bad = [
        {
            **rows[0],
            "task_id": n,
            "prompt": f"{rows[0]['prompt']}    {n!r}\n",
            "canonical_solution": b,
        }
        for n, b in zip(names, bodies)
    ]
    mixed = write_rows(tmp_path / "mine.jsonl", [*bad, *rows[:3]])
    facts = build(mixed, tmp_path / "out", variants=1)["facts"]
    assert {out["problem"]: out["reason"] for out in facts["left_out"]} == {
        "wrong": "solution fails its tests",
        "endless": "tests do not end",
        "untold": "solution is not Python",
        "absent": "solution fails its tests",
    }
    assert "No module named 'numpy'" in str(facts["left_out"])
    page = (tmp_path / "out" / "datasheet.md").read_text()
    assert "| tests do not end | 1 |" in page
    assert facts["problems"] == {"read": 7, "in_dataset": 3}


def test_a_source_that_gives_no_dataset_is_one_error(tmp_path):
    rows = human_eval_rows()

    def refused(name, rows):
        with pytest.raises(DatasetError) as error:
            build(write_rows(tmp_path / f"{name}.jsonl", rows), tmp_path / name, variants=1)
        assert not (tmp_path / name).exists()
        return str(error.value)

    wrong = [{**row, "canonical_solution": "    return 'no'\n"} for row in rows]
    said = refused("a", wrong)
    assert "no solution passes its own tests; of Small/largest, solution fails its tests: " in said
    assert "\n" not in said
    lenient = [
        {**row, "test": "def check(candidate):\n    assert callable(candidate)\n"} for row in rows
    ]
    assert "all labels would be equal" in refused("b", lenient[:3])
    assert "only 2 of 2 problems are left, and" in refused("c", rows[:2])
    said = refused("d", [{**row, "task_id": "same"} for row in rows])
    assert "only 1 of 5 problems are left (same is not: same name twice, the name of same)" in said


def test_a_build_that_is_stopped_runs_no_test_again_and_gives_equal_bytes(
    built, source, tmp_path, monkeypatch
):
    suites, stop_after = [], [25]

    def counted(batch, **options):
        suites.extend(batch)
        if len(suites) > stop_after[0]:
            raise KeyboardInterrupt
        return run_tests_batch(batch, **options)

    monkeypatch.setattr(sys.modules[__name__], "EXAMINED", {})
    monkeypatch.setattr("nip_problems.tested.run_tests_batch", counted)
    monkeypatch.setattr("nip_problems.tested._AT_ONCE", 10)
    out = tmp_path / "small"
    with pytest.raises(KeyboardInterrupt):
        build(source, out, licence="MIT")
    assert [path.name for path in out.iterdir()] == [TESTS]
    before = {(suite.solution, suite.tests) for suite in suites[:-10]}
    suites.clear()
    stop_after[0] = sys.maxsize
    monkeypatch.setattr(sys.modules[__name__], "EXAMINED", {})
    build(source, out, licence="MIT")
    assert len(before) >= 10 and suites
    assert before.isdisjoint((suite.solution, suite.tests) for suite in suites)
    suites.clear()
    with closing(Journal(out / TESTS)), pytest.raises(StoreError, match="another build is at it"):
        build(source, out)
    assert not suites  # before any test
    # A damaged journal is named, with what to do.
    torn = (out / TESTS).read_bytes()
    (out / TESTS).write_bytes(torn[:40] + b"X" * 9 + torn[49:])
    with pytest.raises(CorruptionError, match=r"tests\.journal: damaged .*; delete it, and the te"):
        build(source, out)
    (out / TESTS).write_bytes(torn)
    # All is known now, also to a build that writes nothing.
    suites.clear()
    monkeypatch.setattr(sys.modules[__name__], "EXAMINED", {})
    journal = (out / TESTS).read_bytes()
    build(source, out, licence="MIT")
    assert (out / TESTS).read_bytes() == journal
    (out / TESTS).write_bytes(journal + b"what a killed build left")
    with closing(Journal(out / TESTS)):
        build(source, out, licence="MIT", dry_run=True)
    assert not suites and (out / TESTS).read_bytes() == journal + b"what a killed build left"
    for name in FILES:
        assert (out / name).read_bytes() == (built[0] / name).read_bytes(), name


def test_what_a_clock_ends_is_run_again(source):
    problem = read_source(source).problems[0]
    endless = "import time\ndef largest(numbers):\n    time.sleep(60)\n"
    runner = TestRunner(1, 1000, allow_without_namespaces=True)
    hasty = replace(runner, limits=replace(runner.limits, wall_s=0.2))
    (report,) = hasty.run([(problem, endless)]).values()
    assert report.status == "timeout" and not hasty.known
    looping = "def largest(numbers):\n    while True:\n        pass\n"
    (report,) = runner.run([(problem, looping)]).values()
    assert report.status == "timeout" and [*runner.known.values()] == [report]
    suite = problem.suite(endless)
    keys = {r.key_of(suite, steps) for r in (runner, hasty) for steps in (1000, 2000)}
    assert len(keys) == 4 and hasty.known is runner.known


def test_a_dataset_of_another_source_is_replaced_only_if_that_is_said(source, tmp_path):
    (tmp_path / "other").mkdir()
    other = write_rows(tmp_path / "other" / "small.jsonl", human_eval_rows()[:3])
    out = tmp_path / "out"
    build(other, out, variants=1)
    before = (out / "datasheet.json").read_bytes()
    with pytest.raises(SettingsError) as refused:
        build(source, out)
    assert "holds a dataset made of small (SHA-256 " in str(refused.value)
    assert "is not the same" in str(refused.value) and "--replace" in str(refused.value)
    assert (out / "datasheet.json").read_bytes() == before
    assert build(source, out, replace=True)["facts"]["problems"]["read"] == 5
    (out / "datasheet.json").write_text("{")
    with pytest.raises(SettingsError, match=r"made of what can't be read .* --replace"):
        build(source, out)


def test_splits_of_a_source_that_are_unknown_or_moved_are_said(tmp_path):
    rows = [{**row, "split": "train"} for row in human_eval_rows()]
    rows[0]["split"] = "dev"
    given, said = write_rows(tmp_path / "mine.jsonl", rows), []
    facts = build(given, tmp_path / "out", variants=1, say=said.append)["facts"]
    [unknown, *moved] = facts["notes"]
    assert unknown.startswith("split 'dev' (rows: 1) is none of train, validation, test")
    assert moved and all(note.endswith("and not in train as the source says") for note in moved)
    assert "which would be empty" in moved[0]
    assert {unknown, *moved} <= {*said}
    assert f"- {unknown}" in (tmp_path / "out" / "datasheet.md").read_text()


def test_a_directory_of_something_else_is_left_alone(source, tmp_path):
    (tmp_path / "train.parquet").write_text("mine")
    with pytest.raises(SettingsError, match="was not built by this"):
        build(source, tmp_path)
    with pytest.raises(SettingsError, match="is a file"):
        build(source, tmp_path / "train.parquet")
    with pytest.raises(SettingsError, match=r"train\.parquet is a file; give another"):
        build(source, tmp_path / "train.parquet" / "more" / "out")
    assert (tmp_path / "train.parquet").read_text() == "mine"


def test_where_the_sandbox_lacks_namespaces_nothing_is_run_unless_told_otherwise(
    source, tmp_path, monkeypatch
):
    bare = functools.partial(run_tests_batch, refuse=("namespaces",))
    monkeypatch.setattr(sys.modules[__name__], "EXAMINED", {})
    monkeypatch.setattr("nip_problems.tested.run_tests_batch", bare)
    with pytest.raises(SettingsError, match=r"is not run here.*give --allow-without-namespaces"):
        build(source, tmp_path / "out", allow_without_namespaces=False)
    assert build(source, tmp_path / "out", variants=1)["facts"]["problems"]["in_dataset"] == 5


# With a model.


def scripted(body):
    """A bug for most, a rewrite for one, nothing useful for the others."""
    said = body["messages"][-1]["content"]
    name = next(name for name in BUGGY if f"def {name}(" in said)
    if STYLES["rewrite"] in said:
        return f"```python\n{RIGHT}```" if name == "clamp" else "I would rather not."
    if STYLES["state"] in said:
        return "```python\ndef other():\n    return 1\n```"
    if STYLES["misreading"] in said:
        return "```\nreturn (\n```"
    return f"Here it is:\n```python\n{BUGGY[name]}```\nThe bug is subtle."


def on_server(script, work):
    """What `work(url)` returns, and what a server in another thread was asked meanwhile."""
    started, done = threading.Event(), threading.Event()

    async def serve():
        async with scripted_server(script) as server:
            servers.append(server)
            started.set()
            await asyncio.to_thread(done.wait)

    servers = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(30)
        return work(servers[0].url), servers[0].bodies
    finally:
        done.set()
        thread.join()


def model_at(url, **changes):
    return AskedModelOptions("writer", "OpenAI", url, 1.0, 200, (1.0, 2.0), **changes)


KEY = {"OPENAI_API_KEY": "sk-test"}


def test_what_a_model_writes_is_labelled_by_the_tests_and_paid_for_once(source, tmp_path):
    out = tmp_path / "out"

    def work(url):
        first = build(source, out, KEY, writer=model_at(url))
        before = {name: (out / name).read_bytes() for name in FILES}
        again = build(source, out, KEY, writer=model_at(url))
        assert {name: (out / name).read_bytes() for name in FILES} == before
        return first, again

    (first, again), bodies = on_server(scripted, work)
    assert len(bodies) == first["estimate"]["calls"] == 25
    assert again["estimate"]["calls"] == 0
    assert len({body["seed"] for body in bodies}) == 25
    facts = first["facts"]["models"]["Bugs written by a language model"]
    assert facts["answers"] == {
        "boundary: fails a test, buggy": 5,
        "edge_case: same text as another": 5,
        "misreading: not Python": 5,
        "rewrite: no code in it": 4,
        "rewrite: passes all tests, correct": 1,
        "state: does not define what is asked for": 5,
    }
    assert facts["calls"] == 25
    assert facts["usd"] == pytest.approx((7 * 25 * 1.0 + 3 * 25 * 2.0) / 1e6)
    rows = rows_in(out)
    written = [row for row in rows if row["mutation"] == "language_model/boundary"]
    assert len(written) == 5
    assert not any("#" in row["solution"] for row in rows)
    assert [row["y"] for row in rows if row["solution"] == RIGHT] == [1]


def refusing(body):
    if STYLES["state"] in body["messages"][-1]["content"]:
        return web.json_response({"error": {"message": "too long"}}, status=400)
    return "Sorry"


def test_a_model_that_writes_no_code_is_a_row_of_the_datasheet(source, tmp_path, built):
    def work(url):
        options = {"writer": model_at(url), "styles": ("boundary", "state")}
        return [build(source, tmp_path / "out", KEY, **options) for _ in range(2)]

    (result, again), _ = on_server(refusing, work)
    facts = result["facts"]["models"]["Bugs written by a language model"]
    assert facts["answers"] == {"boundary: no code in it": 5, "state: request refused": 5}
    assert "| boundary: no code in it | 5 |" in (tmp_path / "out" / "datasheet.md").read_text()
    assert rows_in(tmp_path / "out") == rows_in(built[0])
    assert again["facts"] == result["facts"]

    def alone(url):
        with pytest.raises(StageError, match="refuses every request: HTTP 400: too long"):
            build(source, tmp_path / "alone", KEY, writer=model_at(url), styles=("state",))

    on_server(refusing, alone)


def test_an_estimate_that_is_too_high_or_not_possible_asks_nothing(source, tmp_path):
    def work(url):
        with pytest.raises(SettingsError, match=r"--at-most-usd 0.001: it may cost \$0.01"):
            build(source, tmp_path / "a", KEY, writer=model_at(url), at_most_usd=0.001)
        with pytest.raises(SettingsError, match=r"--price: writer is paid for"):
            build(source, tmp_path / "b", KEY, writer=AskedModelOptions("writer", "OpenAI", url))
        with pytest.raises(SettingsError, match="OPENAI_API_KEY"):
            build(source, tmp_path / "c", writer=model_at(url))
        with pytest.raises(SettingsError, match="'typo' is none of boundary, edge_case"):
            build(source, tmp_path / "d", KEY, writer=model_at(url), styles=("typo",))
        shown = build(source, tmp_path / "e", KEY, writer=model_at(url), dry_run=True)
        assert shown["files"] == []
        return shown["estimate"]

    estimate, bodies = on_server(scripted, work)
    assert estimate["calls"] == 25
    assert estimate["usd"] == pytest.approx(
        (estimate["prompt_tokens"] + 2 * estimate["completion_tokens"]) / 1e6
    )
    assert bodies == []
    assert not any(path.name == ANSWERS for path in tmp_path.rglob("*"))


def test_a_server_that_refuses_stops_the_build_and_what_was_paid_is_kept(source, tmp_path):
    answered = []

    def failing(body):
        answered.append(body)
        if len(answered) > 10:
            return web.json_response({"error": {"message": "no credit"}}, status=402)
        return scripted(body)

    settings = ("rollouts.concurrency=1",)

    def fail(url):
        with pytest.raises(StageError, match="no credit"):
            build(source, tmp_path / "out", KEY, writer=model_at(url, settings=settings))

    on_server(failing, fail)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [ANSWERS]
    _, bodies = on_server(
        scripted,
        lambda url: build(source, tmp_path / "out", KEY, writer=model_at(url, settings=settings)),
    )
    assert len(bodies) == 15


def test_a_build_that_is_killed_asks_again_for_nothing_that_was_answered(source, tmp_path):
    settings = ("rollouts.concurrency=1",)

    def work(url):
        exit_codes = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                try:
                    build(source, tmp_path / "out", KEY, writer=model_at(url, settings=settings))
                    os._exit(0)
                finally:
                    traceback.print_exc()
                    os._exit(1)
            children.append(child)
            exit_codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return exit_codes

    def script(body):
        asked.append(json.dumps(body, sort_keys=True))
        if len(asked) == 12:
            os.kill(children[-1], signal.SIGKILL)
        return scripted(body)

    children, asked = [], []
    exit_codes, _ = on_server(script, work)
    assert exit_codes == [-signal.SIGKILL, 0]
    assert [body for body, count in Counter(asked).items() if count > 1] == [asked[11]]
    assert len(set(asked)) == 25


REPLIES = """
default:
  - text: "no"
rules:
  - when: {system_contains: "You change Python code"}
    replies:
      - text: |
          ```python
          def clamp(x, low, high):
              return low
          ```
  - when: {any_contains: "best = n"}
    replies: [{text: "Decision: reject"}]
  - when: {any_contains: "def "}
    replies: [{text: "Decision: accept"}]
"""


def test_difficulty_is_how_many_bugs_a_verifier_notices_on_a_real_server(source, tmp_path):
    (tmp_path / "replies.yaml").write_text(REPLIES)
    spec = ServerSpec(
        "deterministic",
        "reader",
        replies=str(tmp_path / "replies.yaml"),
        more_engines=(
            EngineSpec("deterministic", "writer", replies=str(tmp_path / "replies.yaml")),
        ),
    )
    with one_here(spec, tmp_path / "state") as handle:
        url = f"{handle.url}/v1"
        environment = {"NIP_API_KEY": handle.api_key}
        model = {"provider": "SelfHosted", "base_url": url, "max_tokens": 300}
        options = {
            "writer": AskedModelOptions("writer", **model),
            "verifier": AskedModelOptions("reader", **model),
            "styles": ("boundary",),
        }
        facts = build(source, tmp_path / "out", environment, **options)["facts"]
        again = build(source, tmp_path / "out", environment, **options)
    assert again["estimate"]["calls"] == 0
    assert again["facts"] == facts
    rows = rows_in(tmp_path / "out")
    levels = {row["question_id"]: row["difficulty"] for row in rows}
    assert levels.pop("small/Small/largest") in ("easy", "medium")
    assert set(levels.values()) == {"hard"}
    assert sum(row["mutation"] == "language_model/boundary" for row in rows) == 1
    played = facts["models"]["Difficulty, by a verifier that decides alone"]
    assert played["calls"] == sum(row["y"] == 0 for row in rows)
    assert (
        played["answers"]["bugs noticed"] + played["answers"]["bugs not noticed"] == played["calls"]
    )
    assert played["usd"] == 0
