"""Part c: from trained weights on the disk to the first answer with them.

nip: from the commit of an adapter that a job has trained (its manifest's time) to the first answer
of a client that waits for the job and asks then; loading and the proof lie in between. vLLM by
itself: the same directory is loaded by its API by hand, and asked for; nothing is proved. SkyRL:
the SDK's call that saves what is trained and gives who samples from it, and that one's first
answer; it serves what it saved from a file, which nothing compares with what was trained.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from beside import skyrl
from beside.load import NO_VLLM
from beside.models import Model, tokenizer
from beside.runs import Failed
from beside.serving import (
    LORA_RANK,
    TEXT,
    TOKENS,
    asked,
    directory_of,
    load_by_hand,
    server,
    train,
    versions,
    vllm_command,
    vllm_server,
)

EMBEDDED, OVER_VLLM, VLLM = "nip, embedded", "nip over vLLM", "vLLM by hand"


def after_a_job(handle: Any, model: Model, seed: int) -> tuple[float, str]:
    """Train, and ask for what was trained; the seconds, and the name."""
    name = train(handle, model, "accept", seed)
    answer = asked(handle.url, handle.api_key, name)
    answered = time.time()
    if answer["noticed"]:
        raise RuntimeError(f"{name} does not answer: {answer}")
    manifest = directory_of(handle.state_dir, name) / "manifest.json"
    return answered - manifest.stat().st_mtime, name


def by_hand(url: str, key: str, name: str, place: Path) -> float:
    """Load what is there and ask for it; the seconds."""
    began = time.time()
    status, answer = load_by_hand(url, key, name, place)
    if status != 200:
        raise RuntimeError(f"{name} is not loaded: {answer}")
    asked(url, key, name)
    return time.time() - began


def by_skyrl(asker: skyrl.Asker, model: Model, number: int) -> float:
    """Train in another place for an adapter, save, and ask; the seconds of the latter two."""
    name, chats = f"round-{number}", [(TEXT, "accept")] * 10
    learned = skyrl.examples(tokenizer(model.path), chats)
    asker("train", name=name, rank=LORA_RANK, batches=[learned[:5], learned[5:]], rates=[1e-2] * 2)
    prompt = skyrl.tokens_of(tokenizer(model.path), TEXT)
    return float(asker("swap", name=name, prompt=prompt, tokens=TOKENS)["seconds"])


def measure(model: Model, rounds: int, say: Any) -> dict[str, Any]:
    """All in turn, on servers that stay up; what is not here is a reason in its place."""
    vllm = vllm_command()
    rows: dict[str, list[float]] = {}
    absent: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        place = Path(folder)
        embedded = stack.enter_context(server("embedded", place / "embedded", None, model.path))
        ways: dict[str, Callable[[int], float]] = {}
        if vllm is None:
            absent |= {way: {"reason": NO_VLLM} for way in (OVER_VLLM, VLLM)}
        else:
            over = stack.enter_context(server("vllm", place / "vllm", vllm, model.path))
            url, key = stack.enter_context(vllm_server(vllm, place / "log", model.path))
            ways[OVER_VLLM] = lambda number: after_a_job(over, model, number)[0]
            ways[VLLM] = lambda number: by_hand(
                url, key, name, directory_of(embedded.state_dir, name)
            )
        try:
            skyrl.refuse_large(model)
            serves = skyrl.asker(place / "skyrl", model.path, LORA_RANK, rounds + 1)
            asker = stack.enter_context(serves)
            by_skyrl(asker, model, -1)  # which compiles
            ways[skyrl.NAME] = lambda number: by_skyrl(asker, model, number)
        except Failed as error:
            absent[skyrl.NAME] = {"reason": str(error)}
        for number in range(rounds):
            seconds, name = after_a_job(embedded, model, number)
            rows.setdefault(EMBEDDED, []).append(seconds)
            for way, swap in ways.items():
                rows.setdefault(way, []).append(swap(number))
            say(f"c {number}: " + ", ".join(f"{n} {s[-1]:.3f}" for n, s in rows.items()))
    return {
        "seconds": {name: [round(s, 4) for s in seconds] for name, seconds in rows.items()},
        "absent": absent,
        "versions": versions(vllm) | skyrl.versions(),
    }
