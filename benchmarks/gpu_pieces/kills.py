"""SIGKILL of each process, and how long it takes until everything is as before.

trainer   in the middle of a job, while an engine that shares its device is away
engine    vLLM's engine process, with chats in flight
server    and another one on its state directory
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import psutil
from beside.runs import Failed

from gpu_pieces.chats import adapter_of
from gpu_pieces.jobs import small_rows
from gpu_pieces.load import Load, body_of, chats
from gpu_pieces.results import Piece, Row
from gpu_pieces.serving import Served, engine_names
from gpu_pieces.sizes import Session
from nip_lm_server import launch

MOST_EPOCHS = 50
CHATS = 64


def below(served: Served, text: str) -> list[psutil.Process]:
    """The processes below the server whose command has `text`."""
    hits = []
    for process in psutil.Process(served.handle.pid).children(recursive=True):
        try:
            if text in " ".join(process.cmdline()):
                hits.append(process)
        except psutil.Error:
            continue
    return hits


def progress(served: Served, id: str, since: float = 0.0) -> list[int]:
    """The steps that a job's training has told of, unless it told nothing since a moment.

    Each attempt at a training has a file of its own, in the place of the one before.
    """
    path = served.state / "jobs" / id / "events.jsonl"
    events = []
    with contextlib.suppress(FileNotFoundError):
        lines = path.read_text().splitlines() if path.stat().st_mtime > since else []
        for line in lines:
            with contextlib.suppress(ValueError):  # half a line, of a training that was killed
                events.append(json.loads(line))
    return [event["step"] for event in events if event.get("type") == "progress"]


def answered(served: Served, model: str = "base") -> bool:
    """Ask one chat."""
    place = served.through
    load = Load()

    async def ask() -> None:
        import aiohttp

        async with aiohttp.ClientSession() as session:
            await load.ask(session, place, body_of(model, "Is it right?", 4))

    asyncio.run(ask())
    return bool(load.answered)


def trainer(session: Session, served: Served) -> Row:
    """Kill the training process of a job."""
    epochs = max(1, min(MOST_EPOCHS, session.sizes.killed_steps // session.sizes.jobs_steps))
    served.handle  # noqa: B018 (its start is no part of what is measured)
    began = time.monotonic()
    id = served.submit(small_rows(session, 5), 5, n_epochs=epochs, learning_rate=1e-4)
    served.until(lambda: len(progress(served, id)) > 2, "the first steps")
    state, told = served.engine()["state"], progress(served, id)[-1]
    running_s = round(time.monotonic() - began, 2)
    hits = below(served, id)
    for process in hits:
        process.send_signal(signal.SIGKILL)
    killed, moment = time.monotonic(), time.time()
    if not hits:
        raise Failed("there was no training process to kill")
    resumed = served.until(lambda: progress(served, id, moment), "the next step")
    resumed_s = round(time.monotonic() - killed, 2)
    job = served.wait(id)
    ended_s = round(time.monotonic() - killed, 2)
    served.until(lambda: answered(served), "the first answer")
    return {
        "engine": state,
        "killed_at_step": told,
        "next_step": resumed[0],
        "to_the_kill_s": running_s,
        "to_the_next_step_s": resumed_s,
        "to_succeeded_s": ended_s,
        "to_the_first_answer_s": round(time.monotonic() - killed, 2),
        "adapter_answers": answered(served, job["fine_tuned_model"]),
        "training": served.result(job["fine_tuned_model"]),
    }


async def _kill_under_load(session: Session, served: Served, model: str) -> Row:
    in_flight = min(CHATS, max(session.sizes.in_flight))
    bodies = [body_of(name, "Is it right?", session.sizes.chat_tokens) for name in ("base", model)]
    async with chats(served.through, bodies, in_flight) as load:
        await asyncio.to_thread(
            served.until, lambda: len(load.answered) >= in_flight, "the first answers"
        )
        before, epoch = dict(load.ended), served.engine()["epoch"]
        (core,) = below(served, "VLLM::EngineCore")
        core.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        await asyncio.to_thread(
            served.until, lambda: load.first_after(killed + 1.0) is not None, "the next answer"
        )
    return {
        "in_flight": in_flight,
        "before": before,
        "after": dict(load.ended - type(load.ended)(before)),
        "to_the_next_answer_s": (load.first_after(killed + 1.0) or 0.0) + 1.0,
        "epochs": [epoch, served.engine()["epoch"]],
        "adapter_answers": await asyncio.to_thread(answered, served, model),
    }


def engine(session: Session, served: Served, model: str) -> Row:
    """Kill vLLM's engine process."""
    return asyncio.run(_kill_under_load(session, served, model))


def server(session: Session, served: Served, model: str) -> Row:
    """Kill the server, and start another one on its state."""
    handle = served.handle
    os.kill(handle.pid, signal.SIGKILL)
    killed = time.monotonic()
    launch.stop(handle)  # it is our child, and has ended
    served.restarted()
    served.handle  # noqa: B018
    healthy_s = round(time.monotonic() - killed, 2)
    served.until(lambda: answered(served), "the first answer")
    base_s = round(time.monotonic() - killed, 2)
    served.until(lambda: answered(served, model), "the first answer of the adapter")
    return {
        "to_healthy_s": healthy_s,
        "to_the_first_answer_s": base_s,
        "to_the_adapters_answer_s": round(time.monotonic() - killed, 2),
    }


def measure(session: Session, piece: Piece) -> None:
    """One kill after the other, over the smallest shape."""
    engines, vllm = engine_names(session)
    shape = session.sizes.shapes[0]
    for name, reason in engines.items():
        small_job, *kinds = (
            f"{name} {kind}" for kind in ("a small job", "trainer", "engine", "server")
        )
        if reason:
            piece.without(reason, small_job, *kinds)
        if name == "embedded":
            piece.without("it is a part of the server's process", kinds[1])
        state: Path = session.scratch / "kills" / name
        with Served(session, shape, name, state, vllm) as served:
            trained = piece.row(small_job, partial(adapter_of, session, served))
            if trained is None:
                piece.without("there is no adapter", *kinds)
            model = trained["name"] if trained else ""
            piece.row(kinds[0], partial(trainer, session, served))
            piece.row(kinds[1], partial(engine, session, served, model))
            piece.row(kinds[2], partial(server, session, served, model))
    piece.finish()
