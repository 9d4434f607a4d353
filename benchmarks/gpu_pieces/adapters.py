"""Many adapters over one base: the first answer of each, and chats that name them in turn.

One small job trains an adapter. Its copies get names of their own in a server's state, so the
engine holds and swaps as many as there are names; what each of them says is the same. The first
chat with a name waits until its adapter is loaded and proved.
"""

import argparse
import asyncio
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median

import aiohttp
from beside.runs import Failed
from embedded_engine import flight, http_ways
from pass_through import Place

from gpu_pieces import models
from gpu_pieces.kills import answered
from gpu_pieces.results import Piece, Row
from gpu_pieces.serving import Served, engine_names
from gpu_pieces.sizes import Session
from nip_base.manifest import ModelFacts
from nip_lm_server.state.at_rest.import_models import import_models
from nip_lm_server.state.database import Database
from nip_lm_server.state.models import ModelStore, adapter_digest, adapter_name

IN_BATCH = 16
"""Adapters in one batch of vLLM, at most."""


def name_of(number: int) -> str:
    """The name of a copy."""
    return adapter_name("base", None, adapter_digest(f"copy {number}", "adapters"))


def fill(trained: Path, state: Path, names: Sequence[str]) -> None:
    """Put a copy of an adapter for each name into the state of a server that is to start."""
    settings = json.loads((trained.parent / "job.json").read_text())["hyperparameters"]
    source = state.with_name(f"{state.name}-copies")
    for place in (source, state):
        shutil.rmtree(place, ignore_errors=True)
    source.mkdir(parents=True)
    with closing(Database(source / "copies.sqlite3")) as database:
        store = ModelStore(source / "models", database)
        for number, name in enumerate(names):
            facts: ModelFacts = {
                "kind": "adapter",
                "name": name,
                "base_model": "base",
                "job": f"ftjob-copy-{number}",
                "job_key": f"copy {number}",
                "parent": None,
                "parent_content_digest": None,
                "method": "supervised",
                "settings": settings,
                "lora_rank": settings["lora_rank"],
                "seed": 1,
                "training": {},
                "created_at": time.time(),
            }
            shutil.copytree(trained, source / "copy")
            store.commit(source / "copy", name.rpartition(":")[2], facts)
    import_models(source, state, dict.fromkeys(names))
    shutil.rmtree(source)


def first_answers(session: Session, served: Served, names: Sequence[str]) -> Row:
    """Ask every adapter once, one after the other."""
    trained = models.adapter(session, session.largest, 1)
    fill(trained, served.state, names)
    served.until(lambda: answered(served), "the first answer of the base")
    seconds = [_ask_once(served, name) for name in names]
    return {
        "start_s": served.start_s,
        "adapters": len(names),
        "median_s": median(seconds),
        "slowest_s": max(seconds),
        "all_s": round(sum(seconds), 2),
        "seconds": seconds,
    }


def _ask_once(served: Served, name: str) -> float:
    began = time.monotonic()
    if not answered(served, name):
        raise Failed(f"{name} does not answer: {str(served.get('/nip/status')[1])[:600]}")
    return round(time.monotonic() - began, 3)


def flights(session: Session, served: Served, names: Sequence[str]) -> Row:
    """Chats that name these adapters in turn."""
    for name in names:  # a server that was started anew has none of them loaded
        _ask_once(served, name)
    return asyncio.run(_flights(session, served, names))


async def _flights(session: Session, served: Served, names: Sequence[str]) -> Row:
    """The same chats at each address, the addresses in turn."""
    sizes = session.sizes
    options = argparse.Namespace(
        in_flight=max(sizes.in_flight),
        requests=max(sizes.in_flight) * sizes.requests_per_slot,
        max_tokens=sizes.chat_tokens,
        words=sizes.prompt_tokens // 10,
    )
    places = [place for place in (served.through, served.direct) if place is not None]
    rates: dict[str, list[float]] = {place.name: [] for place in places}

    async def ask(place: Place) -> float:
        async with aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {place.key}"},
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=600),
        ) as http:
            figures = await flight(http_ways(http, place, options)[0], names, options)
        return figures["generated_tokens_per_s"]

    await ask(places[0])  # not counted: compiled kernels, adapters in the card's memory
    for number in range(sizes.chat_rounds):
        for place in places if number % 2 == 0 else reversed(places):
            rates[place.name].append(await ask(place))
    row: Row = {"in_flight": options.in_flight, "requests": options.requests}
    row |= {f"{place}_tokens_per_s": median(of) for place, of in rates.items()}
    if "direct" in rates:
        pairs = zip(rates["through_nip"], rates["direct"], strict=True)
        row["ratio"] = round(median(ours / own for ours, own in pairs), 3)
    return {**row, "rounds": rates}


def measure(session: Session, piece: Piece) -> None:
    """One server for each engine, with as many adapters as the largest number that is asked for."""
    engines, vllm = engine_names(session)
    shape, counts = session.largest, session.sizes.adapters
    for engine, reason in engines.items():
        first, cases = f"{engine} first answers", {f"{engine} {n} adapters": n for n in counts}
        if reason:
            piece.without(reason, first, *cases)
        state = session.scratch / "adapters-served" / engine
        names = [name_of(number) for number in range(max(counts))]
        room = {"max_loras": min(IN_BATCH, max(counts)), "max_cpu_loras": max(counts)}
        with Served(session, shape, engine, state, vllm, loaded=max(counts), **room) as served:
            if piece.row(first, partial(first_answers, session, served, names)) is None:
                piece.without("there are no adapters", *cases)
            for name, count in cases.items():
                piece.row(name, partial(flights, session, served, names[:count]))
    piece.finish()
