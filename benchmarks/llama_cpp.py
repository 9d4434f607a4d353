"""nip's embedded engine and llama.cpp on SmolLM2's four-bit file: work, memory, adapters.

    python -m venv .venv-lcpp && .venv-lcpp/bin/pip install xllamacpp
    OMP_NUM_THREADS=1 python benchmarks/llama_cpp.py .venv-lcpp/bin/python GGUF ADAPTER [OTHER ...]

GGUF is the file that `nip models add smollm2` reads; the others are directories that trainings of
nip published. First each adapter is written as GGUF, and llama.cpp says the log-probabilities of
the first one's probe, which nip computed in float32: each token is forced by a bias, which is not
in them. Then both engines by turns, in processes of their own with a thread each, answer 1 and 8
prompts of 128 random tokens with 64 at temperature 1. One round in front does not count.
"""

import asyncio
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from beside.gguf_adapter import write_adapter
from measured_commit import describe_commit, describe_machine

PROMPT, ANSWER, SLOTS, ROUNDS = 128, 64, 8, 3
Ask = Callable[[dict[str, Any]], Any]


def measure(work: Callable[[], Any]) -> dict[str, Any]:
    """Do something; the result, processor seconds, and the process's most megabytes so far."""
    began = time.process_time()
    said, spent_s = work(), time.process_time() - began
    peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    return {"said": said, "spent_s": spent_s, "peak_mb": int(peak) / 1024}


def open_nip() -> Ask:
    """The embedded engine, in this process."""
    from beside.models import find_model

    from nip_lm_server.engines.base import GenerationRequest
    from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine

    loop = asyncio.new_event_loop()
    engine = EmbeddedEngine(str(find_model("smollm2").path), threads=1, max_batch=SLOTS)
    loop.run_until_complete(engine.start())

    async def play(prompts: list[list[int]], tokens: int) -> list[int]:
        name = engine.base_model
        asked = [GenerationRequest(name, (), tuple(it), tokens, stop_tokens=()) for it in prompts]
        answers = await asyncio.gather(*map(engine.generate, asked))
        return [answer.choices[0].completion_tokens for answer in answers]

    return lambda asked: measure(lambda: loop.run_until_complete(play(**asked)))


def serve_llama(model: str, *adapters: str) -> None:
    """Do what each line of standard input asks of llama.cpp's server, without HTTP."""
    xllamacpp = importlib.import_module("xllamacpp")
    options = xllamacpp.CommonParams()
    options.model.path, options.n_parallel, options.n_ctx, options.port = model, SLOTS, 4096, 18_733
    options.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 0.0) for path in adapters]
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    server, pool = xllamacpp.Server(options), ThreadPoolExecutor(SLOTS)

    def play(prompts: list[list[int]], tokens: int) -> list[int]:
        drawn = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "ignore_eos": True}
        common = {"n_predict": tokens, "cache_prompt": False, **drawn}
        answers = pool.map(server.handle_completions, [{"prompt": it, **common} for it in prompts])
        return [answer["usage"]["completion_tokens"] for answer in answers]

    def score(probe: list[int], lora: int) -> list[float]:
        scales = [{"id": i, "scale": float(i == lora)} for i in range(len(adapters))]
        said = []
        for place, token in enumerate(probe[1:], start=1):
            forced = {"logit_bias": [[token, 1e3]], "n_predict": 1, "n_probs": 1, "lora": scales}
            answer = server.handle_completions({"prompt": probe[:place], **forced})
            said.append(answer["choices"][0]["logprobs"]["content"][0]["logprob"])
        return said

    for line in sys.stdin:
        asked = json.loads(line)
        done = measure(lambda: (play if "prompts" in asked else score)(**asked))  # noqa: B023
        print("said", json.dumps(done), flush=True)


def play_by_turns(engines: dict[str, Ask]) -> None:
    """Print medians: processor ms of a prompt's and of an answer's token, most MB."""
    rows: dict[str, list[list[float]]] = {}
    draw = random.Random(0)
    for number in range(ROUNDS + 1):
        for flight, name in [(1, "nip"), (1, "llama"), (SLOTS, "llama"), (SLOTS, "nip")]:
            done = []
            for tokens in (1, ANSWER):
                prompts = [draw.choices(range(100, 49_000), k=PROMPT) for _ in range(flight)]
                done.append(engines[name]({"prompts": prompts, "tokens": tokens}))
                assert done[-1]["said"] == [tokens] * flight
            prompt_ms, whole_ms = (1e3 * it["spent_s"] / flight for it in done)
            row = [prompt_ms / PROMPT, (whole_ms - prompt_ms) / (ANSWER - 1), done[1]["peak_mb"]]
            rows.setdefault(f"{name} {flight}", []).extend([row] if number else [])
    for way, found in rows.items():
        print(way, [round(median(it), 2) for it in zip(*found, strict=True)], "of", found)


def prove(llama: Ask, adapters: list[Path]) -> None:
    """Print how far each model is from the first adapter's probe, and whether it passes for it."""
    from nip_lm_server.lora import probes

    probe = probes.read_probe(adapters[0])
    base, *others = (
        llama({"probe": probe.tokens, "lora": lora})["said"] for lora in range(-1, len(adapters))
    )
    print("noise of the base:", probes.measure_differences(base, probe.base_logprobs))
    for name, said in zip(["base", *adapters], [base, *others], strict=True):
        print(name, "(most, mean):", probes.measure_differences(said, probe.logprobs))
        for kind in (("float32", "none"), ("bfloat16", "none"), ("float32", "Q4_1")):
            precision = dict(zip(("dtype", "quantization"), kind, strict=True))
            rivals = {"base": probes.Scores(base)}
            print(*kind, probes.judge_probe(probe, said, rivals, base="base", **precision))


def main(python: str, model: str, *adapters: str) -> None:
    """Measure and print."""
    load, paths = os.getloadavg(), [*map(Path, adapters)]
    with tempfile.TemporaryDirectory() as folder:
        written = [Path(folder) / f"{number}.gguf" for number in range(len(paths))]
        [*map(write_adapter, paths, written)]
        command = [python, __file__, "--child", model, *map(str, written)]
        child: Any = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)

        def ask(asked: dict[str, Any]) -> Any:
            print(json.dumps(asked), file=child.stdin, flush=True)
            lines = (line for line in child.stdout if line.startswith("said "))
            return json.loads(next(lines)[5:])  # llama.cpp prints, too

        prove(ask, paths)
        play_by_turns({"llama": ask, "nip": open_nip()})
        child.communicate()
    print(describe_commit(), describe_machine(), "load", load, os.getloadavg())


if __name__ == "__main__":
    serve_llama(*sys.argv[2:]) if sys.argv[1] == "--child" else main(*sys.argv[1:])
