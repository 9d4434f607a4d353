"""An engine's life: start, load, prove, sleep, wake, stop, each with its seconds and memory.

The start is measured twice: with nothing compiled yet, and with what the first one left.
"""

import asyncio
import re
import shutil
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from gpu_pieces import models
from gpu_pieces.results import Piece, Row
from gpu_pieces.serving import engine_names, options_for
from gpu_pieces.sizes import Session, Shape
from nip_lm_server.engines.base import Engine

SEEDS = (1, 2)
STAGES = {
    "weights_s": r"Loading weights took ([\d.]+) seconds",
    "compile_s": r"torch\.compile (?:took|takes) ([\d.]+) s",
    "graphs_s": r"Graph capturing finished in ([\d.]+) secs",
    "engine_s": r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s",
}
"""What vLLM's log says of a start."""


def build(
    session: Session, shape: Shape, engine: str, vllm: Path | None, state: Path, **more: Any
) -> Engine:
    """An engine that is not started. `more` are options of vLLM."""
    path = str(models.model(session, shape))
    options = options_for(session, engine, vllm, **more)
    if engine == "vllm":
        from nip_lm_server.engines.vllm.vllm_engine import VllmEngine

        return VllmEngine(path, "base", state_dir=state, **options)
    from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine

    return EmbeddedEngine(path, "base", **options)


def used_gb() -> float | None:
    """Memory in use on the first GPU, by every process; None without one."""
    command = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return round(int(done.stdout) * 2**20 / 1e9, 2)


def host_gb() -> float:
    """Resident memory of this process and all below it; what they share counts for each."""
    this = psutil.Process()
    total = 0
    for process in (this, *this.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return round(total / 1e9, 2)


async def timed(work: Any) -> tuple[float, Any]:
    """(seconds, what it gives)."""
    began = time.monotonic()
    value = await work
    return round(time.monotonic() - began, 3), value


async def _live(engine: Engine, adapters: dict[str, Path]) -> Row:
    row: Row = {"free": {"gpu_used_gb": used_gb()}}
    row["start_s"], _ = await timed(engine.start())
    try:
        status = engine.status()
        row["engine"] = {
            key: status.get(key) for key in ("versions", "device", "dtype", "warnings")
        }
        row["running"] = {"gpu_used_gb": used_gb(), "host_gb": host_gb()}
        row["adapters"] = []
        for name, path in adapters.items():
            load_s, _ = await timed(engine.load_adapter(name, path))
            prove_s, proof = await timed(engine.prove(name, path))
            again_s, _ = await timed(engine.prove(name, path))
            row["adapters"].append(
                {"load_s": load_s, "prove_s": prove_s, "prove_again_s": again_s,
                 "matches": proof.matches, "detail": proof.detail}
            )  # fmt: skip
        row["sleeps"] = []
        # The first sleep reserves memory of the host's, the second has it.
        for _ in range(2 if engine.capabilities.sleep else 0):
            sleep_s, _ = await timed(engine.sleep())
            asleep = {"gpu_used_gb": used_gb(), "host_gb": host_gb()}
            wake_s, _ = await timed(engine.wake())
            name, path = next(iter(adapters.items()))
            prove_s, proof = await timed(engine.prove(name, path))
            row["sleeps"].append(
                {"sleep_s": sleep_s, "asleep": asleep, "wake_s": wake_s,
                 "prove_s": prove_s, "matches": proof.matches}
            )  # fmt: skip
    finally:
        row["stop_s"], _ = await timed(engine.stop())
    row["stopped"] = {"gpu_used_gb": used_gb()}
    return row


def life(session: Session, shape: Shape, engine: str, vllm: Path | None, *, cold: bool) -> Row:
    """One life. `cold`: without what an earlier one compiled."""
    state = session.scratch / "engines" / f"{engine}-{shape.name}"
    if cold:
        shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True, exist_ok=True)
    adapters = {f"ft:{seed}": models.adapter(session, shape, seed) for seed in SEEDS}
    built = build(session, shape, engine, vllm, state)
    row = asyncio.run(_live(built, adapters))
    logs = sorted((state / "engines").glob("*.log"), key=lambda path: path.stat().st_mtime)
    if logs:
        text = logs[-1].read_text(errors="replace")
        hits = {name: re.findall(pattern, text) for name, pattern in STAGES.items()}
        row["log"] = {name: float(values[-1]) for name, values in hits.items() if values}
    return row


def measure(session: Session, piece: Piece) -> None:
    """Both lives of every engine, over the largest shape."""
    engines, vllm = engine_names(session)
    shape = session.largest
    for engine, reason in engines.items():
        for kind in ("cold", "warm"):
            name = f"{engine} {kind}"
            if reason:
                piece.without(reason, name)
            piece.row(name, partial(life, session, shape, engine, vllm, cold=kind == "cold"))
    piece.finish()
