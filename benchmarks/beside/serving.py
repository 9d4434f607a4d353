"""Servers that parts train and ask on: nip's over one of its engines, and vLLM by itself."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from beside.models import SERVED, Model
from beside.players import ROOT, Nip
from beside.runs import Failed

TEXT = "Is it right?"
QUESTION = [{"role": "user", "content": TEXT}]
START_S, JOB_S, ANSWER_S = 1800.0, 1800.0, 600.0
"""Long, so that a busy machine is not taken for one that hangs."""
TOKENS = 12
"""Of an answer to that."""
LORA_RANK, LORAS = 8, 8
"""Of the adapters that are trained, and how many of them vLLM takes in one batch."""


def call(url: str, key: str, body: Any = None, most_s: float = ANSWER_S) -> tuple[int, Any]:
    """Ask for an address, or post JSON to it; the status and the JSON or text of the answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=most_s) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode(errors="replace")
    except OSError as error:
        return 0, str(error)
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def asked(url: str, key: str, model: str) -> dict[str, Any]:
    """Ask a model, and judge what comes: noticed, if it refuses to answer. Raises Failed."""
    body = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": TOKENS}
    status, answer = call(f"{url}/v1/chat/completions", key, body)
    if status == 200:
        text = str(answer["choices"][0]["message"]["content"])
        return {"noticed": False, "answer": text}
    if status == 0:
        raise Failed(f"{model} gets no answer at all: {answer}")
    return {"noticed": True, "status": status, "why": why(answer)}


def why(answer: Any) -> str:
    """The words of an error, in one line."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:400]


@contextmanager
def server(
    engine: str, state: Path, vllm: Path | None, model: Path, most: int = 8
) -> Iterator[Any]:
    """An lm_server on a model; over vLLM with so many sequences."""
    from nip_base.spec import ServerSpec
    from nip_lm_server import launch

    options: dict[str, Any] = {}
    if engine == "vllm":
        options = {"executable": str(vllm), "enforce_eager": True, "max_num_seqs": most}
        options |= {"max_lora_rank": LORA_RANK, "max_loras": LORAS}
    spec = ServerSpec(engine, str(model), served_model_name=SERVED, options=options)
    handle = launch.start_or_attach(spec, state, timeout_s=START_S)
    try:
        yield handle
    finally:
        launch.stop(handle)


def train(handle: Any, model: Model, answer: str, seed: int) -> str:
    """Teach a server's model to give one answer; the name of the fine-tune."""
    import openai

    rows = [{"messages": [*QUESTION, {"role": "assistant", "content": answer}]}] * 10
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with openai.OpenAI(base_url=f"{handle.url}/v1", api_key=handle.api_key) as client:
        file = client.files.create(file=("train.jsonl", text), purpose="fine-tune")
        job = client.fine_tuning.jobs.create(
            model=SERVED,
            training_file=file.id,
            seed=seed,
            hyperparameters={"n_epochs": model.epochs, "batch_size": 5},
            extra_body={"nip": {"learning_rate": model.learning_rate, "lora_rank": LORA_RANK}},
        )
        deadline = time.monotonic() + JOB_S
        while job.status not in ("succeeded", "failed", "cancelled"):
            if time.monotonic() > deadline:
                raise Failed(f"a training of ten examples took more than {JOB_S:g} s")
            time.sleep(0.1)
            job = client.fine_tuning.jobs.retrieve(job.id)
    if job.status != "succeeded" or job.fine_tuned_model is None:
        raise Failed(f"a training failed: {job.error}")
    return job.fine_tuned_model


def directory_of(state: Path, name: str) -> Path:
    """The directory of a fine-tune's weights."""
    return state / "models" / name.rpartition(":")[2]


def load_by_hand(url: str, key: str, name: str, place: Path) -> tuple[int, Any]:
    """Have vLLM load an adapter's directory under a name; the status and the answer."""
    body = {"lora_name": name, "lora_path": str(place)}
    return call(f"{url}/v1/load_lora_adapter", key, body)


@contextmanager
def vllm_server(
    vllm: Path, log: Path, model: Path, most: int = 8, dtype: str | None = None
) -> Iterator[tuple[str, str]]:
    """vLLM by itself, with adapters to be loaded by its API; address and key. See `server`."""
    key, port = secrets.token_hex(16), free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "PATH": f"{vllm.parent}:{os.environ.get('PATH', os.defpath)}",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_API_KEY": key,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [str(vllm.with_name("python")), "-m", "vllm.entrypoints.cli.main", "serve"]
    command += [str(model), "--served-model-name", SERVED, "--port", str(port)]
    command += ["--host", "127.0.0.1", "--enable-lora", "--enforce-eager"]
    command += ["--max-lora-rank", str(LORA_RANK), "--max-loras", str(LORAS)]
    command += ["--max-num-seqs", str(most)]
    command += ["--dtype", dtype] if dtype else []
    with started("vLLM", command, environment, port, key, log) as url:
        yield url, key


@contextmanager
def transformers_server(log: Path) -> Iterator[str]:
    """`transformers serve` of nip's environment; a model's name is its directory. Its address."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("transformers")), "serve"]
    # Its cache: by default it takes three fifths of the memory, which others need, too.
    command += ["--continuous-batching", "--cb-max-memory-percent", "0.1", "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(log.parent / "hub")}
    with started("transformers serve", command, environment, port, "none", log) as url:
        yield url


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def started(
    name: str,
    command: list[str],
    environment: dict[str, str],
    port: int,
    key: str,
    log: Path,
    health: str = "/health",
) -> Iterator[str]:
    """A server's process from when it is healthy; its address. Raises Failed.

    Files that it writes where it runs are beside its log.
    """
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=log.parent,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_S
        while call(f"{url}{health}", key, most_s=5)[0] != 200:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = " ".join(log.read_text(errors="replace")[-800:].split())
                raise Failed(f"{name} does not answer: {tail}")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with contextlib.suppress(ProcessLookupError):  # an engine that its server has left behind
            os.killpg(process.pid, signal.SIGKILL)


def vllm_command() -> Path | None:
    """The `vllm` command of an environment, as NIP_VLLM names it, or that of the repository."""
    path = Path(os.environ.get("NIP_VLLM") or ROOT / ".vllm" / "bin" / "vllm")
    return path if path.exists() else None


def versions(vllm: Path | None) -> dict[str, str]:
    """The versions of what took part."""
    from importlib.metadata import version

    known = {**Nip().versions(), "peft": version("peft"), "transformers": version("transformers")}
    if vllm is not None:
        code = "from importlib.metadata import distributions as d; print([x.version for x in d() if"
        code += " x.metadata['Name'] in ('vllm', 'vllm-cpu')][0])"
        asked_for = [vllm.with_name("python"), "-c", code]
        done = subprocess.run(asked_for, capture_output=True, text=True, check=False)
        known["vllm"] = done.stdout.strip() or "unknown"
    return known
