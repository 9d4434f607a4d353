"""Part a: generated tokens per second while so many requests are in flight, adapters mixed.

nip with its own engine and over vLLM, vLLM by itself and `transformers serve` all serve the same
model and the same adapters, which a job of nip has trained and PEFT has saved, and llama.cpp both
as GGUF; SkyRL takes no adapters but its own, so it trains as many of the same rank. They stay up,
and are asked in turn, in another order in each round, by Locust in an environment of its own: a
closed loop of whole chats, each of a prompt of its own, that goes through the models in turn. When
its time is over Locust waits for what is in flight, so that the rate is that of requests from the
first's start to the last's end.

The model has its end token taken away, so that each answer has as many tokens as are asked for,
which no request parameter does that all of them take; llama.cpp has one. Locust checks it.

Why Locust: guidellm (0.8) has one model per run, so adapters are mixed only by several runs side by
side, which neither begin together nor can share one request in flight; and each imports torch in
several processes, which takes longer than a cell is measured. AIPerf mixes models, but spreads its
work over more processes than two cores have room for. The benchmark of vLLM is a part of a peer.
SkyRL speaks Tinker's protocol, so its own SDK asks it (peers/tinker_asker.py): as many at once,
the same prompts as tokens, counted alike.
"""

import functools
import json
import os
import random
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beside import gguf_adapter, llama, serving, skyrl
from beside.models import SERVED, Model, endless, tokenizer
from beside.players import GAMES, PEERS
from beside.runs import Failed, ratio

WORDS = ("the", "list", "is", "sorted", "by", "key", "and", "then", "returned", "wrong", "case")
EMBEDDED, OVER_VLLM = "nip, embedded", "nip over vLLM"
VLLM, SAME, TRANSFORMERS = "vLLM", "vLLM, in nip's precision", "transformers serve"
"""vLLM as it comes computes in bfloat16 on any processor."""
LLAMAS = (llama.FOUR_BITS, llama.WHOLE)
OURS = (EMBEDDED, OVER_VLLM)
OTHERS = (VLLM, SAME, *LLAMAS, TRANSFORMERS, skyrl.NAME)
NO_VLLM = "no vLLM here: scripts/build_vllm_cpu.sh, or NIP_VLLM"


@dataclass(frozen=True)
class Size:
    """How much is asked."""

    in_flight: tuple[int, ...] = (1, 8, 64)
    adapters: tuple[int, ...] = (0, 1, 3)
    cells: tuple[tuple[int, int], ...] = ((0, 1), (0, 8), (0, 64), (1, 1), (1, 8), (3, 8), (3, 64))
    """Adapters and requests in flight, of all pairs those that are asked for."""
    long: int = 1000
    """From so many in flight on a cell is measured in the first round alone."""
    tokens: int = 32
    """Of each answer."""
    words: int = 80
    """Of each prompt."""
    run_s: int = 2
    """After that Locust sends nothing more. It takes whole seconds."""
    most_s: int = 600

    @classmethod
    def of(cls, model: Model) -> "Size":
        """The size for a model: a large one answers some hundred tokens a second at best."""
        return cls(tokens=8, words=20, run_s=2, long=64) if model.is_large else cls()


@dataclass(frozen=True)
class Server:
    """One that is up: its address and key, the base model's name, and those of the adapters."""

    url: str
    key: str
    base: str
    adapters: Sequence[str]
    refused: str = ""
    """Why it serves no adapters, if it does not."""
    asker: skyrl.Asker | None = None
    """Who asks it, if it is not Locust."""
    path: Path = Path()
    """Of the model whose tokens that one sends."""
    wishes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What a request for a model says beside the chat."""

    def models(self, adapters: int) -> list[str]:
        """Give what is asked for where so many adapters are mixed."""
        return list(self.adapters[:adapters]) or [self.base]


# --- serving


@contextmanager
def servers(asked: Model, place: Path, size: Size, say: Any) -> Iterator[dict[str, Server | str]]:
    """All of them, each with the same adapters; the reason of one that does not serve here."""
    vllm, most = serving.vllm_command(), max(size.in_flight)
    model = endless(asked.path, place / "model")
    with ExitStack() as stack:
        # 1. nip trains the adapters.
        state = place / "embedded"
        trainer = stack.enter_context(serving.server("embedded", state, None, model))
        names = [
            serving.train(trainer, asked, "accept", seed) for seed in range(max(size.adapters))
        ]
        say(f"a trained {', '.join(names)}")

        # 2. The others are given them.
        precision: list[str] = []

        def over_vllm() -> Server:
            from nip_lm_server.client import StateDirectory

            target = place / "over"
            StateDirectory(target).import_models(state, dict.fromkeys(names))
            handle = stack.enter_context(serving.server("vllm", target, vllm, model, most))
            status, answer = serving.call(f"{handle.url}/nip/status", handle.api_key)
            if status == 200:
                precision.append(answer["engine"]["dtype"])
            return Server(handle.url, handle.api_key, SERVED, names)

        def by_vllm(dtype: str | None = None) -> Server:
            log = place / f"vllm-{dtype}.log"
            started = serving.vllm_server(vllm or Path(), log, model, most, dtype)
            url, key = stack.enter_context(started)
            for name in names:
                path = serving.directory_of(state, name)
                status, answer = serving.load_by_hand(url, key, name, path)
                if status != 200:
                    raise Failed(f"{name} is not loaded: {answer}")
            return Server(url, key, SERVED, names)

        def as_precise() -> Server:
            if not precision or precision[0] == "bfloat16":
                raise Failed(f"nip's is {precision or 'not known'}")
            return by_vllm(precision[0])

        def by_transformers() -> Server:
            log = place / "transformers.log"
            url = stack.enter_context(serving.transformers_server(log))
            paths = [str(serving.directory_of(state, name)) for name in names]
            outcome = serving.asked(url, "none", paths[0])
            if outcome["noticed"]:
                why = f"an adapter's directory as model gets {outcome['status']}: {_error(log)}"
                return Server(url, "none", str(model), [], why.replace(str(place), "…"))
            return Server(url, "none", str(model), paths)

        def by_llama(kind: str) -> Server:
            file = llama.write_model(asked, kind, place / f"{kind}.gguf")
            paths = [serving.directory_of(state, name) for name in names]
            heads = gguf_adapter.heads_of(asked.path)
            serves = llama.server(place / f"{kind} server", file, paths, heads, most)
            url = stack.enter_context(serves)
            return Server(url, "none", SERVED, names, wishes=llama.wishes(names))

        def by_skyrl() -> Server:
            skyrl.refuse_large(asked)
            serves = skyrl.asker(place / "skyrl", model, serving.LORA_RANK, len(names), most)
            asker = stack.enter_context(serves)
            learned = skyrl.examples(tokenizer(asked.path), [(serving.TEXT, "accept")])
            places = [f"adapter-{number}" for number in range(len(names))]
            for name in places:
                asker("train", name=name, rank=serving.LORA_RANK, batches=[learned], rates=[1e-3])
                asker("save", name=name)
            return Server("", "", "", places, asker=asker, path=asked.path)

        able: dict[str, Server | str] = {
            EMBEDDED: Server(trainer.url, trainer.api_key, SERVED, names)
        }
        ways: dict[str, Callable[[], Server]] = {
            OVER_VLLM: over_vllm,
            VLLM: by_vllm,
            SAME: as_precise,
            **{kind: functools.partial(by_llama, kind) for kind in LLAMAS},
            TRANSFORMERS: by_transformers,
            skyrl.NAME: by_skyrl,
        }
        for name, start in ways.items():
            try:
                if vllm is None and name in (OVER_VLLM, VLLM, SAME):
                    raise Failed(NO_VLLM)
                able[name] = start()
            except Failed as error:
                able[name] = str(error)
            except Exception as error:  # a row with its reason, whatever it is
                able[name] = f"{type(error).__name__}: {error}"[:600]
            if isinstance(able[name], str):
                say(f"a {name}: {able[name]}")
        yield able


def _error(log: Path, most_s: float = 10.0) -> str:
    """The last error of a server's log, in one line; it may be written after the answer."""
    deadline = time.monotonic() + most_s
    while True:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
        if errors or time.monotonic() > deadline:
            return errors[-1][:300] if errors else "no reason in its log"
        time.sleep(0.25)


# --- asking


def chats(server: Server, adapters: int, size: Size, seed: str) -> dict[str, Any]:
    """Plan a run of Locust: more chats than will be asked, the models in turn."""
    drawn = random.Random(seed)
    models = server.models(adapters)
    bodies = [
        {
            "model": models[number % len(models)],
            "messages": [{"role": "user", "content": " ".join(drawn.choices(WORDS, k=size.words))}],
            "temperature": 0,
            "max_tokens": size.tokens,
            **server.wishes.get(models[number % len(models)], {}),
        }
        for number in range(768)
    ]
    return {"url": server.url, "key": server.key, "tokens": size.tokens, "bodies": bodies}


def ask(server: Server, plan: dict[str, Any], in_flight: int, run_s: int, size: Size) -> Any:
    """One run, by Locust or by who asks this server, and what was counted. Raises Failed."""
    if server.asker is None:
        return ask_by_locust(plan, in_flight, run_s, size)
    bodies = plan["bodies"]
    chats_of = [body["messages"][0]["content"] for body in bodies]
    prompts = [skyrl.tokens_of(tokenizer(server.path), chat) for chat in chats_of]
    names = list(dict.fromkeys(body["model"] for body in bodies))
    settings = {"tokens": size.tokens, "in_flight": in_flight, "run_s": run_s}
    counted = server.asker("sample", names=names, prompts=prompts, **settings)
    return figures_of(counted, size.tokens)


def ask_by_locust(plan: dict[str, Any], in_flight: int, run_s: int, size: Size) -> dict[str, float]:
    """One run of Locust, and what it counted. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        out = place / "counted.json"
        (place / "chats.json").write_text(json.dumps({**plan, "out": str(out)}))
        command = [str(locust()), "--locustfile", str(GAMES / "chats.py"), "--headless"]
        command += ["--users", str(in_flight), "--spawn-rate", str(in_flight)]
        command += ["--run-time", f"{run_s}s", "--stop-timeout", str(size.most_s)]
        command += ["--loglevel", "WARNING", "--only-summary"]
        environment = {name: v for name, v in os.environ.items() if not name.startswith("PYTHON")}
        environment["CHATS"] = str(place / "chats.json")
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=place,
                capture_output=True,
                text=True,
                timeout=size.most_s + 60,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"it took more than {size.most_s} s") from None
        if not out.exists():
            raise Failed(f"Locust failed: {' '.join((done.stderr + done.stdout)[-600:].split())}")
        return figures_of(json.loads(out.read_text()), size.tokens)


def figures_of(counted: dict[str, Any], tokens: int) -> dict[str, float]:
    """The figures of a run. Raises Failed if a request failed, or none was answered."""
    if counted["failures"]:
        raise Failed(f"requests failed: {'; '.join(counted['failures'])[:400]}")
    if not counted["requests"]:
        raise Failed("nothing was answered")
    return {
        "tokens_per_s": round(counted["requests_per_s"] * tokens, 1),
        "requests": counted["requests"],
        "median_ms": round(counted["median_ms"], 1),
        "p95_ms": round(counted["p95_ms"], 1),
    }


def locust() -> Path:
    """Locust's command. Raises Failed where it is not built."""
    path = PEERS / "locust" / "bin" / "locust"
    if not path.exists():
        raise Failed("Locust is not built: scripts/build_peers.sh locust")
    return path


# --- measuring


def measure(model: Model, rounds: int, size: Size, say: Any) -> dict[str, Any]:
    """All in turn on servers that stay up; each is asked for all of its models once before.

    SkyRL compiles for the base and for adapters apart, seconds each.
    """
    locust()
    with tempfile.TemporaryDirectory() as folder, servers(model, Path(folder), size, say) as able:
        rows: dict[str, dict[str, Any]] = {
            name: {"reason": server} if isinstance(server, str) else {"refused": server.refused}
            for name, server in able.items()
        }
        up = {name: server for name, server in able.items() if isinstance(server, Server)}
        for name, server in up.items():
            try:
                for adapters in sorted({0, len(server.adapters)}):
                    plan = chats(server, adapters, size, "before")
                    for in_flight in size.in_flight:
                        if in_flight < size.long:
                            ask(server, plan, in_flight, 1, size)
            except Failed as error:
                rows[name]["reason"] = str(error)
                say(f"a {name}: {error}")
        cells = size.cells
        for number in range(rounds):
            for index, cell in enumerate(cells):
                if number > 0 and cell[1] >= size.long:
                    continue
                turn = (number + index) % len(up)
                for name in [*up, *up][turn : turn + len(up)]:
                    _cell(rows[name], name, up[name], cell, number, size, say)
    return {
        "settings": {
            "tokens": size.tokens,
            "words": size.words,
            "run_s": size.run_s,
            "lora_rank": serving.LORA_RANK,
            "long": size.long,
        },
        "in_flight": list(size.in_flight),
        "adapters": list(size.adapters),
        "rows": rows,
        "ratios": ratios(rows, cells),
        "versions": versions(),
    }


def _cell(
    row: dict[str, Any],
    name: str,
    server: Server,
    cell: tuple[int, int],
    number: int,
    size: Size,
    say: Any,
) -> None:
    """One cell of one round; where it fails, the reason, and no more rounds of this row."""
    adapters, in_flight = cell
    if "reason" in row or adapters > len(server.adapters):
        return
    try:
        plan = chats(server, adapters, size, f"{number} {cell}")
        figures = ask(server, plan, in_flight, size.run_s, size)
    except Failed as error:
        row["reason"] = f"{adapters} adapters, {in_flight} in flight: {error}"
        say(f"a {name}: {row['reason']}")
        return
    row.setdefault("cells", {}).setdefault(key(*cell), []).append(figures)
    say(f"a {number} {name} {adapters} adapters, {in_flight} in flight: {figures}")


def key(adapters: int, in_flight: int) -> str:
    """A cell's name in the JSON file."""
    return f"{adapters} adapters, {in_flight} in flight"


def ratios(rows: dict[str, Any], cells: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Our tokens per second over each peer's, cell by cell, by rounds that both finished."""

    def speeds(name: str, cell: tuple[int, int]) -> list[float]:
        measured = rows.get(name, {}).get("cells", {}).get(key(*cell), [])
        return [figures["tokens_per_s"] for figures in measured]

    pairs = [(name, peer, cell) for name in OURS for peer in OTHERS for cell in cells]
    compared = []
    for name, peer, cell in pairs:
        figures, of_peer = speeds(name, cell), speeds(peer, cell)
        if figures and len(figures) == len(of_peer):
            facts = {"of": name, "to": peer, "adapters": cell[0], "in_flight": cell[1]}
            compared.append(facts | ratio(figures, of_peer))
    return compared


def versions() -> dict[str, str]:
    """The versions of what took part, and of Locust."""
    python = locust().with_name("python")
    code = "from importlib.metadata import version; print(version('locust'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    known = serving.versions(serving.vllm_command()) | skyrl.versions()
    return known | llama.versions() | {"locust": done.stdout.strip() or "unknown"}
