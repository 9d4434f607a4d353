"""Whole runs as a user types them, on the engines of this machine: the quick start, and SmolLM2."""

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
from nip_base.published.known_models import models_directory

CONFIGS = models.ROOT / "deployments" / "configs"
RUN = "gpu-session"
TESTED = ("accuracy", "accuracy_ci95", "episodes", "retry_rate", "always_fail_rate")


def run(session: Session, config: str, engine: str, vllm: Path | None) -> Row:
    """The whole run of a bundled configuration. Raises Failed."""
    if importlib.util.find_spec("prefect") is None:
        raise Failed("Prefect is not installed here, and `nip train` needs it")
    store = session.scratch / config / engine
    shutil.rmtree(store, ignore_errors=True)
    settings = [f"run_name={RUN}", f"run_store={store}", f"lm_server.engine={engine}"]
    if engine == "vllm":
        settings += [f"lm_server.options.executable={vllm}", "lm_server.start_timeout_s=500"]
        eager = session.sizes.options.get("enforce_eager")
        settings += ["lm_server.options.enforce_eager=true"] if eager else []
    settings += session.sizes.quickstart if config == "quickstart" else session.sizes.smollm2
    command = [sys.executable, "-m", "nip_cli.cli", "train"]
    command += [str(CONFIGS / f"{config}.yaml"), "--json"]
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
        figures["test"] = {key: tests.get(key) for key in TESTED}
    jobs = {job.stem: json.loads(job.read_text()) for job in path.glob("jobs/*.json")}
    figures["jobs"] = {
        group: {key: job.get(key) for key in ("outcome", "trained_tokens")}
        for group, job in jobs.items()
    }
    return figures


def missing_model(name: str) -> str:
    """Say why a published model cannot be used here; empty if it can."""
    if (models_directory() / name).is_dir():
        return ""
    return f"the model is not here: nip models add {name}"


def measure(session: Session, piece: Piece, config: str) -> None:
    """One run for each engine; of SmolLM2's on the embedded one alone.

    That run's prover is the bundled tiny model, whose heads are too small for vLLM's kernels.
    """
    engines, vllm = engine_names(session)
    if config == "smollm2":
        engines = {"embedded": missing_model(config)}
    for engine, reason in engines.items():
        if reason:
            piece.without(reason, engine)
        piece.row(engine, partial(run, session, config, engine, vllm))
    piece.finish()
