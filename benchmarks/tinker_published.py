"""Does Tinker's `sl_loop`, as it is published, train a published model on `nip serve`, on a CPU?

    .tinker-env/bin/python benchmarks/tinker_published.py [--model DIR] [--out FILE]

Runs in the environment of Tinker's SDK and cookbook; the server runs in nip's own (.venv, or
NIP_PYTHON). DIR is where `nip models path smollm2` says, after `nip models add smollm2`. The data
are made-up sums. Tells the loss of each step, how long it took, how far the loss of the last two
steps is below that of the first two, and whether a sampler of the saved weights, asked three sums
that it has seen, answers them. Ends with status 1 if the loss did not fall by half.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import tinker
from measured_commit import ROOT, describe_commit

sys.path.append(str(ROOT / "tests" / "tinker"))

from recipes import read_weights, run_place
from tinker_cookbook import renderers
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_server import KEY, MODEL

SUMS = ((2, 3), (4, 5), (7, 1))


def find_smollm2() -> str:
    """Ask nip where the model lies."""
    python = Path(os.environ.get("NIP_PYTHON") or ROOT / ".venv" / "bin" / "python")
    command = [str(python.parent / "nip"), "models", "path", "smollm2"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def ask_sums(path: str, url: str) -> dict[str, str]:
    """Ask a sampler of the saved weights for sums, at temperature 0."""
    tokenizer = get_tokenizer(MODEL)
    renderer = renderers.get_renderer("role_colon", tokenizer)
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    client = service.create_sampling_client(path).result()
    stop = renderer.get_stop_sequences()
    params = tinker.SamplingParams(max_tokens=8, temperature=0.0, stop=stop)
    answers = {}
    for a, b in SUMS:
        asked = renderer.build_generation_prompt(
            [{"role": "user", "content": f"What is {a} + {b}?"}]
        )
        sample = client.sample(asked, num_samples=1, sampling_params=params).result().sequences[0]
        message, _ = renderer.parse_response([*sample.tokens])
        answers[f"{a} + {b}"] = renderers.get_text_content(message).strip()
    service.close("success").result()
    return answers


def main() -> int:
    """Train, ask, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out and options.out.absolute()  # the recipe runs in another directory
    load = os.getloadavg()[0]
    model = str(options.model.absolute()) if options.model else find_smollm2()
    settings = {"batch_size": options.batch, "max_steps": options.steps, "learning_rate": 5e-4}
    with (
        tempfile.TemporaryDirectory() as directory,
        run_place(Path(directory), ROOT, model) as place,
    ):
        log, started = place.make_log("sl_loop"), time.monotonic()
        rows = place.run("sl_loop", log, save_every=0, lora_rank=16, **settings)
        seconds = time.monotonic() - started
        os.chdir(place.directory)  # where the tokenizer lies under the model's name
        os.environ.update(place.environment)
        weights = read_weights(log)
        steps, answers = place.count_steps(weights), ask_sums(weights.sampler, place.url)
    losses = [row["train_mean_nll"] for row in rows if "train_mean_nll" in row]
    first, last = statistics.fmean(losses[:2]), statistics.fmean(losses[-2:])
    told = {
        "commit": describe_commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "sdk": version("tinker"),
        "cookbook": version("tinker-cookbook"),
        "model": Path(model).name,
        "settings": {**settings, "lora_rank": 16},
        "losses": [round(loss, 4) for loss in losses],
        "seconds": round(seconds, 1),
        "seconds_per_step": round(statistics.median(row["time_total"] for row in rows), 2),
        "optim_steps_on_record": steps,
        "answers": answers,
    }
    print(json.dumps(told, indent=1))
    if out is not None:
        out.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if last < 0.5 * first and steps == options.steps else 1


if __name__ == "__main__":
    sys.exit(main())
