"""The process of a resident trainer: one request at a time from a socket, until the socket ends.

``python -m nip_lm_server.training.resident --socket FD --base DIR --device cpu --dtype float32
--threads N``, where FD is an inherited Unix socket. The first message is ``{"facts": {...}}`` or
``{"error": {...}}``; then each request ``{"method", "arguments"}`` is answered by ``{"result"}`` or
``{"error": {"category", "code", "message"}}``. A request with an error has changed nothing.
`resident_client` is the other end.
"""

import argparse
import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from io import BufferedRWPair
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_lm_server.training.resident.framing import (
    HEAD,
    data_from_wire,
    decode,
    encode,
    lengths,
    to_wire,
)
from nip_lm_server.training.resident.types import AdamParams, LoraConfig, ResidentError

if TYPE_CHECKING:
    from nip_lm_server.training.resident.trainer import ResidentTrainer


def main() -> int:
    """Serve the socket of the command line to its end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    with socket.socket(fileno=options.socket).makefile("rwb") as stream:
        try:
            trainer = _start(options)
        except Exception as error:
            _send(stream, _tell(error))
            return 1
        _send(stream, {"facts": asdict(trainer.facts)})
        while True:
            request = _receive(stream)
            if request is None:
                return 0
            try:
                answer = {"result": _do(trainer, request["method"], request["arguments"])}
            except Exception as error:
                answer = _tell(error)
            _send(stream, answer)


def _start(options: argparse.Namespace) -> "ResidentTrainer":
    from nip_lm_server.training.resident.trainer import ResidentTrainer

    return ResidentTrainer(
        options.base, device=options.device, dtype=options.dtype, threads=options.threads
    )


def _do(trainer: "ResidentTrainer", method: str, arguments: dict[str, Any]) -> Any:
    # The client is this process's parent, and sends no other names.
    call: Callable[..., Any] = getattr(trainer, method)
    if arguments.get("lora") is not None:
        arguments["lora"] = LoraConfig(**arguments["lora"])
    if "adam" in arguments:
        arguments["adam"] = AdamParams(**arguments["adam"])
    if "data" in arguments:
        arguments["data"] = data_from_wire(arguments["data"])
    if "directory" in arguments:
        arguments["directory"] = Path(arguments["directory"])
    return to_wire(call(**arguments))


def _tell(error: Exception) -> dict[str, Any]:
    """The answer for any exception; one that is no ResidentError is in the log, too."""
    if not isinstance(error, ResidentError):
        traceback.print_exc()
        if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
            error = ResidentError(
                "server", "out_of_memory", f"the training ran out of memory: {error}"
            )
        else:
            error = ResidentError("server", "internal_error", f"{type(error).__name__}: {error}")
    return {"error": {"category": error.category, "code": error.code, "message": error.message}}


def _receive(stream: BufferedRWPair) -> dict[str, Any] | None:
    """Receive the next message; None once the client has gone."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    sizes = lengths(head)
    header, arrays = (stream.read(size) for size in sizes)
    if (len(header), len(arrays)) != sizes:
        return None
    return decode(header, arrays)


def _send(stream: BufferedRWPair, message: dict[str, Any]) -> None:
    stream.write(encode(message))
    stream.flush()


if __name__ == "__main__":
    try:
        status = main()
    except OSError:  # the client went while it was answered
        status = 1
    # There is nothing left to write, and tearing torch down takes half a second.
    sys.stderr.flush()
    os._exit(status)
