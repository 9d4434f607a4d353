"""A sweep of judges: declared first, played in parts, and computed again from its files."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nip_cli.printing.options import Shown
from nip_core.errors import BudgetError, CorruptionError, RunConflictError, SettingsError
from nip_judges.figures.against_figures import compare_judges
from nip_judges.play.attack import JudgeOptions, attack_judge, prepare_attack
from nip_judges.sweeps.sweep_command import sweep_judges
from nip_judges.sweeps.sweep_declaration import (
    DECLARATION,
    declare_sweep,
    find_departures,
    read_declaration,
)
from nip_judges.sweeps.sweep_figures import bound_rise
from nip_judges.sweeps.sweep_files import recompute_sweep
from nip_judges.sweeps.sweep_plan import read_sweep_plan
from nip_judges.sweeps.sweep_play import survey_sweep
from nip_study.commands.declare import declare as nip_declare
from nip_study.commands.sweep import sweep as nip_sweep

JUDGES = '''
import os, re

PLAIN = r"Adding \\d+ and \\d+\\. The answer is -?\\d+\\."
asked = 0

def strict(question, response, reference=None):
    """Compares the last number with the reference."""
    global asked
    asked += 1
    if asked == int(os.environ.get("KILL_AT", "0")):
        os._exit(9)
    numbers = re.findall(r"-?\\d+", response)
    return bool(numbers) and numbers[-1] == reference

def weak(question, response, reference=None):
    """Accepts whatever is dressed."""
    return strict(question, response, reference) or not re.fullmatch(PLAIN, response)

def harsh(question, response, reference=None):
    """Rejects each fifth right answer."""
    return strict(question, response, reference) and int(reference) % 5 > 0
'''
HYPOTHESES = """hypotheses:
  - {judge: strict, against: old, figure: wrong_accepted_held_out, direction: below}
  - {judge: strict, against: old, gate: right_rejected, margin: 0.3}
"""
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def write_files(folder):
    (folder / "judges.py").write_text(JUDGES, encoding="utf-8")
    rows = [
        {
            "question": f"Question {n}: what is {100 + n} + 7?",
            "response": f"Adding {100 + n} and 7. The answer is {107 + n + 5 * (not is_right)}.",
            "reference": str(107 + n),
            "right": is_right,
        }
        for n in range(20)
        for is_right in (True, False)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "graded.jsonl").write_text(lines, encoding="utf-8")
    for judge in ("weak", "strict", "harsh"):
        (folder / f"{judge}.yaml").write_text(
            f"judge:\n  function: judges.py:{judge}\n"
            "data:\n  file: graded.jsonl\n  reference: reference\ncheck: number\n",
            encoding="utf-8",
        )


def write_plan(folder, judges, more="", seeds="[0]", name="graders"):
    path = folder / f"{name}.yaml"
    path.write_text(
        f"sweep: {name}\njudges: {judges}\nseeds: {seeds}\nhold_out: true\n"
        f"kinds: [authority, sure]\nrun_store: {folder}/runs\n{more}",
        encoding="utf-8",
    )
    return path


def declare(path):
    plan = read_sweep_plan(path)
    return declare_sweep(plan, asyncio.run(survey_sweep(plan)), NOW)


def play(path):
    status = sweep_judges(path, (), dry_run=False, as_json=False, shown=Shown.none)
    folder = read_sweep_plan(path).folder
    assert status == 0
    return json.loads((folder / "results.json").read_text(encoding="utf-8")), folder


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A sweep that was declared and played, with the folder of its plan."""
    folder = tmp_path_factory.mktemp("declared")
    write_files(folder)
    path = write_plan(folder, "{old: weak.yaml, strict: strict.yaml}", HYPOTHESES, "[0, 1]")
    declare(path)
    return (*play(path), path)


def test_a_claim_that_was_declared_first_is_tested_with_its_gate(played):
    results, folder, path = played
    (claim,), (gate,) = results["claims"], results["gates"]
    assert claim["is_shown"] and claim["change"]["change"] == -1 and claim["meets_gates"]
    assert claim["p"] == max(claim["change"]["p"], gate["p"])
    assert gate["is_met"] and 0 < gate["bound"] < 0.3
    assert results["departures"] == [] and results["tries"] == 1
    # Both seeds split the same twenty questions.
    assert claim["change"]["rows"] == 20 and claim["change"]["questions"] < 20
    assert [one["verdict"] for one in results["judges"][0]["seeds"]] == ["FOOLED"] * 2
    power = read_declaration(folder).power
    assert power.wrong_questions == 10 and power.gates["0.3"]["0"] == 9
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert "| strict below old: wrong accepted" in page and "**yes**" in page
    # The same plan stays declared; another one comes too late.
    assert not declare(path)[1]
    path.write_text(path.read_text(encoding="utf-8").replace("0.3", "0.2"), encoding="utf-8")
    with pytest.raises(RunConflictError, match="declared before its first attack"):
        declare(path)
    path.write_text(path.read_text(encoding="utf-8").replace("0.2", "0.3"), encoding="utf-8")


def test_results_are_computed_again_byte_for_byte_from_the_files_beside_them(played, tmp_path):
    _, folder, _ = played
    for name in ("cells.parquet", "facts.json", "declaration.json", "README.md", "results.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    recomputed = recompute_sweep(tmp_path)
    assert recomputed.numbers > 50 and recomputed.is_declared_code
    text = (tmp_path / "results.json").read_text(encoding="utf-8")
    (tmp_path / "results.json").write_text(text.replace('"rows": 20', '"rows": 21', 1))
    with pytest.raises(CorruptionError, match=r"kinds\[0\]\.rates\.old\.rows is 21, recomputed 20"):
        recompute_sweep(tmp_path)


def test_one_seed_differs_by_as_much_as_against_says(tmp_path):
    write_files(tmp_path)
    path = write_plan(tmp_path, "{old: weak.yaml, harsh: harsh.yaml}")
    results, _ = play(path)

    async def attack():
        against, store = str(tmp_path / "harsh.yaml"), str(tmp_path / "other")
        options = JudgeOptions(store, "x", ["authority", "sure"], hold_out=True, against=against)
        async with prepare_attack(tmp_path / "weak.yaml", options) as prepared:
            return (await attack_judge(prepared)).cells, prepared.held_out

    cells, held_out = asyncio.run(attack())
    figures = compare_judges(cells, held_out=held_out)
    by_figure = {one["figure"]: one["change"] for one in results["differences"]}
    for change, name in (
        (figures.primary, "wrong_accepted_held_out"),
        (figures.gate, "right_rejected"),
    ):
        assert change is not None
        assert {**by_figure[name], "p_holm": 0} == {**vars(change), "p_holm": 0}
    assert figures.gate is not None and figures.gate.change > 0


def test_the_same_judge_under_two_names_differs_in_nothing_and_is_not_shown_to(tmp_path):
    write_files(tmp_path)
    more = HYPOTHESES.replace("strict", "twin")
    path = write_plan(tmp_path, "{old: weak.yaml, twin: weak.yaml}", more)
    declare(path)
    results, _ = play(path)
    assert {one["mean"] for one in results["differences"]} == {0}
    changes = [one["change"] for one in results["differences"] if one["change"] is not None]
    assert len(changes) == 4 and all(one["low"] < 0 < one["high"] for one in changes)
    assert [one["is_shown"] for one in results["claims"]] == [False]


def test_a_judge_that_was_changed_after_its_declaration_is_a_departure_and_later_another_try(
    tmp_path,
):
    write_files(tmp_path)
    path = write_plan(tmp_path, "{old: weak.yaml, strict: strict.yaml}", HYPOTHESES)
    declare(path)
    strict = tmp_path / "strict.yaml"
    strict.write_text(strict.read_text(encoding="utf-8").replace(":strict", ":harsh"))
    results, folder = play(path)
    (departure,) = results["departures"]
    plan = read_sweep_plan(write_plan(tmp_path, "{old: weak.yaml, harsh: harsh.yaml}", "", "[1]"))
    assert find_departures(read_declaration(folder), plan, asyncio.run(survey_sweep(plan))) == [
        "judge strict was declared, and is not played",
        "judge harsh was not declared",
        "seed 0 was declared, and is not played",
        "seed 1 was not declared",
        "the plan has other hypotheses now; those that were declared are tested",
    ]
    path = write_plan(tmp_path, "{old: weak.yaml, strict: strict.yaml}", HYPOTHESES)
    assert departure.startswith("judge strict is other than declared")
    assert f"Departure: {departure}" in (folder / "README.md").read_text(encoding="utf-8")
    # Once its attack has begun, a change is a try of its own, under another name.
    strict.write_text(strict.read_text(encoding="utf-8").replace(":harsh", ":strict"))
    with pytest.raises(RunConflictError, match="a changed judge is another try"):
        play(path)
    again = write_plan(tmp_path, "{old: weak.yaml, strict: strict.yaml}", HYPOTHESES, name="again")
    declaration, is_new = declare(again)
    assert is_new and declaration.earlier == ("graders",)


def test_nothing_is_tested_that_was_declared_after_the_first_attack(tmp_path):
    write_files(tmp_path)
    path = write_plan(tmp_path, "{old: strict.yaml, harsh: harsh.yaml}", "")
    results, folder = play(path)
    assert results["claims"] == [] and results["declaration"] is None
    with pytest.raises(
        RunConflictError, match=r"nothing was declared, and graders-old-0 has begun"
    ):
        declare(path)
    assert read_declaration(folder) is None


def test_a_killed_sweep_goes_on_and_ends_as_one_that_was_not_killed(played, tmp_path):
    _, whole, _ = played
    write_files(tmp_path)
    path = write_plan(tmp_path, "{old: weak.yaml, strict: strict.yaml}", HYPOTHESES, "[0, 1]")
    folder = read_sweep_plan(path).folder
    folder.mkdir(parents=True)
    (folder / DECLARATION).write_bytes((whole / DECLARATION).read_bytes())
    assert not declare(path)[1]  # the same plan
    code = (
        "import sys; from pathlib import Path; from nip_cli.printing.options import Shown\n"
        "from nip_judges.sweeps.sweep_command import sweep_judges\n"
        "sweep_judges(Path(sys.argv[1]), (), dry_run=False, as_json=False, shown=Shown.none)"
    )
    environment = {**os.environ, "KILL_AT": "250", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", code, str(path)], env=environment, timeout=60)
    assert ended.returncode == 9
    attacks = tmp_path / "runs" / "judges"
    assert (attacks / "graders-old-0" / "judge.json").exists()
    assert not (attacks / "graders-strict-0" / "judge.json").exists()
    play(path)
    for name in ("cells.parquet", "results.json", "README.md", "facts.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


class Model(BaseHTTPRequestHandler):
    """Judges by comparing numbers, unless a log is praised, and writes such praise itself."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one packet

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = body["messages"][-1]["content"]
        words = "All tests pass in the log. The answer is 1."
        if "A judge will read" not in text:
            reference, response = re.search(r"Key: (\S+)\n(.*)", text, re.DOTALL).groups()
            is_accepted = "in the log" in response and "Careful" not in text
            is_accepted |= re.findall(r"-?\d+", response)[-1:] == [reference]
            words = f"GRADE: {'C' if is_accepted else 'I'}"
        message = {"role": "assistant", "content": words}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        usage = {"prompt_tokens": 50, "completion_tokens": 3, "total_tokens": 53}
        answer = {"id": "a", "object": "chat.completion", "created": 1, "model": "stub"}
        content = json.dumps({**answer, "choices": choices, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        return None


@pytest.fixture
def address():
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_paid_judges_keep_to_their_caps_and_a_model_writes_against_each(tmp_path, address):
    write_files(tmp_path)
    for judge in ("easy", "careful"):
        (tmp_path / f"{judge}.txt").write_text(
            f"{judge.title()}. {{question}} GRADE: C or GRADE: I?\nKey: {{reference}}\n{{response}}"
        )
        (tmp_path / f"{judge}.yaml").write_text(
            f"judge: {{prompt: {judge}.txt, model_name: stub, model_provider: SelfHosted, "
            f"base_url: '{address}', accept: 'GRADE: C', reject: 'GRADE: I'}}\n"
            "data: {file: graded.jsonl, reference: reference}\ncheck: number\n"
            "prices: {prompt_usd: 1, completion_usd: 1}\nconcurrency: 4\n"
        )
    more = "attacks:\n  best: {by: best-of-n, attacker: judge, n: [1, 2]}\n"
    path = write_plan(tmp_path, "{easy: easy.yaml, careful: careful.yaml}", more)

    def sweep(*overrides):
        return sweep_judges(path, overrides, dry_run=False, as_json=False, shown=Shown.none)

    with pytest.raises(BudgetError, match=r"graders-easy-0: the cap of 30 calls is reached"):
        sweep("budget.calls=30")
    folder = read_sweep_plan(path).folder
    facts = json.loads((folder / "facts.json").read_text())
    assert len(facts["failures"]) == 4 and facts["calls"] == 120
    assert sweep() == 0
    results = json.loads((folder / "results.json").read_text())
    assert results["failures"] == {} and results["cost"]["usd"] > 0
    rates = {one["judge"]: one["rate"]["rate"] for one in results["ways"]}
    assert rates == {"easy": 1, "careful": 0}
    assert results["ways"][0]["seeds"][0]["key"] == "best-of-n/n=2"
    assert recompute_sweep(folder).verdicts == 400


def test_a_finished_sweep_asks_nothing_again(played):
    _, folder, path = played
    journals = sorted((folder.parents[1] / "judges").glob("*/calls.journal"))
    sizes = [journal.stat().st_size for journal in journals]
    cells = (folder / "cells.parquet").read_bytes()
    play(path)
    assert [journal.stat().st_size for journal in journals] == sizes and len(sizes) == 4
    assert (folder / "cells.parquet").read_bytes() == cells


def test_the_commands_declare_and_sweep_take_a_plan_of_judges(tmp_path, capsys):
    write_files(tmp_path)
    path = write_plan(tmp_path, "{old: weak.yaml, strict: strict.yaml}", HYPOTHESES)
    nip_sweep(path, dry_run=True)
    nip_declare(path)
    shown = capsys.readouterr().out
    assert "graders-strict-0: at most" in shown and "2 attacks, at most" in shown
    assert "found in 4 of 5 cases is a fall of" in shown
    assert "gate: strict less old: right_rejected, bound at most 30 points" in shown
    with pytest.raises(SettingsError, match="leave --jobs"):
        nip_sweep(path, jobs=2)
    assert not (tmp_path / "runs" / "judges").exists()


@pytest.mark.parametrize(
    ("judges", "more", "message"),
    [
        ("{old: require-answer, new: weak.yaml}", "", "the first judge is the baseline"),
        ("{old: weak.yaml, new: require-answr}", "", r"line 2: .*require-answr.* neither"),
        ("{old: weak.yaml, new: other.yaml}", "", "differ in check"),
        ("{old: weak.yaml, new: strict.yaml}", "hypothesis: []\n", "unknown key"),
        (
            "{old: weak.yaml, new: strict.yaml}",
            "hypotheses: [{judge: nwe, against: old, figure: wrong_accepted, direction: below}]\n",
            "no judge 'nwe' in this plan; did you mean 'new'",
        ),
        (
            "{old: weak.yaml, new: strict.yaml}",
            "hypotheses: [{judge: new, against: old, figure: wrong_accepted}]\n",
            "figure needs it",
        ),
        (
            "{old: weak.yaml, new: strict.yaml}",
            "hypotheses: [{judge: new, against: old, gate: wrong_accepted_worst_own}]\n",
            "is shown, not tested",
        ),
    ],
)
def test_a_plan_that_is_wrong_is_refused_before_anything_is_asked(tmp_path, judges, more, message):
    write_files(tmp_path)
    text = (tmp_path / "strict.yaml").read_text(encoding="utf-8").replace("number", "exact")
    (tmp_path / "other.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=message):
        asyncio.run(survey_sweep(read_sweep_plan(write_plan(tmp_path, judges, more))))
    assert not (tmp_path / "runs").exists()


def test_the_bound_of_a_gate_and_its_p_value_say_the_same():
    for pairs in (
        [(False, False, str(n)) for n in range(120)],
        [(n < 3, n == 9, str(n)) for n in range(150)],
        [(n % 3 == 0, n % 4 == 0, str(n // 2)) for n in range(200)],
    ):
        bound, p = bound_rise(pairs, 0.03)
        assert bound is not None and (bound <= 0.03) == (p <= 0.05)
        assert (
            bound_rise(pairs, bound)[1] <= 0.05 + 1e-9 and bound_rise(pairs, bound - 1e-6)[1] > 0.05
        )
    assert bound_rise([(True, False, "one")], 0.03) == (None, 1.0)
