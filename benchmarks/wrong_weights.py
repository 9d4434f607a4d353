"""Right files and the wrong thing served: who notices, and how often an alarm is false.

    NIP_VLLM=.vllm/bin/vllm python benchmarks/wrong_weights.py [--times 20] [--right 200]
        [--state DIR] [--servers URL URL] [--out docs/results/wrong_weights.json]

Adapters of the bundled tiny model, made by PEFT, are served by two vLLMs on this machine's
processors. Their files are right in every row, and compared with the SHA-256 that they were made
with. Served is something else:

base     the base model has the adapter's name (`--served-model-name base NAME`)
slot     another adapter was loaded under the name, from the path where the right one lies now
cache    the name was loaded again in place; the cache of prompts has the last adapter's
replica  one of two servers behind an address was left with the last adapter

Each is made `--times` times and proved as `nip prove` does it. `--right` proofs of right ones are
made on one server, and every fifth through both. Each proof is a line of `--state`/proofs.jsonl as
soon as it is made, and the same command goes on with those that are missing. `--servers` names
vLLMs that run already, with the names of `base` and adapters that are loaded at run time.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from beside.serving import call, free_port, started, vllm_command
from measured_commit import describe_commit
from wrongly_served.adapters import RANK, digests, make_adapters
from wrongly_served.balancer import balanced
from wrongly_served.page import write_page

from nip_core.models import BUNDLED
from nip_lm_server.proving.candidates import compute_probes, read_candidate
from nip_lm_server.proving.request import ProofRequest, prove_served

ADAPTERS, BASE_NAME = 6, "base"
KEY = "key-of-vllm"
EXPECTED = {
    "right": "adapter",
    "base": "base",
    "slot": "another",
    "cache": "stale_cache",
    "replica": "mixed",
}
"""The verdict that each row must have."""
EVERY = 5  # of so many right proofs one is made through both servers
_SLOTS = 64


class Bench:
    """The servers, the adapters, and what was proved so far."""

    def __init__(self, servers: list[str], adapters: dict[str, Path], state: Path):
        self.servers, self.adapters, self.state = servers, adapters, state
        self.names = list(adapters)
        self.made = {name: digests(path) for name, path in adapters.items()}

    def pick(self, number: int) -> tuple[str, str]:
        """Choose two different adapters: the right one, and another."""
        count = len(self.names)
        right_one = number % count
        last_one = (right_one + 1 + (number // count) % (count - 1)) % count
        return self.names[right_one], self.names[last_one]

    def load(self, server: str, name: str, path: Path, *, again: bool = False) -> None:
        """Have a server load an adapter under a name. Raises RuntimeError."""
        body = {"lora_name": name, "lora_path": str(path), "load_inplace": again}
        status, answer = call(f"{server}/v1/load_lora_adapter", KEY, body)
        if status != 200:
            raise RuntimeError(f"{server} does not load {name}: {status} {answer}")

    def unload(self, server: str, name: str) -> None:
        """Free the name, if it is there."""
        call(f"{server}/v1/unload_lora_adapter", KEY, {"lora_name": name})

    async def prove(
        self, address: str, name: str, right_one: str, last_one: str, where: Path
    ) -> Any:
        """Prove a name by the right files, and look at it as others do."""
        request = ProofRequest(
            address=address,
            key=KEY,
            model=name,
            directory=self.adapters[right_one],
            among=(self.adapters[last_one],),
            base_name=BASE_NAME,
        )
        (verdict,) = [verdict async for verdict in prove_served(request)]
        # In a thread: the balancer is on this event loop.
        status, listed = await asyncio.to_thread(call, f"{address}/v1/models", KEY)
        cards = {card["id"]: card for card in listed["data"]} if status == 200 else {}
        return {
            **asdict(verdict),
            # What others look at: the files, the list of names, the path in it.
            "files_right": digests(where) == self.made[right_one],
            "listed": name in cards,
            "path_right": cards.get(name, {}).get("root") == str(where),
        }


# Faults


async def right(bench: Bench, number: int) -> Any:
    """Prove what is as it should be; every fifth time through both servers."""
    right_one, last_one = bench.pick(number)
    name, servers = f"right-{right_one}", bench.servers
    for server in servers:
        if name not in _list(server):
            bench.load(server, name, bench.adapters[right_one])
    if number % EVERY:
        return await bench.prove(servers[0], name, right_one, last_one, bench.adapters[right_one])
    async with balanced(servers, seed=number) as address:
        return await bench.prove(address, name, right_one, last_one, bench.adapters[right_one])


async def base(bench: Bench, number: int) -> Any:
    """Prove a name that the server gives to its base model."""
    right_one, last_one = bench.pick(number)
    name = f"fault-base-{number:02d}"
    return await bench.prove(bench.servers[0], name, right_one, last_one, bench.adapters[right_one])


async def slot(bench: Bench, number: int) -> Any:
    """Prove a name whose path had another adapter when it was loaded."""
    right_one, last_one = bench.pick(number)
    with _place(bench, number, "slot") as (name, place):
        shutil.copytree(bench.adapters[last_one], place)
        bench.load(bench.servers[0], name, place)
        shutil.rmtree(place)
        shutil.copytree(bench.adapters[right_one], place)
        return await bench.prove(bench.servers[0], name, right_one, last_one, place)


async def cache(bench: Bench, number: int) -> Any:
    """Prove a name that was proved, and then loaded again from where other weights lie now."""
    right_one, last_one = bench.pick(number)
    with _place(bench, number, "cache") as (name, place):
        shutil.copytree(bench.adapters[last_one], place)
        bench.load(bench.servers[0], name, place)
        before = await bench.prove(bench.servers[0], name, last_one, right_one, place)
        if before["kind"] != "adapter":
            raise RuntimeError(
                f"{name} is not {last_one} before it is loaded again: {before['says']}"
            )
        shutil.rmtree(place)
        shutil.copytree(bench.adapters[right_one], place)
        bench.load(bench.servers[0], name, place, again=True)
        return await bench.prove(bench.servers[0], name, right_one, last_one, place)


async def replica(bench: Bench, number: int) -> Any:
    """Prove a name that one of two servers has not loaded again."""
    right_one, last_one = bench.pick(number)
    name = f"replica-{number:02d}"
    for server in bench.servers:
        bench.unload(server, name)  # what was interrupted may have left it
    try:
        for server in bench.servers:
            bench.load(server, name, bench.adapters[last_one])
        bench.load(bench.servers[0], name, bench.adapters[right_one], again=True)
        async with balanced(bench.servers, seed=number) as address:
            return await bench.prove(address, name, right_one, last_one, bench.adapters[right_one])
    finally:
        for server in bench.servers:
            bench.unload(server, name)


ROWS: dict[str, Callable[[Bench, int], Coroutine[Any, Any, Any]]] = {
    "base": base,
    "slot": slot,
    "cache": cache,
    "replica": replica,
    "right": right,
}


@contextlib.contextmanager
def _place(bench: Bench, number: int, what: str) -> Iterator[tuple[str, Path]]:
    """Give a name and a path that nothing else had, and free both in the end."""
    name = f"{what}-{number:02d}"
    place = Path(tempfile.mkdtemp(dir=bench.state)) / name
    bench.unload(bench.servers[0], name)  # what was interrupted may have left it
    try:
        yield name, place
    finally:
        bench.unload(bench.servers[0], name)
        shutil.rmtree(place.parent, ignore_errors=True)


def _list(server: str) -> set[str]:
    status, answer = call(f"{server}/v1/models", KEY)
    return {card["id"] for card in answer["data"]} if status == 200 else set()


# Measuring


async def measure(
    bench: Bench, times: int, rights: int, only: Sequence[str]
) -> list[dict[str, Any]]:
    """Make all rows, those first that are fewest; what was made stays."""
    file = bench.state / "proofs.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {(row["what"], row["number"]) for row in rows}
    for what, make in ROWS.items():
        for number in range(rights if what == "right" else times):
            if (what, number) in done or what not in only:
                continue
            begun = time.monotonic()
            proof = await make(bench, number)
            row = {
                "what": what,
                "number": number,
                "named": _is_named(what, proof, bench.pick(number)[1]),
            }
            row |= proof | {"whole_s": round(time.monotonic() - begun, 3), "load": os.getloadavg()}
            rows.append(row)
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(what, number, row["kind"], row["seconds"], row["says"][:110], flush=True)
    return rows


def _is_named(what: str, proof: dict[str, Any], last_one: str) -> bool:
    """Tell whether a verdict says what is served; where that is another adapter, which one."""
    is_other = what not in ("slot", "replica") or any(
        who.endswith(f"/{last_one}") for who in proof["who"]
    )
    return proof["kind"] == EXPECTED[what] and is_other


@contextlib.asynccontextmanager
async def _servers(given: list[str], state: Path) -> AsyncIterator[list[str]]:
    """Start two vLLMs, or take those that are there."""
    if given:
        yield given
        return
    vllm = vllm_command()
    if vllm is None:
        raise SystemExit("no vLLM: set NIP_VLLM to the `vllm` command of its environment")
    with contextlib.ExitStack() as stack:
        addresses = []
        for number in range(2):
            port, log = free_port(), state / f"vllm-{number}.log"
            command, environment = _vllm(vllm, port)
            addresses.append(
                stack.enter_context(started("vLLM", command, environment, port, KEY, log))
            )
        yield addresses


def _vllm(vllm: Path, port: int) -> tuple[list[str], dict[str, str]]:
    """The command of a vLLM, and its environment."""
    faults = [f"fault-base-{number:02d}" for number in range(_SLOTS)]
    command = [str(vllm), "serve", str(BUNDLED["tiny"]), "--served-model-name", BASE_NAME, *faults]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "16"]
    command += ["--enable-lora", "--max-lora-rank", str(RANK), "--max-loras", "8"]
    command += ["--max-cpu-loras", str(_SLOTS)]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_API_KEY": KEY,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return command, environment


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=20, help="of each fault")
    parser.add_argument("--right", type=int, default=200, help="proofs of what is right")
    parser.add_argument("--state", type=Path, help="keep adapters and proofs here, and go on")
    parser.add_argument("--servers", nargs=2, default=[], metavar="URL")
    parser.add_argument("--only", nargs="*", choices=list(ROWS), help="make these rows alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        state = options.state or Path(scratch)
        state.mkdir(parents=True, exist_ok=True)
        tiny = BUNDLED["tiny"]
        adapters = make_adapters(tiny, state / "adapters", ADAPTERS)
        lacking = map(read_candidate, adapters.values())
        list(compute_probes(lacking, str(tiny), str, again=False, save=True))

        async def run() -> list[dict[str, Any]]:
            async with _servers(options.servers, state) as servers:
                bench = Bench(servers, adapters, state)
                only = list(ROWS) if options.only is None else options.only
                return await measure(bench, options.times, options.right, only)

        rows = asyncio.run(run())
    if options.out:
        document = {
            "commit": describe_commit(),
            "processors": os.cpu_count(),
            "planned": {what: options.times for what in ROWS} | {"right": options.right},
            "rows": rows,
        }
        write_page(document, options.out)
    raise SystemExit(0 if all(row["named"] for row in rows) else 1)


if __name__ == "__main__":
    main()
