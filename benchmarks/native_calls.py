#!/usr/bin/env python3
"""`tool.call: native` with SmolLM2, which is taught to call, by the parsers of nip serve and vLLM.

    scripts/build_vllm_cpu.sh && nip models add smollm2
    python benchmarks/native_calls.py --out docs/results/native_calls.json

1. SmolLM2's files get a chat template of the Hermes kind, as its own has no tools.
2. `nip play` plays games of arithmetic with a teacher at an OpenAI API, who calls and then decides
   by the results. The lessons are the requests that nip has sent, with the teacher's answers.
3. A LoRA learns the answers' tokens and is merged.
4. `nip evaluate` plays test games with the teacher, the taught and the untrained model, over nip
   serve and over vLLM, and once more over nip serve, killed by SIGKILL amid its games.

A script plays the prover. It names the steps to look at, three at times, where two calls are
allowed. Every request passes through this process, which counts what is on the wire; the uses of
the tool are counted where it is used. Both are compared with the tables and the metrics. With
--place a folder stays, and what was trained there is not trained again.
"""

import argparse
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import taught_calls
import yaml
from beside.serving import free_port, started, versions, vllm_command
from measured_commit import ROOT, describe_commit, describe_machine
from taught_calls import PER_TURN, USES, make_folder, teach, train

KEY, PRICE, MOST_S = secrets.token_hex(16), 0.05, 3600


class Front(ThreadingHTTPServer):
    """An OpenAI API in front of a model's, or of the teacher, which keeps what passes."""

    daemon_threads = True

    def __init__(self, url: str | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url, self.asked, self.done = url, 0, 0
        self.pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def answer(self, raw: bytes) -> tuple[int, bytes]:
        """Answer a request, and keep it with the message."""
        body = json.loads(raw)
        self.asked += 1
        if self.url is None:
            message = teach(body)
            reason = "tool_calls" if message.get("tool_calls") else "stop"
            choice = {"index": 0, "message": message, "finish_reason": reason}
            usage = {"prompt_tokens": len(raw), "completion_tokens": 9, "total_tokens": 9}
            whole = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
            status, data = 200, json.dumps({**whole, "choices": [choice], "usage": usage}).encode()
        else:
            headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
            request = urllib.request.Request(f"{self.url}/v1/chat/completions", raw, headers)
            try:
                with urllib.request.urlopen(request, timeout=MOST_S) as answer:
                    status, data = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                status, data = error.code, error.read()
        if status == 200 and len(body["messages"]) > 1:  # a game's, not nip's check of the server
            self.pairs.append((body, json.loads(data)["choices"][0]["message"]))
        self.done += 1
        return status, data


class _Handler(BaseHTTPRequestHandler):
    server: Front

    def do_POST(self) -> None:
        status, data = self.server.answer(self.rfile.read(int(self.headers["Content-Length"])))
        with suppress(ConnectionError):  # who asked was killed
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class Play:
    """A run of nip with the verifier at a URL; None: at the teacher's."""

    def __init__(self, place: Path, name: str, model: str, url: str | None, games: int) -> None:
        self.place, self.name, self.front = place / name, name, Front(url)
        threading.Thread(target=self.front.serve_forever, daemon=True).start()
        self.place.mkdir(parents=True)
        port, here = self.front.server_address[1], taught_calls.__file__
        verifier: dict[str, Any] = {"model_name": model, "base_url": f"http://127.0.0.1:{port}/v1"}
        verifier |= {"temperature": 0.5, "max_tokens_per_message": 96}
        verifier |= {"num_invalid_generation_retries": 2}
        prover = {"model_name": "script", "script": f"{here}:point"}
        common = {"model_provider": "OpenAI", "freeze_agent": True, "chat_format": "alternating"}
        settings = {
            **{"run_name": name, "run_store": str(self.place), "interaction_protocol": "adp"},
            **{"scenario": f"{here}:CountedArithmetic", "dataset": "chains"},
            "agents": {"_default": common, "prover": prover, "verifier": verifier},
            "scenario_settings": {"system_prompt_version": "short", "generator": "chains-2"},
            "tool": {"per_turn": PER_TURN, "per_episode": 3, "price": PRICE, "call": "native"},
            "rl": {"num_iterations": 0, "rollouts_per_iteration": games},
            "dataset_options": {"max_test_size": games},
            "rollouts": {"concurrency": 8, "episodes_per_shard": 10, "failure_threshold": 1.0},
        }
        self.config, self.uses = self.place / "config.yaml", self.place / "uses"
        self.config.write_text(yaml.safe_dump(settings))
        self.uses.touch()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command of nip on the configuration; its output is a file."""
        changes = {"OPENAI_API_KEY": KEY, USES: str(self.uses), "DO_NOT_TRACK": "1"}
        changes |= {"PREFECT_HOME": str(self.place / "prefect")}
        command = [sys.executable, "-m", "nip_cli.cli", words[0], str(self.config), *words[1:]]
        with (self.place / "out").open("wb") as out, (self.place / "log").open("ab") as log:
            environment = {**os.environ, **changes}
            return subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=log, start_new_session=True
            )

    def do(self, *words: str) -> str:
        """Run such a command to its end, and return its output."""
        code = self.start(*words).wait(MOST_S)
        if code != 0:
            raise SystemExit(
                f"{self.name}: exit {code}\n{(self.place / 'log').read_text()[-3000:]}"
            )
        return (self.place / "out").read_text()

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Read a table of the test as far as it is committed."""
        import pyarrow.parquet as pq

        files = self.place.glob(f"*/iterations/0000/rollouts/test/{table}-*.parquet")
        return [row for file in sorted(files) for row in pq.read_table(file).to_pylist()]

    def recorded(self) -> tuple[int, int]:
        """Count the verifier's answers, and the results of uses, that are on the disk by now."""
        from nip_core.rollouts.storage.journal import parse_begun
        from nip_core.tools import REFUSED

        rows = {row["key"]: row for row in self.rows("generations")}
        results = {key: row["tool_result"] for key, row in rows.items() if row["tool_result"]}
        for path in self.place.rglob("*.journal"):
            for record in parse_begun(path.read_bytes(), str(path)):
                if "generation" in record:
                    rows[record["generation"]["key"]] = record["generation"]
                if "tool_result" in record:
                    results[record["tool_result"]["key"]] = record["tool_result"]["text"]
        answers = sum(row["agent"] == "verifier" for row in rows.values())
        return answers, sum(not re.match(REFUSED, text) for text in results.values())

    def count_uses(self) -> int:
        """Count how often the tool has been used."""
        return len(self.uses.read_text().splitlines())


@contextmanager
def serve(engine: str, vllm: Path, model: Path, place: Path) -> Any:
    """Serve a model folder under its name, by nip serve or by vLLM; its URL."""
    port, log = free_port(), place / f"{engine}-{model.name}.log"
    usual = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", model.name]
    environment = {**os.environ, "NIP_API_KEYS": KEY}
    if engine == "nip":
        state = ["--state", str(place / f"state-{model.name}"), "--engine", "embedded"]
        command = [sys.executable, "-m", "nip_cli.cli", "serve", "--model", str(model), *state]
    else:
        environment = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
        environment |= {"PATH": f"{vllm.parent}:{os.environ['PATH']}", "VLLM_API_KEY": KEY}
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
        command = [str(vllm.with_name("python")), "-m", "vllm.entrypoints.cli.main", "serve"]
        command += [str(model), "--enforce-eager", "--dtype", "float32", "--max-num-seqs", "8"]
        command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        # Of a prompt in pieces with a seed it dies on a CPU (0.32.0), as nip's own engine knows.
        command += ["--max-model-len", "2048", "--no-enable-chunked-prefill"]
    with started(engine, [*command, *usual], environment, port, KEY, log) as url:
        yield url


def measure(play: Play) -> dict[str, Any]:
    """Play the test games, and count them by the wire, the tables, the uses and the metrics."""
    from nip_core.game.answers.reasons import sort_reason
    from nip_core.tools import REFUSED

    began = time.monotonic()
    metrics = json.loads(play.do("evaluate", "--json", "--progress", "none"))["test"]
    episodes = {row["key"]: row for row in play.rows("episodes")}
    rows = [row for row in play.rows("generations") if row["agent"] == "verifier"]
    asked = [answer for _, answer in play.front.pairs]
    results = [row for row in rows if row["tool_result"]]
    used = [row for row in results if not re.match(REFUSED, row["tool_result"])]
    uses_by_game = Counter(row["episode"] for row in used)
    paid: dict[str, set[float]] = {}
    for key, game in episodes.items():
        ending = {game["y"]: "right", 1 - game["y"]: "wrong"}.get(game["decision"], game["outcome"])
        reward = {entry["agent"]: entry["reward"] for entry in game["rewards"]}["verifier"]
        paid.setdefault(ending, set()).add(round(reward + PRICE * uses_by_game[key], 9))
    tool_calls = metrics["agents"]["verifier"].get("tool_calls", 0)
    assert len(used) == tool_calls, (len(used), tool_calls)
    assert all(len(rewards) == 1 for rewards in paid.values()), paid
    invalid = [row for row in rows if row["invalid_reason"]]
    texts = [answer.get("content") or "" for answer in asked]
    return {
        "games": len(episodes),
        "finished": sum(game["outcome"] == "finished" for game in episodes.values()),
        "failed": sum(game["outcome"] == "failed" for game in episodes.values()),
        "verdicts_right": sum(game["y"] == game["decision"] for game in episodes.values()),
        "no_verdict": sum(game["decision"] not in (0, 1) for game in episodes.values()),
        "games_with_a_use": len(uses_by_game),
        "answers": len(rows),
        "answers_with_native_calls": sum(bool(answer.get("tool_calls")) for answer in asked),
        "answers_with_several_calls": sum(len(a.get("tool_calls") or ()) > 1 for a in asked),
        "lines_that_call": sum(bool(re.search("^check:", t, re.M | re.I)) for t in texts),
        "marks_left_in_texts": sum("tool_call" in text for text in texts),
        "results": len(results),
        "uses": len(used),
        "refused_beyond_the_limit": len(results) - len(used),
        "invalid": Counter(
            sort_reason(row["invalid_reason"], row["finish_reason"], row["text"]) for row in invalid
        ),
        "uses_of_the_tool_itself": play.count_uses(),
        "tool_calls_of_the_metrics": tool_calls,
        "reward_of_the_metrics": metrics["agents"]["verifier"]["mean_reward"],
        "reward_before_the_price": {ending: [*rewards] for ending, rewards in paid.items()},
        "seconds": round(time.monotonic() - began),
    }


def kill_and_resume(play: Play, after: int) -> dict[str, Any]:
    """Kill nip evaluate when so many answers have passed, run it again, and count both parts."""
    front, process = play.front, play.start("evaluate", "--json", "--progress", "none")
    while len(front.pairs) < after:
        if process.poll() is not None:
            raise SystemExit((play.place / "log").read_text()[-3000:])
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while front.done < front.asked:  # answers in flight, which come to nobody now
        time.sleep(0.1)
    (answers, results), passed, uses = play.recorded(), len(front.pairs), play.count_uses()
    figures = measure(play)
    later, later_uses = len(front.pairs) - passed, play.count_uses() - uses
    return {
        "killed_after_answers": after,
        "first_part": {"answers": passed, "on_record": answers, "uses": uses, "results": results},
        "second_part": {"answers": later, "uses": later_uses},
        "recorded_answers_asked_again": answers + later - figures["answers"],
        "recorded_uses_made_again": results + later_uses - figures["uses"],
        **figures,
    }


def teach_model(place: Path, lessons: int) -> tuple[Path, Path, dict[str, Any]]:
    """Teach the model once in a place; the folders of both models, and the facts of training."""
    from nip_core.models import resolve_model

    base = make_folder(Path(resolve_model("smollm2")), place / "untaught")
    taught, facts = place / "taught", place / "training.json"
    if not facts.exists():
        play = Play(place, "lessons", "teacher", None, lessons)
        play.do("play", "--split", "train", "--out", str(play.place / "files"))
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # whose memory comes back
            learned = pool.submit(train, base, play.front.pairs, taught).result()
        facts.write_text(json.dumps({**learned, "commit": describe_commit()}))
    return taught, base, json.loads(facts.read_text())


def play_at(engine: str, vllm: Path, models: list[Path], runs: Path, games: int) -> dict[str, Any]:
    """Play with each model at a server, with the first one of them once more, killed."""
    runs.mkdir(parents=True)
    load, began, result = os.getloadavg()[0], time.monotonic(), dict[str, Any]()
    for model in models:
        with serve(engine, vllm, model, runs) as url:
            result[model.name] = measure(Play(runs, model.name, model.name, url, games))
            if model is models[0]:
                play = Play(runs, "killed", model.name, url, games)
                result["killed"] = kill_and_resume(play, games)
    return {
        "command": shlex.join(["python", "benchmarks/native_calls.py", *sys.argv[1:]]),
        **{"commit": describe_commit(), "machine": describe_machine(), "versions": versions(vllm)},
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "seconds": round(time.monotonic() - began),
        **result,
    }


def main() -> None:
    """Teach, play at each server, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--games", type=int, default=50)
    parser.add_argument("--lessons", type=int, default=100)
    parser.add_argument("--engines", nargs="+", default=["nip", "vllm"])
    parser.add_argument("--place", type=Path, help="a folder to keep")
    parser.add_argument("--out", type=Path, help="a file; the parts of other servers stay in it")
    options = parser.parse_args()
    vllm, result = vllm_command(), dict[str, Any]()
    if vllm is None:
        parser.error("no vLLM: scripts/build_vllm_cpu.sh, or NIP_VLLM")
    if options.out and options.out.exists():
        result = json.loads(options.out.read_text())
    made = tempfile.TemporaryDirectory() if options.place is None else nullcontext(options.place)
    with made as folder:
        place = Path(folder).resolve()
        place.mkdir(parents=True, exist_ok=True)
        *models, result["training"] = teach_model(place, options.lessons)
        shutil.rmtree(runs := place / "runs", ignore_errors=True)
        result["teacher"] = measure(Play(runs, "teacher", "teacher", None, options.games))
        for engine in options.engines:
            result[engine] = play_at(engine, vllm, models, runs / engine, options.games)
            print(json.dumps(result[engine], indent=1), flush=True)
            if options.out:
                options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
