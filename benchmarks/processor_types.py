"""Types and threads of a model on this machine's processors, in turn in one process.

    python benchmarks/processor_types.py [--model NAME_OR_PATH] [--rounds N] [--tokens N]
                                         [--rows N ...] [--threads N ...] [--out FILE]

For each type and number of threads: a pass over a prompt, one token for each of some rows, and a
training's forward and backward pass over all weights. Rounds go through all of them, each time in
another order, so that what else the machine does meets all alike. Seconds are of the clock on the
wall and of the processor: the latter, with one thread, compare types on a machine that is not
quiet. Also the share of the time in which our threads were ready without a processor, by which
`nip_base.machine.processors` decides.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from measured_commit import describe_commit

from nip_base.machine.processors import count_processors, read_waiting
from nip_core.models import resolve_model

DTYPES = ("float32", "bfloat16")
STEPS = 4


def make_work(tokens: int, rows: list[int]) -> dict[str, Callable[[Any], int]]:
    """Make what is timed, by name; each returns how many tokens it was."""
    import torch

    def draw(model: Any, *shape: int) -> Any:
        return torch.randint(0, model.config.get_text_config().vocab_size, shape)

    def prompt(model: Any) -> int:
        with torch.inference_mode():
            model(input_ids=draw(model, 1, tokens), use_cache=True, logits_to_keep=1)
        return tokens

    def answer(count: int) -> Callable[[Any], int]:
        def answer_rows(model: Any) -> int:
            ids = draw(model, count, 1)
            with torch.inference_mode():
                cache = model(input_ids=ids, use_cache=True).past_key_values
                for _ in range(STEPS):
                    model(input_ids=ids, past_key_values=cache, use_cache=True)
            return count * (STEPS + 1)

        return answer_rows

    def training(model: Any) -> int:
        ids = draw(model, 1, tokens)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        model.zero_grad()
        return tokens

    answers = {f"answer, {count} rows": answer(count) for count in rows}
    return {"prompt": prompt, **answers, "training": training}


def measure(
    model: str, rounds: int, threads: list[int], work: dict[str, Any]
) -> list[dict[str, Any]]:
    """All ways in turn; one round before that does not count."""
    import torch

    from nip_lm_server.chats.chat_template import load_model

    models = {dtype: load_model(model, getattr(torch, dtype)).eval() for dtype in DTYPES}
    ways = [(name, dtype, count) for name in work for dtype in DTYPES for count in threads]
    timed: dict[tuple[str, str, int], list[tuple[float, float, float]]] = {w: [] for w in ways}
    for number in range(rounds + 1):
        for way in [*ways[number % len(ways) :], *ways[: number % len(ways)]]:
            name, dtype, count = way
            torch.set_num_threads(count)
            before, cpu_s, began_s = read_waiting(), time.process_time(), time.perf_counter()
            tokens = work[name](models[dtype])
            wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
            after, waiting = read_waiting(), float("nan")
            if before and after and after != before:
                waited, ran = after[0] - before[0], after[1] - before[1]
                waiting = waited / (waited + ran)
            if number > 0:
                timed[way].append((wall_s / tokens, cpu_s / tokens, waiting))
    return [
        {
            "work": name,
            "dtype": dtype,
            "threads": count,
            "tokens_per_s": round(1 / median(one[0] for one in found), 2),
            "processor_ms_per_token": round(1e3 * min(one[1] for one in found), 3),
            "waiting": round(median(one[2] for one in found), 3),
        }
        for (name, dtype, count), found in timed.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="tiny", help="a bundled model, a path, a hub name")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--threads", type=int, nargs="+", help="default: 1 and all processors")
    parser.add_argument("--out", type=Path, help="write the figures here too")
    options = parser.parse_args()
    threads = options.threads or sorted({1, count_processors()})
    work = make_work(options.tokens, options.rows)
    rows = measure(resolve_model(options.model), options.rounds, threads, work)
    for row in rows:
        print(json.dumps(row), flush=True)
    import torch

    machine = {
        "processors": count_processors(),
        "load": os.getloadavg()[0],
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
        "amx": torch.cpu._is_amx_tile_supported(),
    }
    print(json.dumps(machine))
    if options.out:
        result = {"commit": describe_commit(), "model": options.model, "machine": machine}
        options.out.write_text(json.dumps({**result, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
