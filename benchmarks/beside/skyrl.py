"""SkyRL: its server on the processor, over JAX, and a user of it by the Tinker SDK.

Both run in an environment of their own (scripts/build_peers.sh skyrl). The server starts its
engine by `uv run`, as it does wherever it runs; the SDK is the one that it asks for. Batches for
sampling are padded to one number of sequences, so that JAX compiles each length once instead of
once for each number of requests that happen to be in flight.
"""

import json
import os
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from beside import serving
from beside.models import Model
from beside.players import GAMES
from beside.runs import Failed
from beside.tinker_servers import Skyrl

NAME = "SkyRL"
Tokens = list[int]


def refuse_large(model: Model) -> None:
    """Raise Failed for a large model.

    It has a server compute `sample_max_num_sequences` sequences in each step, whoever is asked for,
    and took ten times as long as the others on the tiny model.
    """
    if model.is_large:
        raise Failed("left out on a model of this size, so that the others take minutes")


class Asker:
    """The process with the SDK; see peers/tinker_asker.py for what it can be told to do."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path, place: Path):
        self._process, self._log = process, log
        self.place = place
        """Where the server keeps checkpoints."""

    def __call__(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Give an order and wait for what comes of it. Raises Failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if do:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise Failed(" ".join(self._log.read_text(errors="replace")[-800:].split()))
        done: dict[str, Any] = json.loads(line)
        if "error" in done:
            raise Failed(f"{do}: {done['error']}"[:600])
        return done


@contextmanager
def asker(place: Path, model: Path, rank: int, adapters: int, most: int = 1) -> Iterator[Asker]:
    """The server on a model, and who asks it. Raises Failed, where it is not built, too.

    It has room for so many adapters, of that rank, no more, as room costs time in each layer, and
    answers at most so many requests at once.
    """
    peer = Skyrl()
    if reason := peer.absent():
        raise Failed(reason)
    place.mkdir()
    port = serving.free_port()
    bin_folder = peer.python().parent
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "PATH": f"{bin_folder}:{os.environ.get('PATH', os.defpath)}",
        "VIRTUAL_ENV": str(bin_folder.parent),
        "HOME": str(place),
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "TINKER_TELEMETRY": "0",
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
    }
    settings = {"max_lora_adapters": adapters + 1, "max_lora_rank": rank}
    settings["sample_max_num_sequences"] = most
    # It reads from its parent's command line how to start its engine: by `uv run`.
    command = [str(bin_folder / "uv"), "run", "--active", "--no-project", "-m", "skyrl.tinker.api"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--base-model", str(model)]
    command += ["--backend", "jax", "--session-timeout-sec", "-1"]
    command += ["--backend-config", json.dumps(settings)]
    command += ["--checkpoints-base", str(place / "checkpoints")]
    command += ["--database-url", f"sqlite:///{place / 'tinker.db'}"]
    log = place / "log"
    health = "/api/v1/healthz"
    with serving.started(NAME, command, environment, port, "none", log, health) as url:
        order = [str(peer.python()), str(GAMES / "tinker_asker.py"), url, str(model)]
        with (
            (place / "asker.log").open("w") as out,
            subprocess.Popen(
                order,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
            ) as process,
        ):
            try:
                able = Asker(process, place / "asker.log", place / "checkpoints")
                able("")
                yield able
            finally:
                process.kill()


def archive(checkpoints: Path, name: str) -> Path:
    """The file that an adapter was saved to for sampling."""
    return next(checkpoints.glob(f"*/sampler_weights/{name}.tar.gz"))


def unpack(packed: Path, place: Path) -> Path:
    """Put what an archive has into a folder that is made, or is there."""
    with tarfile.open(packed) as tar:
        tar.extractall(place, filter="data")
    return place


def pack(place: Path, packed: Path) -> None:
    """Make the archive of a folder anew."""
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(place, arcname="")


def versions() -> dict[str, str]:
    """The versions of what takes part, if it is built."""
    peer = Skyrl()
    if peer.absent():
        return {}
    named = {name: version for name, version in peer.versions().items() if name != "python"}
    return {f"SkyRL's {n}" if n == "transformers" else n: v for n, v in named.items()}


def examples(tokenizer: Any, chats: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Chats of a question and an answer as tokens, of which the answer's are learned."""
    made = []
    for question, answer in chats:
        asked: Tokens = tokens_of(tokenizer, question)
        messages = [{"role": "user", "content": question}]
        messages.append({"role": "assistant", "content": answer})
        whole: Tokens = tokenizer.apply_chat_template(messages, return_dict=False)
        weights = [0.0] * len(asked) + [1.0] * (len(whole) - len(asked))
        made.append({"tokens": whole[:-1], "targets": whole[1:], "weights": weights[1:]})
    return made


def tokens_of(tokenizer: Any, question: str) -> Tokens:
    """A question as the tokens after which the model answers."""
    messages = [{"role": "user", "content": question}]
    return list(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    )
