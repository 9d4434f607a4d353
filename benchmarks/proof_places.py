"""How many wrong adapters the proof over vLLM on a CPU would take for the right one, by its places.

    python benchmarks/proof_places.py [--model smollm2] [--out docs/results/proof_places.json]

Adapters are trained by jobs: three by one epoch (two on one answer, by different seeds, and one on
another), one by the model's own number of epochs. Each has its wrong ones: the base, the other
adapters, a layer or a kind of matrix left out, single matrices left out, other scales, lower ranks.
What they would answer comes from transformers in float32, not from vLLM, with the base as the only
rival. It is judged at the places that tell most (`choose_telling`), within CPU_MEAN, and as earlier
at twelve places spread over the first 48 tokens, within the precision's limit.
"""

import argparse
import contextlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from beside.models import find_model
from beside.serving import directory_of, server, train
from measured_commit import describe_commit
from swap_by_turns import Short

Files = Any
PLACES, SPREAD, SINGLE = 12, 48, 24
"""Spread places, the first tokens in which they lie, and about how many matrices are left out."""
TRAININGS = (("accept", True), ("accept", True), ("reject", True), ("accept", False))
"""Their answers, and whether they take one epoch."""


def wrong_ones(right: Files, rivals: list[Files]) -> Iterator[tuple[str, Files | None]]:
    """The wrong adapters of a right one, by what they are; None is the base."""

    names = sorted(right.pairs)

    def scaled(factor: float, meant: Sequence[str] = names) -> Files:
        pairs = {n: (a, b * factor if n in meant else b) for n, (a, b) in right.pairs.items()}
        return replace(right, pairs=pairs)

    def ranked(cut: int) -> Files:
        pairs = {n: (a * (1 - _last_rows(a, cut)), b) for n, (a, b) in right.pairs.items()}
        return replace(right, pairs=pairs)

    yield "base", None
    for other in rivals:
        yield "another adapter", other
    for layer in sorted({name.split(".layers.")[1].split(".")[0] for name in names}):
        yield "without a layer", scaled(0, [name for name in names if f".layers.{layer}." in name])
    for kind in sorted({name.rpartition(".")[2] for name in names}):
        yield "without a kind of matrix", scaled(0, [name for name in names if name.endswith(kind)])
    for single in names[:: max(1, len(names) // SINGLE)]:
        yield "without one matrix", scaled(0, [single])
    for factor in (0.5, 0.9, 0.99, 1.01, 2):
        yield "of another scale", scaled(factor)
    rank = next(iter(right.pairs.values()))[0].shape[0]
    for cut in (1, rank // 2):
        yield "of a lower rank", ranked(cut)


def _last_rows(matrix: Any, count: int) -> Any:
    import torch

    return (torch.arange(len(matrix)) >= len(matrix) - count).float()[:, None]


def count_taken(model_path: Path, adapters: list[Path]) -> dict[str, Any]:
    """Judge every wrong adapter both ways; by way, those that pass, and the tokens read."""
    import torch
    from transformers import AutoModelForCausalLM

    from nip_lm_server.engines.vllm.adapter_proof import CPU_MEAN, CPU_TOKENS
    from nip_lm_server.lora import probes
    from nip_lm_server.lora.prove_weights import apply_adapter
    from nip_lm_server.lora.rowwise_lora import read_lora

    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()

    def score(files: Files | None, tokens: list[int]) -> list[float]:
        with torch.no_grad(), apply_adapter(model, files) if files else contextlib.nullcontext():
            logits = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        return [logits[place, token].item() for place, token in enumerate(tokens[1:])]

    loaded = [read_lora(path) for path in adapters]
    ways: dict[str, Any] = {
        name: {"tokens": [], "right": 0, "right_distances": [], "wrong": 0, "taken": {}}
        for name in ("telling", "spread")
    }
    for path, right in zip(adapters, loaded, strict=True):
        probe = probes.read_probe(path)
        tokens = [*probe.tokens[: SPREAD + 1]]
        base, own = score(None, tokens), score(right, tokens)
        answers = [("right", own)]
        rivals_of = [each for each in loaded if each is not right]
        answers += [(what, score(files, tokens)) for what, files in wrong_ones(right, rivals_of)]
        for name, places, mean in (
            ("telling", probes.choose_telling(probe, SPREAD, CPU_TOKENS), CPU_MEAN),
            ("spread", probes.choose_places(SPREAD, PLACES), None),
        ):
            way, at = ways[name], probe.at(places)
            way["tokens"].append(sum(place + 1 for place in places))
            rivals = {"base": probes.Scores([base[place] for place in places])}
            for what, each in answers:
                served = [each[place] for place in places]
                passes, figures = probes.judge_probe(
                    at, served, rivals, base="base", dtype="float32", mean=mean
                )
                if what == "right":
                    way["right"] += passes
                    way["right_distances"].append(figures["distance"])
                    continue
                way["wrong"] += 1
                if passes:
                    way["taken"][what] = way["taken"].get(what, 0) + 1
    return ways


def main() -> None:
    """Train, judge, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model, load = find_model(options.model), os.getloadavg()[0]
    short = Short(model.name, model.path, model.is_large)
    with tempfile.TemporaryDirectory() as folder:
        with server("embedded", Path(folder) / "state", None, model.path) as handle:
            paths = [
                directory_of(handle.state_dir, train(handle, short if is_short else model, a, seed))
                for seed, (a, is_short) in enumerate(TRAININGS)
            ]
        ways = count_taken(model.path, paths)
    report = {
        "command": shlex.join(["python", "benchmarks/proof_places.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "trainings": len(TRAININGS),
        **ways,
    }
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
