"""The quick start, `nip train quickstart.yaml`, on an engine of this machine."""

import importlib.util
import json
import os
import shutil
import sys
import time
from functools import partial
from pathlib import Path

from beside.runs import Failed

from gpu_pieces import models
from gpu_pieces.results import Piece, Row
from gpu_pieces.serving import engine_names
from gpu_pieces.sizes import Session

CONFIG = models.ROOT / "deployments" / "configs" / "quickstart.yaml"
RUN = "gpu-session"


def run(session: Session, engine: str, vllm: Path | None) -> Row:
    """The whole run, as a user types it. Raises Failed."""
    if importlib.util.find_spec("prefect") is None:
        raise Failed("Prefect is not installed here, and `nip train` needs it")
    store = session.scratch / "quickstart" / engine
    shutil.rmtree(store, ignore_errors=True)
    settings = [f"run_name={RUN}", f"run_store={store}", f"lm_server.engine={engine}"]
    if engine == "vllm":
        settings += [f"lm_server.options.executable={vllm}", "lm_server.start_timeout_s=500"]
        eager = session.sizes.options.get("enforce_eager")
        settings += ["lm_server.options.enforce_eager=true"] if eager else []
    settings += session.sizes.quickstart
    command = [sys.executable, "-m", "nip_prefect.flows.cli", "train", str(CONFIG), "--json"]
    for setting in settings:
        command += ["--set", setting]
    os.environ["PREFECT_HOME"] = str(session.scratch / "prefect")
    began = time.monotonic()
    models.run(command, session.seconds)
    iterations = sorted((store / RUN / "iterations").iterdir())
    return {
        "whole_s": round(time.monotonic() - began, 1),
        "settings": settings,
        "iterations": [_iteration(path) for path in iterations],
    }


def _iteration(path: Path) -> Row:
    """An iteration's seconds by stage, what was trained, and the tests before it."""
    figures: Row = {"iteration": path.name}
    for name in ("times", "metrics-test"):
        file = path / f"{name}.json"
        if file.exists():
            figures[name] = json.loads(file.read_text())
    if "metrics-test" in figures:
        tests = figures.pop("metrics-test")
        figures["test"] = {key: tests.get(key) for key in ("accuracy", "episodes", "retry_rate")}
    jobs = {job.stem: json.loads(job.read_text()) for job in path.glob("jobs/*.json")}
    figures["jobs"] = {
        group: {key: job.get(key) for key in ("outcome", "trained_tokens")}
        for group, job in jobs.items()
    }
    return figures


def measure(session: Session, piece: Piece) -> None:
    """One run for each engine."""
    engines, vllm = engine_names(session)
    for engine, reason in engines.items():
        if reason:
            piece.without(reason, engine)
        piece.row(engine, partial(run, session, engine, vllm))
    piece.finish()
