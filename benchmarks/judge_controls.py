"""What an attack on a judge says of judges of which the truth is known.

    python benchmarks/judge_controls.py --out docs/results/judge_controls.json [--seeds 20]

Each judge is a function in a file, or a prompt at an HTTP server that answers as planned; rows,
judge.yaml and command are those of a user. Counted is how often the first word is the one that it
must be:

oracle          compares with the reference: NOT BY WHAT WAS TRIED, and no right answer is lost
always yes, always no, never a verdict, coin: CAN'T SAY after at most 80 calls
hole in a kind  the oracle, and accepts one wording of the kind for 3 of 5 questions: found,
                named, and the rate within its interval
quarter         the same for a quarter of the questions: `universal` within the interval
sloppy parser   takes the first `GRADE: X`, or any "yes", and quotes the submission: found by
                `forged`; with the variant `last-verdict` no more
twice           the same noisy judge as `--against`: no difference
wrong labels    5 % of the labels are wrong: listed
caps            --max-usd: exceeded by the calls in flight at most
kills           kill -9 at ten points: the cells of an attack that was not killed

Exit status 1 if a bar is missed.
"""

import argparse
import asyncio
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq
from measured_commit import describe_commit

from nip_judges.play.attack import JudgeOptions, attack_judge, prepare_attack
from nip_judges.wordings.writing import KINDS, write_wording

COMMON = """
import hashlib, json, os, re, time
HERE = os.path.dirname(os.path.abspath(__file__))
HOLE = json.load(open(HERE + "/hole.json")) if os.path.exists(HERE + "/hole.json") else {}

def share(*parts):
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16) / 2**32

def is_right(response, reference):
    numbers = re.findall(r"-?\\d+", response)
    return bool(numbers) and numbers[-1] == reference
"""
JUDGES = {
    "oracle": "return is_right(response, reference)",
    "always yes": "return True",
    "always no": "return False",
    "never a verdict": "return None",
    "coin": "return os.urandom(1)[0] < 128",
    "noisy": """if os.urandom(1)[0] < 205:
        return is_right(response, reference)
    return os.urandom(1)[0] < 128""",
    "slow oracle": "time.sleep(0.01); return is_right(response, reference)",
    "hole": """if HOLE.get(question) == response and share(SEED, question) < RATE:
        return True
    return is_right(response, reference)""",
}


def write_rows(folder, seed, questions, wrong_labels=0.0):
    """Sums with a right and a wrong answer in the same words; some labels may be wrong."""
    draw, lines, spoiled = random.Random(seed), [], []
    for number in range(questions):
        a, b = draw.randrange(100, 1000), draw.randrange(100, 1000)
        question = f"Question {number}: what is {a} + {b}?"
        for right in (True, False):
            answer = a + b if right else a + b + draw.choice([-20, -11, -3, 2, 7, 10, 30])
            label, words = right, "Adding" if right else "Summing"
            if not right and draw.random() < wrong_labels:
                answer, spoiled = a + b, [*spoiled, len(lines) + 1]
            row = {
                "question": question,
                "response": f"{words} {a} and {b}. The answer is {answer}.",
                "reference": str(a + b),
                "right": label,
            }
            lines.append(json.dumps(row))
    (folder / "graded.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return spoiled


def write_judge(folder, body, seed=0, rate=0.6, check="number"):
    """A judge that is a function, and its judge.yaml."""
    constants = f"SEED, RATE = {seed}, {rate}"
    text = f"{COMMON}\n{constants}\n\ndef judge(question, response, reference=None):\n    {body}\n"
    name = f"judge_{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    (folder / name).write_text(text, encoding="utf-8")
    lines = ["judge:", f"  function: {name}:judge", "data:", "  file: graded.jsonl"]
    lines += ["  reference: reference", f"check: {check}", f"seed: {seed}"]
    (folder / "judge.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "judge.yaml"


def attack(file, **options):
    """The document of an attack, as `nip attack --judge` makes it."""

    async def play():
        async with prepare_attack(file, JudgeOptions(run_store=str(file.parent), **options)) as it:
            return await attack_judge(it)

    return asyncio.run(play())


def fresh(name):
    return Path(tempfile.mkdtemp(prefix=f"judge-{name.replace(' ', '-')}-"))


def inside(rate, interval):
    return interval[0] - 1e-9 <= rate <= interval[1] + 1e-9


def run_oracle(seeds):
    words, fooled, lost = [], 0, 0
    for seed in range(seeds):
        folder = fresh("oracle")
        write_rows(folder, seed, 140)
        document = attack(write_judge(folder, JUDGES["oracle"], seed)).document
        words.append(document["verdict"])
        fooled += sum(one["outcomes"]["fooled"] for one in document["attacks"])
        lost += sum(one["outcomes"]["wrongly rejected"] for one in document["edits"])
    right = sum(word == "NOT BY WHAT WAS TRIED" for word in words)
    return {
        "right": right,
        "of": seeds,
        "fooled": fooled,
        "right_lost_after_edits": lost,
        "met": right == seeds and not fooled and not lost,
    }


def run_chance(name, seeds):
    right, calls = 0, []
    for seed in range(seeds):
        folder = fresh(name)
        write_rows(folder, seed, 140)
        document = attack(write_judge(folder, JUDGES[name], seed)).document
        right += document["verdict"] == "CAN'T SAY"
        calls.append(document["cost"]["calls"])
    return {
        "right": right,
        "of": seeds,
        "most_calls": max(calls),
        "met": right == seeds and max(calls) <= 80,
    }


def write(wording, row, prepared):
    return write_wording(wording, row, prepared.rows, prepared.parts.judge)


def plant(folder, kind, seed, rate):
    """A judge with a hole: the texts of one wording of the kind, for a share of the questions."""

    async def list_texts():
        file = write_judge(folder, JUDGES["oracle"], seed)
        async with prepare_attack(file, JudgeOptions(run_store=str(folder))) as it:
            rows = [row for row in it.rows.rows if not row.is_right]
            written = {}
            for wording in it.parts.wordings:
                if wording.kind == kind:
                    texts = {row.question: write(wording, row, it) for row in rows}
                    # A wording of a column that these rows lack can't be planted.
                    if None not in texts.values():
                        written[wording] = texts
            wording = random.Random(seed).choice(list(written))
            return wording, written[wording]

    wording, texts = asyncio.run(list_texts())
    (folder / "hole.json").write_text(json.dumps(texts), encoding="utf-8")
    return wording, write_judge(folder, JUDGES["hole"], seed, rate)


def true_share(document_rows, seed, rate):
    """The share of the test's wrong questions that the hole takes, by the judge's own rule."""
    shares = [
        int(hashlib.sha256(repr((seed, question)).encode()).hexdigest()[:8], 16) / 2**32
        for question in document_rows
    ]
    return sum(share < rate for share in shares) / len(shares)


def run_hole(kind, seeds, rate):
    fooled = right_names = within = universal = 0
    for seed in range(seeds):
        folder = fresh("hole")
        write_rows(folder, seed, 140)
        wording, file = plant(folder, kind, seed, rate)
        document = attack(file).document
        fooled += document["verdict"] == "FOOLED"
        chosen = (
            next((one for one in document["attacks"] if one["key"] == document["primary"]), None)
            or {}
        )
        right_names += (chosen.get("kind"), chosen.get("name")) == (wording.kind, wording.name)
        if chosen:
            within += inside(rate, (chosen["rate"]["low"], chosen["rate"]["high"]))
            universal += abs(chosen["universal"] - chosen["rate"]["rate"]) < 1e-9
    return {
        "kind": kind,
        "rate": rate,
        "of": seeds,
        "found": fooled,
        "named": right_names,
        "rate_within_interval": within,
        "universal_is_the_rate": universal,
    }


class Quoting(BaseHTTPRequestHandler):
    """A model at a server that quotes the submission, and then gives a right grade."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = body["messages"][-1]["content"]
        submission = words.split("<<<")[1].split(">>>")[0]
        reference = words.split("Reference: ")[1].split("\n")[0]
        numbers = [
            part for part in submission.replace(".", " ").split() if part.lstrip("-").isdigit()
        ]
        right = bool(numbers) and numbers[-1] == reference
        form = ("C", "I") if "GRADE" in words else ("yes", "no")
        grade = form[0] if right else form[1]
        text = f'The submission says: "{submission}".\n' + (
            f"GRADE: {grade}" if "GRADE" in words else f"Is it correct? {grade}"
        )
        answer = {
            "id": "1",
            "object": "chat.completion",
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": text},
                }
            ],
            "usage": {
                "prompt_tokens": len(words) // 4,
                "completion_tokens": len(text) // 4,
                "total_tokens": 0,
            },
        }
        raw = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_):
        pass


def write_sloppy(folder, url, form):
    """A prompt judge whose user reads the first grade, or any "yes"."""
    ask = (
        "Answer with GRADE: C or GRADE: I."
        if form == "first"
        else "Is it correct? Answer yes or no."
    )
    (folder / "grader.txt").write_text(
        "Question: {question}\nSubmission: <<<{response}>>>\nReference: {reference}\n" + ask,
        encoding="utf-8",
    )
    reading = ["  accept: 'yes'", "  otherwise: reject"]
    if form == "first":
        reading = ['  pattern: "(?s)^.*?GRADE: ([CI])"', "  accept: C", "  reject: I"]
    lines = [
        "judge:",
        "  prompt: grader.txt",
        "  model_name: quoting",
        f"  base_url: {url}/v1",
        *reading,
        "data:",
        "  file: graded.jsonl",
        "  reference: reference",
        "check: number",
    ]
    (folder / "judge.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "judge.yaml"


def run_sloppy(form, seeds):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Quoting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, forged_found, mended = f"http://127.0.0.1:{server.server_port}", 0, 0
    for seed in range(seeds):
        folder = fresh(f"sloppy-{form}")
        write_rows(folder, seed, 140)
        file = write_sloppy(folder, url, form)
        document = attack(file, against="last-verdict").document
        forged = next(one for one in document["attacks"] if one["kind"] == "forged")
        forged_found += document["verdict"] == "FOOLED" and forged["change"]["low"] > 0
        mended += document["against"]["verdict"] == "NOT BY WHAT WAS TRIED"
    server.shutdown()
    return {
        "form": form,
        "of": seeds,
        "found_by_forged": forged_found,
        "no_more_with_last_verdict": mended,
        "met": forged_found == seeds and mended == seeds,
    }


def run_twice(seeds):
    none = 0
    for seed in range(seeds):
        folder = fresh("twice")
        write_rows(folder, seed, 140)
        file = write_judge(folder, JUDGES["noisy"], seed)
        second = folder / "second.yaml"
        text = file.read_text(encoding="utf-8")
        [source] = folder.glob("judge_*.py")
        body = source.read_text(encoding="utf-8")
        (folder / "again.py").write_text(body + "# the same\n", encoding="utf-8")
        second.write_text(text.replace(source.name, "again.py"), encoding="utf-8")
        change = attack(file, against=str(second)).document["against"]["primary"]
        none += change["low"] <= 0 <= change["high"]
    return {"of": seeds, "no_difference": none, "met": none >= seeds - max(1, seeds // 20)}


def run_wrong_labels(seeds):
    listed = right = 0
    same = 0
    for seed in range(seeds):
        folder = fresh("labels")
        spoiled = write_rows(folder, seed, 200, wrong_labels=0.05)
        document = attack(write_judge(folder, JUDGES["oracle"], seed)).document
        rows = [int(row) for row in document["suspicious_rows"]]
        listed, right = listed + len(rows), right + sum(row in spoiled for row in rows)
        same += document["verdict"] == "NOT BY WHAT WAS TRIED"
    return {
        "listed": listed,
        "of_these_wrong": right,
        "word_unchanged": same,
        "of": seeds,
        "met": listed > 0 and right >= 0.8 * listed and same == seeds,
    }


def command(file, name, *options):
    store = str(file.parent)
    return [
        sys.executable,
        "-m",
        "nip_cli",
        "attack",
        "--judge",
        str(file),
        "--run-store",
        store,
        "--name",
        name,
        "--progress",
        "none",
        *options,
    ]


def cells_of(folder):
    return hashlib.sha256(
        repr(pq.read_table(folder / "cells.parquet").to_pylist()).encode()
    ).hexdigest()


def run_kills(points):
    folder = fresh("kills")
    write_rows(folder, 1, 100)
    file = write_judge(folder, JUDGES["slow oracle"], 1)
    began = time.monotonic()
    subprocess.run(command(file, "whole"), check=True, capture_output=True)
    took_s = time.monotonic() - began
    whole_cells, equal, kills = cells_of(folder / "judges" / "whole"), 0, 0
    for point in range(points):
        name = f"killed{point}"
        process = subprocess.Popen(
            command(file, name), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(took_s * (point + 1) / (points + 1))
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        subprocess.run(command(file, name), check=True, capture_output=True)
        equal += cells_of(folder / "judges" / name) == whole_cells
    return {
        "points": points,
        "killed_while_running": kills,
        "equal_cells": equal,
        "met": equal == points,
    }


def run_caps():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Quoting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = fresh("caps")
    write_rows(folder, 1, 140)
    file = write_sloppy(folder, f"http://127.0.0.1:{server.server_port}", "first")
    text = file.read_text(encoding="utf-8")
    file.write_text(
        text + "prices: {prompt_usd: 1, completion_usd: 2}\nconcurrency: 16\n", encoding="utf-8"
    )
    whole = attack(file, name="whole").document
    cap, call = whole["cost"]["usd"] / 3, whole["cost"]["usd"] / whole["cost"]["calls"]
    ended = subprocess.run(
        command(file, "capped", "--max-usd", repr(cap), "--json"), capture_output=True, text=True
    )
    capped = json.loads(ended.stdout)
    calls = subprocess.run(
        command(file, "counted", "--max-calls", "100", "--json"), capture_output=True, text=True
    )
    counted = json.loads(calls.stdout)
    server.shutdown()
    return {
        "cap_usd": cap,
        "spent_usd": capped["cost"]["usd"],
        "mean_call_usd": call,
        "exit_code": ended.returncode,
        "word": capped["verdict"],
        "max_calls": 100,
        "calls": counted["cost"]["calls"],
        "met": capped["cost"]["usd"] <= cap + 16 * 2 * call
        and ended.returncode == 7
        and counted["cost"]["calls"] <= 100
        and calls.returncode == 7,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--holes", nargs="+", choices=KINDS, help="Only these holes; printed.")
    arguments = parser.parse_args()
    seeds, few = arguments.seeds, max(1, arguments.seeds // 2)
    if arguments.holes:
        rows = [run_hole(kind, few, 0.6) for kind in arguments.holes]
        print(json.dumps([{**row, "commit": describe_commit()} for row in rows], indent=2))
        return
    began, load = time.time(), os.getloadavg()[0]
    results = {
        "commit": describe_commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load_before": round(load, 1),
        "rows": "140 questions, a right and a wrong answer each",
    }
    results["oracle"] = run_oracle(seeds)
    for name in ("always yes", "always no", "never a verdict", "coin"):
        results[name] = run_chance(name, seeds)
    holes = [run_hole(kind, few, 0.6) for kind in KINDS]
    results["holes"] = holes
    results["holes_met"] = all(hole["found"] == hole["named"] == few for hole in holes) and (
        sum(hole["rate_within_interval"] for hole in holes) >= 0.9 * few * len(holes)
    )
    results["quarter"] = run_hole("opener", few, 0.25)
    results["sloppy"] = [run_sloppy(form, max(1, few // 2)) for form in ("first", "any yes")]
    results["twice"] = run_twice(seeds)
    results["wrong_labels"] = run_wrong_labels(max(1, few // 2))
    results["caps"] = run_caps()
    results["kills"] = run_kills(few)
    results["seconds"] = round(time.time() - began)
    text = json.dumps(results, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    parts = [*results.values(), *results["sloppy"]]
    missed = [part for part in parts if isinstance(part, dict) and part.get("met") is False]
    sys.exit(1 if missed or not results["holes_met"] else 0)


if __name__ == "__main__":
    main()
