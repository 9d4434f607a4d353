"""Two jobs one after the other, as an iteration of the quick start has them: forked and started.

    python benchmarks/two_groups.py [--rounds N] [--prover N] [--verifier N]

One trainer of the server trains a prover's job of one epoch and then a verifier's of eight, with
settings of the quick start and conversations as long as its own. Each round has it three ways, in
turns: each job in a process that is started for it, as up to now; forked by a process that is
started with the first job; forked by one that has trained before. Seconds of the clock and of the
processors are told, and whether the adapters have the same bytes.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from nip_base.wire import EffectiveSettings
from nip_core.models import resolve_model
from nip_lm_server.jobs.training_process import SubprocessTrainer
from nip_lm_server.training.job import TrainingJob

SETTINGS: dict[str, Any] = {
    "batch_size": 4,
    "learning_rate_multiplier": 1.0,
    "learning_rate": 0.002,
    "warmup_ratio": 0.05,
    "lora_rank": 32,
    "lora_alpha": 64.0,
    "lora_dropout": 0.0,
    "lora_target_modules": "all-linear",
    "max_length": 1024,
    "start_from": "base",
}
WORDS = ("the", "list", "is", "sorted", "by", "key", "and", "then", "returned", "wrong", "case")


def make_job(directory: Path, examples: int, epochs: int) -> TrainingJob:
    """A job of conversations with some hundred pieces each."""
    directory.mkdir(parents=True)
    draw = random.Random(examples)
    with (directory / "train.jsonl").open("w") as file:
        for _ in range(examples):
            texts = [" ".join(draw.choices(WORDS, k=count)) for count in (30, 8)]
            roles = ("user", "assistant")
            turns = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
            file.write(json.dumps({"messages": turns}) + "\n")
    return TrainingJob(
        method="supervised",
        base_model_path=str(resolve_model("tiny")),
        training_file=directory / "train.jsonl",
        settings=EffectiveSettings.model_validate({**SETTINGS, "n_epochs": epochs}),
        seed=1,
        output_dir=directory / "out",
        device="cpu",
        job_dir=directory,
        key=directory.name,
    )


class Measured:
    """A trainer, with or without a warm process."""

    def __init__(self, *, forks: bool):
        self.trainer = SubprocessTrainer(os.environ)
        if not forks:
            self.trainer._warm = None

    async def train(self, directory: Path, sizes: tuple[int, int]) -> tuple[float, str]:
        """Seconds of the clock, and the digest of both adapters."""
        began_s, digest = time.monotonic(), hashlib.sha256()
        for name, examples, epochs in zip(("prover", "verifier"), sizes, (1, 8), strict=True):
            job = make_job(directory / name, examples, epochs)
            await self.trainer.train(job, lambda _: None, lambda *_: None, asyncio.Event())
            digest.update((job.output_dir / "adapter_model.safetensors").read_bytes())
        return time.monotonic() - began_s, digest.hexdigest()

    def end(self) -> None:
        """End what it may have kept."""
        if self.trainer._warm is not None:
            self.trainer._warm.end()


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def measure(rounds: int, sizes: tuple[int, int]) -> dict[str, Any]:
    """Measure all ways in turns."""
    clock: dict[str, list[float]] = {"started": [], "forked": [], "forked, warm": []}
    processors: dict[str, list[float]] = {"started": [], "both forked": []}
    digests = set()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            place = Path(folder) / str(number)
            # A process counts what its children used once they have ended and were waited for.
            before_s = _children_s()
            started = Measured(forks=False)
            clock_s, digest = await started.train(place / "started", sizes)
            clock["started"].append(clock_s)
            digests.add(digest)
            processors["started"].append(_children_s() - before_s)
            before_s = _children_s()
            forks = Measured(forks=True)
            for way in ("forked", "forked, warm"):
                clock_s, digest = await forks.train(place / way, sizes)
                clock[way].append(clock_s)
                digests.add(digest)
            forks.end()
            processors["both forked"].append(_children_s() - before_s)
    median = {way: statistics.median(times) for way, times in clock.items()}
    return {
        "rounds": rounds,
        "examples": sizes,
        "clock_s": {way: [round(s, 1) for s in times] for way, times in clock.items()},
        "of_started": {w: round(s / median["started"], 3) for w, s in median.items()},
        "processor_s": {way: [round(s, 1) for s in times] for way, times in processors.items()},
        "same_bytes": len(digests) == 1,
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prover", type=int, default=208, help="examples of the first job")
    parser.add_argument("--verifier", type=int, default=208, help="examples of the second job")
    options = parser.parse_args()
    sizes = (options.prover, options.verifier)
    print(json.dumps(asyncio.run(measure(options.rounds, sizes)), indent=1))


if __name__ == "__main__":
    main()
