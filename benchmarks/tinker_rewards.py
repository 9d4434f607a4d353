"""Does a reward rise when recipes of Tinker's cookbook train on nip's server? Over seeds.

    .tinker-env/bin/python benchmarks/tinker_rewards.py --out docs/results/tinker_rewards.json

In the environment that scripts/build_tinker.sh builds; the server runs in nip's own (.venv, or
NIP_PYTHON). Model, data and tokenizer are local, and the recipes run as they are published:

sl_loop      the warm-up; without it no sample is right, and there is nothing to learn from
arithmetic   math_rl.train env=arithmetic loss_fn=importance_sampling, from the warm-up's state
rl_loop      rl_loop loss_fn=importance_sampling, from the state of its own warm-up

The model knows sums of a number and a digit, below 100, and does not learn all others in these
minutes. So arithmetic's warm-up has the sums of the recipe's first steps, and of some more for the
evaluation, to learn them by heart; rl_loop's questions are ours, and are sums of a number and a
digit. Both warm-ups teach to write `49 + 8? 57`, and half of their answers end before the result,
so that a recipe gives nothing for them. What there is to learn by the reward is to say the result,
and to be sure of what one knows. The recipes and arithmetic's problems are as they are published.

All seeds of a recipe start from the state of one warm-up. What differs are the samples, which the
server draws anew, and in rl_loop the questions; math_rl is told the seed, but its arithmetic asks
the same sums whatever it is. With seeds 1 to 3 others were tried, and failed.

For each run: the reward of each step, the mean of the first and of the last steps, and the rewards
of the weights before and after on sums that no step of the recipe had (the warm-up had taught them,
too), as the recipe grades them; arithmetic's reward is 1 for a right answer, less 0.1 if it does
not end. The bar, for every seed: the 95 % interval of the gain on these sums is above 0, and the
server has as many optimizer steps on record as the recipe had batches with a step: rl_loop makes
none of equal rewards. Exit status 1 if it is not met.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measured_commit import describe_commit

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "tinker"))

import recipes  # noqa: E402
from recipes import MODEL, Place, Sums, Weights  # noqa: E402

SEEDS = (11, 12, 13)
LOSS = "importance_sampling"
ENDS = 3
"""Steps of which the first and the last mean are taken."""
FRESH_STEPS = 4
"""So many steps of sums are for the evaluation."""
REPEATS = 16
"""How often each of them is answered."""
STUDENT = 2.069
"""Student's t of a 95 % interval over the 24 sums of an evaluation."""
WARM_SEED, FRESH_SEED = 100, 200


@dataclass(frozen=True)
class Settings:
    """How a recipe is run."""

    warm_steps: int
    warm_batch: int
    steps: int
    groups: int
    group_size: int
    max_tokens: int
    learning_rate: float


RECIPES = {
    "arithmetic": Settings(450, 16, 8, 6, 10, 18, 1e-3),
    "rl_loop": Settings(200, 16, 8, 6, 10, 30, 1e-3),
}


@dataclass(frozen=True)
class Grades:
    """Of each fresh sum: the mean reward of its answers, and the share that is right."""

    rewards: list[float]
    right: list[float]


def list_asked(recipe: str, seed: int) -> Sums:
    """List the sums of the recipe's steps."""
    steps, groups = RECIPES[recipe].steps, RECIPES[recipe].groups
    if recipe == "rl_loop":
        return recipes.draw_easy_sums(steps * groups, seed, list_fresh(recipe))
    return recipes.list_sums(range(steps), groups)


def list_fresh(recipe: str) -> Sums:
    """List the sums of the evaluation."""
    steps, groups = RECIPES[recipe].steps, RECIPES[recipe].groups
    if recipe == "rl_loop":
        return recipes.draw_easy_sums(FRESH_STEPS * groups, FRESH_SEED)
    return recipes.list_sums(range(steps, steps + FRESH_STEPS), groups)


def list_taught(recipe: str) -> Sums:
    """List the sums of the warm-up."""
    if recipe == "rl_loop":
        settings = RECIPES[recipe]
        return recipes.draw_easy_sums(settings.warm_steps * settings.warm_batch, WARM_SEED)
    return list_asked(recipe, WARM_SEED) + list_fresh(recipe)


def train_arithmetic(place: Place, seed: int, settings: Settings, base: Weights) -> Path:
    """Run math_rl from the weights of the warm-up; returns the folder of its log."""
    log = place.make_log("math_rl")
    place.run(
        "math_rl.train", log, env="arithmetic", model_name=MODEL, seed=seed, loss_fn=LOSS,
        load_checkpoint_path=base.state, max_steps=settings.steps,
        groups_per_batch=settings.groups, group_size=settings.group_size,
        max_tokens=settings.max_tokens, learning_rate=settings.learning_rate, save_every=0,
        behavior_if_log_dir_exists="delete",
    )  # fmt: skip
    return log


def train_loop(place: Place, seed: int, settings: Settings, base: Weights) -> Path:
    """Run rl_loop from the state of the warm-up; returns the folder of its log."""
    place.write_questions(list_asked("rl_loop", seed))
    log = place.resume_from("rl_loop", base)
    place.run(
        "rl_loop", log, loss_fn=LOSS, batch_size=settings.groups, group_size=settings.group_size,
        max_tokens=settings.max_tokens, learning_rate=settings.learning_rate, save_every=0,
    )  # fmt: skip
    return log


def grade_arithmetic(a: int, b: int, answer: list[int], renderer: Any) -> tuple[float, bool]:
    """Grade an answer as math_rl does; returns its reward, and whether it is right."""
    from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticEnv

    result = asyncio.run(ArithmeticEnv(a, b, renderer).step(answer))
    return result.reward, result.metrics["correct"] == 1


def grade_loop(a: int, b: int, answer: list[int], renderer: Any) -> tuple[float, bool]:
    """Grade an answer as rl_loop does; returns its reward, and whether it is right."""
    from tinker_cookbook import renderers
    from tinker_cookbook.recipes.rl_loop import get_reward

    message, _ = renderer.parse_response(answer)
    reward = get_reward(renderers.get_text_content(message), f"#### {a + b}")
    return reward, reward == 1


TRAIN = {"arithmetic": train_arithmetic, "rl_loop": train_loop}
GRADE = {"arithmetic": grade_arithmetic, "rl_loop": grade_loop}
READ = {
    "arithmetic": recipes.read_arithmetic_wording,
    "rl_loop": recipes.read_loop_wording,
}
REWARD = {"arithmetic": "env/all/reward/total", "rl_loop": "reward/total"}


def evaluate(recipe: str, weights: Weights) -> Grades:
    """Let weights answer the fresh sums at temperature 1, and grade them as the recipe does."""
    import tinker
    from tinker_cookbook import renderers
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    settings, wording = RECIPES[recipe], READ[recipe]()
    renderer = renderers.get_renderer("role_colon", get_tokenizer(MODEL))
    client = tinker.ServiceClient().create_sampling_client(weights.sampler).result()
    params = tinker.SamplingParams(
        max_tokens=settings.max_tokens, stop=renderer.get_stop_sequences()
    )
    sums = list_fresh(recipe)
    prompts = [renderer.build_generation_prompt(wording.ask(a, b)) for a, b in sums]
    futures = [client.sample(prompt, REPEATS, params) for prompt in prompts]
    rewards, right = [], []
    for (a, b), future in zip(sums, futures, strict=True):
        answers = [sequence.tokens for sequence in future.result().sequences]
        grades = [GRADE[recipe](a, b, answer, renderer) for answer in answers]
        rewards.append(statistics.mean(reward for reward, _ in grades))
        right.append(statistics.mean(is_right for _, is_right in grades))
    return Grades(rewards, right)


def compare(before: list[float], after: list[float]) -> dict[str, Any]:
    """Compare two evaluations on the same sums; the interval is of the paired difference."""
    differences = [late - early for early, late in zip(before, after, strict=True)]
    difference = statistics.mean(differences)
    half = STUDENT * statistics.stdev(differences) / len(differences) ** 0.5
    return {
        "before": round(statistics.mean(before), 4),
        "after": round(statistics.mean(after), 4),
        "difference": round(difference, 4),
        "ci95": [round(difference - half, 4), round(difference + half, 4)],
    }


@dataclass(frozen=True)
class Start:
    """What all seeds of a recipe start from."""

    weights: Weights
    grades: Grades
    steps_on_record: int
    seconds: int


def warm_up(recipe: str, place: Place) -> Start:
    """Run sl_loop, and evaluate what it makes."""
    settings, begin = RECIPES[recipe], time.monotonic()
    weights = place.warm_up(
        READ[recipe](), list_taught(recipe), settings.warm_steps, settings.warm_batch, WARM_SEED
    )
    seconds = round(time.monotonic() - begin)
    steps = place.count_steps(weights)
    return Start(weights, evaluate(recipe, weights), steps, seconds)


def measure(recipe: str, seed: int, place: Place, start: Start) -> dict[str, Any]:
    """Train by the recipe, evaluate; what came of it."""
    begin = time.monotonic()
    log = TRAIN[recipe](place, seed, RECIPES[recipe], start.weights)
    trained = time.monotonic()
    rows = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if REWARD[recipe] in row]
    rewards = [row[REWARD[recipe]] for row in rows]
    weights = recipes.read_weights(log)
    grades = evaluate(recipe, weights)
    result: dict[str, Any] = {
        "recipe": recipe,
        "seed": seed,
        "load": round(os.getloadavg()[1], 1),
        "rewards": [round(reward, 4) for reward in rewards],
        "first": round(statistics.mean(rewards[:ENDS]), 4),
        "last": round(statistics.mean(rewards[-ENDS:]), 4),
        "fresh": {
            "sums": len(grades.rewards),
            "answers": len(grades.rewards) * REPEATS,
            "reward": compare(start.grades.rewards, grades.rewards),
            "right": compare(start.grades.right, grades.right),
        },
        "batches_with_unequal_rewards": sum("grad_norm" in row for row in rows),
        "steps_on_record": place.count_steps(weights),
        "seconds": round(trained - begin),
        "evaluation_seconds": round(time.monotonic() - trained),
    }
    if recipe == "arithmetic":
        result["right"] = [round(row["env/all/correct"], 4) for row in rows]
        result["ended"] = [round(row["env/all/format"], 4) for row in rows]
    result["met"] = meets_bar(result)
    return result


def meets_bar(row: dict[str, Any]) -> bool:
    """Return whether the reward rose by more than chance gives, and every step was a real one."""
    steps = row["steps_on_record"]
    return bool(
        row["fresh"]["reward"]["ci95"][0] > 0 and steps == row["batches_with_unequal_rewards"] > 0
    )


def write_table(rows: list[dict[str, Any]]) -> str:
    """Write the results as Markdown."""
    lines = [
        f"| recipe | seed | first {ENDS} steps | last {ENDS} | held back: before | after | gain "
        "| right: before | after | gain | steps on record | met | s |",
        "|---" * 13 + "|",
    ]
    for row in rows:
        cells = [f"`{row['recipe']}`", row["seed"], f"{row['first']:.3f}", f"{row['last']:.3f}"]
        for kind in ("reward", "right"):
            fresh = row["fresh"][kind]
            low, high = fresh["ci95"]
            cells += [f"{fresh['before']:.3f}", f"{fresh['after']:.3f}"]
            cells += [f"{fresh['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"]
        cells += [f"{row['steps_on_record']} of {len(row['rewards'])}"]
        cells += ["yes" if row["met"] else "no", row["seconds"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def write_results(
    out: Path, commit: str, starts: dict[str, Start], rows: list[dict[str, Any]]
) -> None:
    """Write the JSON file and the page beside it."""
    results = {
        "command": ".tinker-env/bin/python benchmarks/tinker_rewards.py "
        "--out docs/results/tinker_rewards.json",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}",
        "commit": commit,
        "sdk": version("tinker"),
        "cookbook": version("tinker-cookbook"),
        "model": recipes.ADDER,
        "warm_up_rate": recipes.SUPERVISED_RATE,
        "settings": {recipe: asdict(settings) for recipe, settings in RECIPES.items()},
        "warm_ups": {
            recipe: {"steps_on_record": start.steps_on_record, "seconds": start.seconds}
            for recipe, start in starts.items()
        },
        "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    loads = sorted(row["load"] for row in rows)
    warmed = ", ".join(f"{name} {start.seconds} s" for name, start in starts.items())
    page = (
        "# Does the reward rise when the cookbook's recipes train on nip's server?\n\n"
        f"`{results['command']}` at {commit} on {results['machine']}, load {loads[0]} to "
        f"{loads[-1]}; SDK {results['sdk']}, cookbook {results['cookbook']}, the bundled model "
        f"`{results['model']}`. The mean reward of the first and of the last {ENDS} steps; then "
        f"that of the weights before and after on sums that no step of the recipe had, though the "
        f"warm-up had taught them, each answered {REPEATS} "
        "times, and the share that is right, with 95 % intervals of the gain, paired by sum. Met: "
        "the gain in reward has its interval above 0, and the server has an optimizer step on "
        "record for every batch of which the recipe logged a step. `s`: seconds of the recipe; the "
        f"warm-ups took besides: {warmed}.\n\n" + write_table(rows) + "\n"
    )
    out.with_suffix(".md").write_text(page)
    print(page, flush=True)


def main() -> int:
    """Measure every recipe and seed; 1 if the bar is not met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out.resolve()
    commit = describe_commit()
    starts: dict[str, Start] = {}
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        recipes.run_place(Path(folder), ROOT, recipes.ADDER) as place,
    ):
        os.environ.update(place.environment)
        os.chdir(place.directory)
        for recipe in RECIPES:
            starts[recipe] = warm_up(recipe, place)
            for seed in SEEDS:
                rows.append(measure(recipe, seed, place, starts[recipe]))
                write_results(out, commit, starts, rows)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
