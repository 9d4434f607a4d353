"""How often the proof says no to right weights, alone and while others are answered.

Each proof scores everything anew: the adapter, its base and its rivals. What is written down is how
often a scoring missed, and every difference of a token's log-probability from what the training
computed, in a file of its own beside the results. Weights under a wrong name must be noticed in
all of them.
"""

import asyncio
import json
import statistics
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from pass_through import Place

from gpu_pieces import load, models
from gpu_pieces.engines import build
from gpu_pieces.models import words
from gpu_pieces.results import Piece, Row
from gpu_pieces.serving import engine_names
from gpu_pieces.sizes import Session, Shape
from nip_base.proof import Proof
from nip_lm_server.engines.base import Engine, EngineError, GenerationRequest
from nip_lm_server.engines.vllm.adapter_proof import VllmProver
from nip_lm_server.lora.adapter_files import read_adapter
from nip_lm_server.lora.probes import read_probe

SEEDS = (1, 2, 3)
WRONG = 3
"""So often an adapter is proved against another's files."""


class Recorder:
    """Asks vLLM for a prover, and remembers the log-probabilities by scoring and model."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str):
        self._session, self._url = session, url
        self._headers = {"Authorization": f"Bearer {key}"}
        self.scorings: dict[tuple[str, str], dict[int, float]] = {}

    async def __call__(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        """vLLM's answer. Raises EngineError."""
        async with self._session.request(
            method, self._url + path, json=dict(body), headers=self._headers
        ) as response:
            answer = await response.json(content_type=None)
        if response.status != 200:
            raise EngineError(f"{response.status}: {str(answer)[:300]}")
        scoring = self.scorings.setdefault((str(body["cache_salt"]), str(body["model"])), {})
        (logprob,) = answer["choices"][0]["logprobs"]["token_logprobs"]
        scoring[len(body["prompt"]) - 1] = float(logprob)
        return answer


class Proofs:
    """Proofs of an engine's adapters, and what was scored for them."""

    def __init__(self, engine: Engine, paths: Mapping[str, Path], http: aiohttp.ClientSession):
        self._engine, self._paths, self._http = engine, paths, http
        self.differences: list[dict[str, Any]] = []

    async def prove(self, name: str, path: Path) -> Proof:
        """Prove an adapter against the files in `path`, everything scored anew."""
        upstream = self._engine.upstream
        if upstream is None:
            return await self._engine.prove(name, path)
        status = self._engine.status()
        recorder = Recorder(self._http, upstream.url, upstream.api_key)
        prover = VllmProver(
            "base",
            recorder,
            has_cuda=str(status["device"]).startswith("cuda"),
            dtype=str(status["dtype"]),
            quantization="none",
        )
        adapters = {each: read_adapter(place) for each, place in self._paths.items()}
        proof = await prover.prove(name, path, adapters, self._engine.max_model_len)
        self._note(name, path, recorder)
        return proof

    def _note(self, name: str, path: Path, recorder: Recorder) -> None:
        probe = read_probe(path)
        for (_, model), scores in recorder.scorings.items():
            if model not in (name, "base"):
                continue
            saved = probe.logprobs if model == name else probe.base_logprobs
            each = [round(score - saved[place], 5) for place, score in sorted(scores.items())]
            self.differences.append({"model": model, "against": path.parent.name, "each": each})


@asynccontextmanager
async def busy(engine: Engine, sizes: Any, in_flight: int) -> AsyncIterator[None]:
    """Keep so many chats in flight within, of the base and the adapters in turn."""
    upstream = engine.upstream
    text, tokens = words(sizes.prompt_tokens // 2, 7), sizes.chat_tokens
    names = ["base", *engine.loaded_adapters()]
    if upstream is not None:
        place = Place("direct", upstream.url, upstream.api_key)
        bodies = [load.body_of(name, text, tokens) for name in names]
        async with load.chats(place, bodies, in_flight) as chats:
            yield
        if in_flight and not chats.answered:
            raise RuntimeError(f"no chat was answered meanwhile: {dict(chats.ended)}")
        return
    messages = ({"role": "user", "content": text},)

    async def ask(number: int) -> None:
        model = names[number % len(names)]
        await engine.generate(GenerationRequest(model, messages, max_tokens=tokens, seed=number))

    async with load.loop(in_flight, ask):
        yield


async def _score(
    session: Session, engine: Engine, paths: dict[str, Path], in_flight: int
) -> tuple[Row, list[dict[str, Any]]]:
    sizes = session.sizes
    await engine.start()
    try:
        for name, path in paths.items():
            await engine.load_adapter(name, path)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            proofs = Proofs(engine, paths, http)
            async with busy(engine, sizes, in_flight):
                right = []
                for number in range(sizes.scorings):
                    name = list(paths)[number % len(paths)]
                    right.append(await proofs.prove(name, paths[name]))
                own, noted = list(proofs.differences), len(proofs.differences)
                first, second, *_ = paths
                wrong = [await proofs.prove(first, paths[second]) for _ in range(WRONG)]
        del proofs.differences[noted:]
        return _summary(right, wrong, own), own or [p.detail for p in right]
    finally:
        await engine.stop()


def _summary(right: list[Proof], wrong: list[Proof], differences: list[dict[str, Any]]) -> Row:
    scorings = sum(int(proof.detail.get("scorings") or 1) for proof in right)
    matched = sum(proof.matches for proof in right)
    each = sorted(abs(value) for noted in differences for value in noted["each"])
    keys = ("distance", "base_distance", "tolerance", "rounding", "probe_file_distance")
    figures = {
        key: _spread([float(p.detail[key]) for p in right if p.detail.get(key) is not None])
        for key in keys
    }
    return {
        "proofs": len(right),
        "proved": matched,
        "scorings": scorings,
        "missed_scorings": scorings - matched,
        "wrong_weights": {"proofs": len(wrong), "noticed": sum(not p.matches for p in wrong)},
        "figures": {key: spread for key, spread in figures.items() if spread},
        "token_differences": _spread(each),
    }


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "mean": round(statistics.fmean(ordered), 6),
        "median": round(ordered[len(ordered) // 2], 6),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 6),
        "largest": round(ordered[-1], 6),
    }


def score(
    session: Session,
    shape: Shape,
    engine: str,
    vllm: Path | None,
    dump: Path,
    name: str,
    in_flight: int,
    **options: Any,
) -> Row:
    """All proofs of one case; the differences go to `dump`."""
    paths = {f"ft:{seed}": models.adapter(session, shape, seed) for seed in SEEDS}
    state = session.scratch / "noise" / engine
    state.mkdir(parents=True, exist_ok=True)
    built = build(session, shape, engine, vllm, state, **options)
    row, differences = asyncio.run(_score(session, built, paths, in_flight))
    held = json.loads(dump.read_text()) if dump.exists() else {}
    dump.write_text(json.dumps({**held, name: differences}) + "\n")
    return {**row, "dump": dump.name}


def measure(session: Session, piece: Piece, dump: Path) -> None:
    """Alone and under load, with graphs and without, over the largest shape."""
    engines, vllm = engine_names(session)
    shape, busy_with = session.largest, session.sizes.loaded_in_flight
    for engine, reason in engines.items():
        cases: dict[str, tuple[int, dict[str, Any]]] = {
            f"{engine} alone": (0, {}),
            f"{engine} under load": (busy_with, {}),
        }
        if engine == "vllm":
            cases["vllm under load, eager"] = (busy_with, {"enforce_eager": True})
        for name, (in_flight, options) in cases.items():
            if reason:
                piece.without(reason, name)
            piece.row(
                name,
                partial(score, session, shape, engine, vllm, dump, name, in_flight, **options),
            )
    piece.finish()
