"""Part c: from trained weights on the disk to the first answer with them.

nip: from the commit of an adapter that a job has trained (its manifest's time) to the first answer
of a client that waits for the job and asks then; loading and the proof lie in between. vLLM by
itself: the same directory is loaded by its API by hand, and asked for; nothing is proved.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from beside.runs import ratio
from beside.serving import (
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


def after_a_job(handle: Any, seed: int) -> tuple[float, str]:
    """Train, and ask for what was trained; the seconds, and the name."""
    name = train(handle, "accept", seed)
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


def measure(rounds: int, say: Any) -> dict[str, Any]:
    """All in turn, on servers that stay up."""
    vllm = vllm_command()
    rows: dict[str, Any] = {EMBEDDED: [], OVER_VLLM: [], VLLM: []}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if vllm is None:
            reason = "no vLLM here: scripts/build_vllm_cpu.sh, or NIP_VLLM"
            with server("embedded", place / "embedded", None) as own:
                for number in range(rounds):
                    rows[EMBEDDED].append(after_a_job(own, number)[0])
            return {"seconds": {EMBEDDED: rows[EMBEDDED]}, "reason": reason} | {
                "versions": versions(None)
            }
        with (
            server("embedded", place / "embedded", None) as embedded,
            server("vllm", place / "vllm", vllm) as over,
            vllm_server(vllm, place / "log") as (url, key),
        ):
            for number in range(rounds):
                seconds, name = after_a_job(embedded, number)
                rows[EMBEDDED].append(seconds)
                rows[VLLM].append(by_hand(url, key, name, directory_of(embedded.state_dir, name)))
                rows[OVER_VLLM].append(after_a_job(over, number)[0])
                say(f"c {number}: " + ", ".join(f"{n} {s[-1]:.3f}" for n, s in rows.items()))
    return {
        "seconds": {name: [round(s, 4) for s in seconds] for name, seconds in rows.items()},
        "over_vllm_by_hand": ratio(rows[OVER_VLLM], rows[VLLM]),
        "versions": versions(vllm),
    }
