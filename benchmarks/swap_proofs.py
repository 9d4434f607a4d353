"""The proof of a swap on a model of any size: false alarms, and whether wrong weights are found.

    python benchmarks/swap_proofs.py [--model NAME_OR_PATH] [--dtype NAME ...] [--proofs N]
                                     [--in-flight N] [--out FILE]

Trains four adapters by the training process, on the processors: `first` over the base, `second`
that continues it, `stacked` that is trained over it and saved with it as one, `other` over the base
with other data. Then an embedded engine in each precision serves them, and proves:

right     each adapter and the base as they are, so often that there are `--proofs` proofs; half of
          them while `--in-flight` answers are generated. One that fails is a false alarm.
wrong     the base under an adapter's name, another adapter under it (each of the others), one
          matrix of its first layer doubled, its B cut to half (as a half-trained one has it), the
          base with one changed tensor. One that passes was missed.

The distances of the right ones are the noise, the least of the wrong ones shows how far that is.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measured_commit import describe_commit
from packing import SETTINGS, write_data

from nip_core.models import resolve_model

ADAPTERS = ("first", "second", "stacked", "other")
EXAMPLES, BATCH = 8, 4


def train(model: str, place: Path, name: str, data: Path, **changed: Any) -> Path:
    """Train one adapter. Raises RuntimeError if it fails."""
    place = place / name
    if (place / "out" / "training_result.json").is_file():
        return place / "out"  # of a time before
    place.mkdir(exist_ok=True)
    parent = changed.pop("parent", None)
    job = {
        "method": "supervised",
        "base_model_path": model,
        "training_file": str(data),
        "parent_adapter_path": parent and str(parent),
        "seed": 0,
        "device": "cpu",
        "output_dir": str(place / "out"),
        "hyperparameters": {**SETTINGS, "batch_size": BATCH, "learning_rate": 1e-3, **changed},
    }
    (place / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [sys.executable, "-m", "nip_lm_server.training.main", "--job-dir", str(place)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the training of {name} failed:\n{done.stderr[-2000:]}")
    return place / "out"


def train_all(model: str, place: Path) -> dict[str, Path]:
    """Train the adapters, by name."""
    data, second_data = place / "data.jsonl", place / "others.jsonl"
    write_data(data, EXAMPLES, 30)
    write_data(second_data, EXAMPLES, 30, seed=1)
    made = {"first": train(model, place, "first", data)}
    parent = made["first"]
    made["second"] = train(
        model, place, "second", second_data, parent=parent, start_from="continue"
    )
    made["stacked"] = train(model, place, "stacked", second_data, parent=parent, start_from="stack")
    made["other"] = train(model, place, "other", second_data)
    return made


async def measure(
    model: str, dtype: str, made: dict[str, Path], proofs: int, in_flight: int
) -> dict[str, Any]:
    """Prove right and wrong weights in one precision."""
    from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine

    engine = EmbeddedEngine(model, "base", device="cpu", dtype=dtype)
    await engine.start()
    try:
        for name, path in made.items():
            await engine.load_adapter(name, path)
        alone = await _right(engine, model, made, proofs - proofs // 2)
        async with _Busy(engine, in_flight):
            loaded = await _right(engine, model, made, proofs // 2)
        wrong = await _wrong(engine, model, made)
    finally:
        await engine.stop()
    return {
        "dtype": dtype,
        "alone": _summary(alone),
        "under load": _summary(loaded),
        "wrong": wrong,
        "missed": [row["what"] for row in wrong if row["passes"]],
    }


async def _right(
    engine: Any, model: str, made: dict[str, Path], count: int
) -> list[dict[str, Any]]:
    rows = []
    served = [*made.items(), ("base", Path(model))]
    for number in range(count):
        name, path = served[number % len(served)]
        rows.append({"name": name, **_figures(await engine.prove(name, path))})
    return rows


def _figures(proof: Any) -> dict[str, Any]:
    names = ("distance", "probe_file_distance", "rounding", "weights_equal", "nearer_than_own")
    return {"passes": proof.matches} | {name: proof.detail.get(name) for name in names}


class _Busy:
    """Within, so many answers are always being generated."""

    def __init__(self, engine: Any, in_flight: int):
        self._engine, self._in_flight = engine, in_flight
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(self._ask(i)) for i in range(self._in_flight)]

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, number: int) -> None:
        from nip_lm_server.engines.base import GenerationRequest

        models = ("base", *ADAPTERS)
        while True:
            await self._engine.generate(
                GenerationRequest(
                    model=models[number % len(models)],
                    messages=({"role": "user", "content": f"Tell me of the number {number}."},),
                    max_tokens=32,
                    seed=number,
                )
            )


async def _wrong(engine: Any, model: str, made: dict[str, Path]) -> list[dict[str, Any]]:
    """Serve something else under each name, and prove it."""
    rows = []
    for name, path in made.items():
        for what, matrices in _others(engine._worker.adapters, name):
            with _served_instead(engine._worker.adapters[name], matrices):
                proof = await engine.prove(name, path)
            logprobs_alone = _passes_by_logprobs(proof.detail)
            rows.append({"what": f"{what} as {name}", "by_logprobs": not logprobs_alone}
                        | _figures(proof))  # fmt: skip
    weight = next(p for n, p in engine._worker.loaded.model.named_parameters() if "down_proj" in n)
    row = weight[0].clone()
    weight[0] *= 2
    proof = await engine.prove("base", Path(model))
    weight[0] = row
    rows.append({"what": "base with one changed row", "by_logprobs": None} | _figures(proof))
    return rows


def _passes_by_logprobs(detail: dict[str, Any]) -> bool:
    """Say whether the log-probabilities alone, without the bits of the weights, would pass."""
    near = detail["distance"] <= detail["tolerance"] and not detail["nearer_than_own"]
    return bool(near and detail.get("probe_file_matches", True))


def _others(adapters: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    matrices = adapters[name].matrices
    yield "base", {module: (down, up * 0) for module, (down, up) in matrices.items()}
    for other, adapter in adapters.items():
        if other != name:
            yield other, dict(adapter.matrices)
    first = next(iter(matrices))
    yield "one matrix doubled", {**matrices, first: (matrices[first][0] * 2, matrices[first][1])}
    yield "half of it", {module: (down, up / 2) for module, (down, up) in matrices.items()}


@contextmanager
def _served_instead(adapter: Any, instead: dict[str, Any]) -> Iterator[None]:
    matrices = dict(adapter.matrices)
    adapter.matrices.clear()
    adapter.matrices.update(instead)
    try:
        yield
    finally:
        adapter.matrices.clear()
        adapter.matrices.update(matrices)


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def largest(key: str) -> float:
        return max((row[key] for row in rows if row[key] is not None), default=0.0)

    return {
        "proofs": len(rows),
        "false_alarms": [row for row in rows if not row["passes"]],
        "largest_distance": largest("distance"),
        "largest_probe_file_distance": largest("probe_file_distance"),
        "largest_rounding": largest("rounding"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="tiny", help="a bundled model, a path, a hub name")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--proofs", type=int, default=200)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--adapters", type=Path, help="keep the adapters here, and find them again")
    parser.add_argument("--out", type=Path, help="write the figures here too")
    options = parser.parse_args()
    model, rows = resolve_model(options.model), []
    with tempfile.TemporaryDirectory() as scratch:
        place = options.adapters or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        made = train_all(model, place)
        for dtype in options.dtype:
            figures = measure(model, dtype, made, options.proofs, options.in_flight)
            rows.append(asyncio.run(figures))
            print(json.dumps(rows[-1], indent=1), flush=True)
    if options.out:
        result = {"commit": describe_commit(), "model": options.model, "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    wrong = any(row["missed"] or row["alone"]["false_alarms"] or row["under load"]["false_alarms"]
                for row in rows)  # fmt: skip
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
