"""Does each training method of lm_server teach the tiny model? Over seeds, through the real API.

    python benchmarks/server_learning.py --out docs/results/server_learning.json

For each method and seed, a server with the embedded engine and the bundled tiny model is driven by
the stock openai client: files uploaded, jobs created and polled, the fine-tuned model asked. Writes
a JSON file and, beside it, a Markdown page. Exit status 1 if a bar is not met.

The task: an expert's report names an operation first, and the operation alone decides whether
"Decision: accept" or "Decision: reject" is right; the second operation, the numbers and the
conclusion mean nothing. Untrained, the model decides by the toss of a coin, which is the chance
that the methods start from. Held-out cases are reports that were not trained on.

supervised     200 examples; the share of held-out cases decided right, at temperature 0
dpo            200 pairs of right and wrong; the share of held-out pairs whose right answer is the
               more likely one, by the token at which the two part
trajectories   a few jobs, each from 64 fresh cases sampled 8 times by the model that the job before
               made, reward 1 for the right decision; mean reward on fresh cases at temperature 1
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DECISIONS = {"accept": "Decision: accept", "reject": "Decision: reject"}
OPERATIONS = {
    "times": "accept", "plus": "accept", "above": "accept",
    "minus": "reject", "below": "reject", "last": "reject",
}  # fmt: skip
HELD_OUT = 200
JOB_TIMEOUT_S = 600.0

SHAPE = {"lora_rank": 32, "lora_alpha": 64, "warmup_ratio": 0.05}
SUPERVISED = {"n_epochs": 3, "batch_size": 4}
SUPERVISED_RATE = 2e-3
DPO = {"n_epochs": 6, "batch_size": 8, "beta": 2.0}
DPO_RATE = 5e-4
TRAJECTORIES = {"n_epochs": 2, "batch_size": 8, "advantage": "group"}
TRAJECTORIES_RATE = 1e-3
TRAJECTORIES_JOBS = 4
CASES_PER_JOB = 64
SAMPLES = 8

BARS = {"supervised": 0.95, "dpo": 0.95, "trajectories": 0.90}


@dataclass(frozen=True)
class Case:
    """What the model is asked, and what it should and should not answer."""

    messages: tuple[dict[str, str], ...]
    right: str
    wrong: str


def draw_cases(seed: int, count: int, without: Sequence[Case] = ()) -> list[Case]:
    """`count` different cases, none of them among `without`."""
    draw = random.Random(seed)
    seen = {case.messages[0]["content"] for case in without}
    cases: list[Case] = []
    while len(cases) < count:
        first, second = draw.sample(list(OPERATIONS), 2)
        n, m = draw.randrange(29), draw.randrange(29)
        end = draw.choice(("match", "differ"))
        report = f"Answer: asked {first} {n} code {n} ok, {second} {m} code {m} ok, they {end}"
        if report in seen:
            continue
        seen.add(report)
        right = OPERATIONS[first]
        wrong = "reject" if right == "accept" else "accept"
        messages = (
            {"role": "user", "name": "Expert", "content": report},
            {"role": "system", "content": "No more questions. Decide now."},
        )
        cases.append(Case(messages, DECISIONS[right], DECISIONS[wrong]))
    return cases


def supervised_row(case: Case) -> dict[str, Any]:
    """The case as a line of method `supervised`."""
    return {"messages": [*case.messages, {"role": "assistant", "content": case.right}]}


def pair_row(case: Case) -> dict[str, Any]:
    """The case as a line of method `dpo`."""
    return {
        "input": {"messages": list(case.messages)},
        "preferred_output": [{"role": "assistant", "content": case.right}],
        "non_preferred_output": [{"role": "assistant", "content": case.wrong}],
    }


def episode_row(
    case: Case,
    group: str,
    text: str,
    prompt_ids: Sequence[int],
    token_ids: Sequence[int],
    logprobs: Sequence[float],
) -> dict[str, Any]:
    """A sampled answer as a line of method `trajectories`; the right decision has reward 1."""
    turn = {
        "prompt_token_ids": list(prompt_ids),
        "completion_token_ids": list(token_ids),
        "logprobs": list(logprobs),
    }
    return {"turns": [turn], "group_id": group, "reward": float(text == case.right)}


class Server:
    """A running lm_server and the stock client on it."""

    def __init__(self, state_dir: Path):
        import openai

        from nip_base.spec import ServerSpec
        from nip_core.models import resolve_model
        from nip_lm_server import launch as owner

        spec = ServerSpec("embedded", resolve_model("tiny"), served_model_name="tiny")
        self._handle = owner.start_or_attach(spec, state_dir, timeout_s=180)
        self.client = openai.OpenAI(
            base_url=self._handle.url + "/v1", api_key=self._handle.api_key, max_retries=0
        )
        self._pool = ThreadPoolExecutor(32)

    def stop(self) -> None:
        """End the server."""
        from nip_lm_server import launch as owner

        self._pool.shutdown()
        self.client.close()
        owner.stop(self._handle)

    def train(
        self, method: str, model: str, rows: Sequence[Any], seed: int, rate: float, **hyper: Any
    ) -> Any:
        """Upload, create a job, wait; the job. Raises SystemExit unless it succeeds."""
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        file = self.client.files.create(file=("train.jsonl", content), purpose="fine-tune")
        settings: Any = {"type": method, method: {"hyperparameters": hyper}}
        job = self.client.fine_tuning.jobs.create(
            training_file=file.id,
            model=model,
            method=settings,
            seed=seed,
            extra_body={"nip": {**SHAPE, "learning_rate": rate}},
        )
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while job.status not in ("succeeded", "failed", "cancelled"):
            if time.monotonic() > deadline:
                raise SystemExit(f"the job {job.id} is still {job.status}")
            time.sleep(0.1)
            job = self.client.fine_tuning.jobs.retrieve(job.id)
        if job.status != "succeeded":
            raise SystemExit(f"the job {job.id} is {job.status}: {job.error}")
        return job

    def each(self, ask: Callable[[int, Case], Any], cases: Sequence[Case]) -> list[Any]:
        """`ask` for every case, 32 at a time."""
        return list(self._pool.map(ask, range(len(cases)), cases))

    def answer(self, model: str, case: Case, seed: int, **arguments: Any) -> Any:
        """One chat completion."""
        messages: Any = list(case.messages)
        return self.client.chat.completions.create(
            model=model, messages=messages, seed=seed, max_tokens=12, **arguments
        )


def decided_right(server: Server, model: str, cases: Sequence[Case], temperature: float) -> int:
    """Count how many cases the model decides right."""

    def ask(index: int, case: Case) -> bool:
        answer = server.answer(model, case, seed=index, temperature=temperature)
        return bool(answer.choices[0].message.content == case.right)

    return sum(server.each(ask, cases))


def preferred(server: Server, model: str, cases: Sequence[Case]) -> int:
    """Count how many right answers are likelier than their wrong ones, where the two part.

    Of the five likeliest tokens there. A pair of which neither is among them is not counted.
    """
    from nip_core.models import resolve_model
    from nip_lm_server.chats import chat_template

    tokenizer = chat_template.load_tokenizer(resolve_model("tiny"))
    common = chat_template.encode(tokenizer, "Decision:")

    def ask(_: int, case: Case) -> bool:
        prompt = chat_template.encode_prompt(tokenizer, case.messages) + common
        completion = server.client.completions.create(
            model=model, prompt=prompt, max_tokens=1, temperature=0, logprobs=5
        )
        logprobs = completion.choices[0].logprobs
        assert logprobs is not None and logprobs.top_logprobs is not None
        top = logprobs.top_logprobs[0]
        right, wrong = (text.removeprefix("Decision:") for text in (case.right, case.wrong))
        return top.get(right, -1e9) > top.get(wrong, -1e9)

    return sum(server.each(ask, cases))


def sampled(server: Server, model: str, cases: Sequence[Case], seed: int) -> list[dict[str, Any]]:
    """SAMPLES answers to each case, as rows of method `trajectories`."""

    def ask(index: int, case: Case) -> list[dict[str, Any]]:
        answer = server.answer(
            model,
            case,
            seed=seed * 1000 + index,
            temperature=1.0,
            n=SAMPLES,
            logprobs=True,
            extra_body={"return_token_ids": True},
        )
        return [
            episode_row(
                case,
                f"case {index}",
                choice.message.content,
                answer.prompt_token_ids,
                choice.token_ids,
                [token.logprob for token in choice.logprobs.content],
            )
            for choice in answer.choices
        ]

    return [row for rows in server.each(ask, cases) for row in rows]


def teach_supervised(server: Server, seed: int) -> list[int]:
    """Held-out cases decided right before and after."""
    cases = draw_cases(seed, 200)
    held_out = draw_cases(10_000 + seed, HELD_OUT, without=cases)
    rows = [supervised_row(case) for case in cases]
    job = server.train("supervised", "tiny", rows, seed, SUPERVISED_RATE, **SUPERVISED)
    models = ("tiny", job.fine_tuned_model)
    return [decided_right(server, model, held_out, 0.0) for model in models]


def teach_dpo(server: Server, seed: int) -> list[int]:
    """Held-out pairs preferred rightly before and after."""
    cases = draw_cases(seed, 200)
    held_out = draw_cases(10_000 + seed, HELD_OUT, without=cases)
    rows = [pair_row(case) for case in cases]
    job = server.train("dpo", "tiny", rows, seed, DPO_RATE, **DPO)
    return [preferred(server, model, held_out) for model in ("tiny", job.fine_tuned_model)]


def teach_trajectories(server: Server, seed: int) -> list[int]:
    """Sum of the rewards on fresh cases, before and after each job."""
    held_out = draw_cases(10_000 + seed, HELD_OUT)
    model, rewards = "tiny", [decided_right(server, "tiny", held_out, 1.0)]
    for number in range(TRAJECTORIES_JOBS):
        draws = 100 * seed + number
        cases = draw_cases(draws, CASES_PER_JOB, without=held_out)
        rows = sampled(server, model, cases, draws)
        job = server.train("trajectories", model, rows, seed, TRAJECTORIES_RATE, **TRAJECTORIES)
        model = job.fine_tuned_model
        rewards.append(decided_right(server, model, held_out, 1.0))
    return rewards


METHODS: dict[str, Callable[[Server, int], list[int]]] = {
    "supervised": teach_supervised,
    "dpo": teach_dpo,
    "trajectories": teach_trajectories,
}


def rate(count: int) -> dict[str, Any]:
    """A share of the held-out cases with its 95 % interval."""
    from nip_core.evaluation.confidence_intervals import wilson

    return {"rate": count / HELD_OUT, "ci95": wilson(count, HELD_OUT), "of": HELD_OUT}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""

    def cell(value: dict[str, Any]) -> str:
        low, high = value["ci95"]
        return f"{100 * value['rate']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"

    lines = ["| method | seed | untrained | after the jobs | bar | met | s |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        before, *after = row["rates"]
        lines.append(
            f"| {row['method']} | {row['seed']} | {cell(before)} | "
            f"{', '.join(map(cell, after))} | {100 * row['bar']:.0f} | "
            f"{'yes' if row['met'] else 'no'} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def measure(method: str, seed: int) -> dict[str, Any]:
    """One method with one seed on a server of its own."""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory) / "state")
        try:
            counts = METHODS[method](server, seed)
        finally:
            server.stop()
    rates = [rate(count) for count in counts]
    return {
        "method": method,
        "seed": seed,
        "rates": rates,
        "bar": BARS[method],
        "met": rates[-1]["rate"] > BARS[method],
        "seconds": round(time.monotonic() - started_s, 1),
    }


def write(out: Path, rows: Sequence[dict[str, Any]], seeds: Sequence[int]) -> None:
    """The JSON file and the page beside it."""
    git = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    results = {
        "commit": done.stdout.strip(),
        "command": "python benchmarks/server_learning.py --out docs/results/server_learning.json "
        f"--seeds {' '.join(map(str, seeds))}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}",
        "settings": {
            "shape": SHAPE,
            "supervised": {**SUPERVISED, "learning_rate": SUPERVISED_RATE},
            "dpo": {**DPO, "learning_rate": DPO_RATE},
            "trajectories": {**TRAJECTORIES, "learning_rate": TRAJECTORIES_RATE,
                             "cases": CASES_PER_JOB, "samples": SAMPLES},
        },
        "rows": list(rows),
    }  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    page = (
        "# Does each training method of lm_server teach?\n\n"
        f"`{results['command']}` at {results['commit']} on {results['machine']}. In percent of "
        f"{HELD_OUT} held-out cases, with 95 % intervals (Wilson): for `supervised` those decided "
        "right, for `dpo` those whose right answer is the likelier one, for `trajectories` the "
        f"mean reward, after each of {TRAJECTORIES_JOBS} jobs. `s`: seconds with the server's "
        "start. What the task is stands in `benchmarks/server_learning.py`.\n\n"
    )
    out.with_suffix(".md").write_text(page + table(rows) + "\n")


def main() -> int:
    """Measure everything; 1 if a bar is not met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=list(METHODS), default=list(METHODS))
    options = parser.parse_args()
    rows = []
    for method in options.only:
        for seed in options.seeds:
            rows.append(measure(method, seed))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    write(options.out, rows, options.seeds)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
