"""A resident trainer in a process of its own, called from an event loop.

ResidentClient.start   start the process and load the base model
ResidentClient         the methods of `trainer.ResidentTrainer`, awaited, one at a time
ResidentDied           the process has ended: all models are gone, and the caller makes a new one

The process dies with this one (`die_with_parent`). Its socket has no name, so no other process can
connect to it. If the await of a call is cancelled, the call is still done and its answer dropped:
else the caller could not know whether a step was taken.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nip_base.machine.processes import (
    process_identity,
    read_tail,
    signal_group,
    working_environment,
)
from nip_lm_server import aside
from nip_lm_server.training.resident.framing import (
    HEAD,
    FramingError,
    decode,
    encode,
    lengths,
    output_from_wire,
    to_wire,
)
from nip_lm_server.training.resident.types import (
    AdamParams,
    Datum,
    Facts,
    LoraConfig,
    Output,
    ResidentError,
    SparseRows,
)

CLOSE_GRACE_S = 5.0
"""Time that a process has to finish its request, once its client has gone."""


class ResidentDied(ResidentError):
    """The process has ended, with every model in it. A new one starts from saved checkpoints."""

    def __init__(self, message: str):
        super().__init__("server", "trainer_died", message)


class ResidentClient:
    """A running process. Only one event loop may use it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        log: Path,
    ):
        """Called by `start` only."""
        self._process, self._reader, self._writer, self._log = process, reader, writer, log
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._died: ResidentDied | None = None
        self.pid = process.pid
        self.identity = process_identity(process.pid) or ""
        self.facts: Facts

    @classmethod
    async def start(
        cls,
        base: Path,
        *,
        device: str,
        dtype: str,
        threads: int,
        environment: Mapping[str, str],
        log: Path,
    ) -> "ResidentClient":
        """Start a process and wait until the base model is loaded. Raises ResidentError.

        `log` gets its output. `trainer.ResidentTrainer` describes the other arguments.
        """
        own_end, child_end = socket.socketpair()
        options = ("--base", str(base), "--device", device, "--dtype", dtype)
        try:
            with log.open("ab") as output, child_end:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "nip_lm_server.training.die_with_parent"),
                    *(str(os.getpid()), "nip_lm_server.training.resident"),
                    *("--socket", str(child_end.fileno()), *options, "--threads", str(threads)),
                    stdin=asyncio.subprocess.PIPE,  # its end tells the child that we are gone
                    stdout=output,
                    stderr=output,
                    pass_fds=(child_end.fileno(),),
                    env={**working_environment(environment), "PYTHONSAFEPATH": "1"},
                    start_new_session=True,
                )
        except BaseException:
            own_end.close()
            raise
        reader, writer = await asyncio.open_connection(sock=own_end)
        client = cls(process, reader, writer, log)
        try:
            client.facts = Facts(**(await client._read())["facts"])
        except BaseException:
            await client.close()
            raise
        return client

    async def create_model(self, model_id: str, lora: LoraConfig) -> None:
        """See `ResidentTrainer.create_model`."""
        await self._ask("create_model", model_id=model_id, lora=lora)

    async def forward_backward(
        self,
        model_id: str,
        data: Sequence[Datum],
        loss_fn: str,
        config: Mapping[str, float],
        *,
        forward_only: bool,
    ) -> Output:
        """See `ResidentTrainer.forward_backward`."""
        answer = await self._ask(
            "forward_backward",
            model_id=model_id,
            data=list(data),
            loss_fn=loss_fn,
            config=config,
            forward_only=forward_only,
            size=sum(map(_count_bytes, data)),
        )
        return output_from_wire(answer)

    async def optim_step(self, model_id: str, adam: AdamParams) -> dict[str, float]:
        """See `ResidentTrainer.optim_step`."""
        return dict(await self._ask("optim_step", model_id=model_id, adam=adam))

    async def save(self, model_id: str, directory: Path, *, optimizer: bool) -> None:
        """See `ResidentTrainer.save`. The path is absolute, or relative to the process's own."""
        directory = directory.absolute()
        await self._ask("save", model_id=model_id, directory=directory, optimizer=optimizer)

    async def load(
        self, model_id: str, directory: Path, lora: LoraConfig | None, *, optimizer: bool
    ) -> None:
        """See `ResidentTrainer.load`."""
        directory = directory.absolute()
        await self._ask(
            "load", model_id=model_id, directory=directory, lora=lora, optimizer=optimizer
        )

    async def drop_model(self, model_id: str) -> None:
        """See `ResidentTrainer.drop_model`."""
        await self._ask("drop_model", model_id=model_id)

    async def close(self) -> None:
        """End the process, at the latest after CLOSE_GRACE_S. All models in it are gone."""
        self._died = self._died or ResidentDied("the trainer was closed")
        self._writer.close()
        try:
            await asyncio.wait_for(asyncio.shield(self._process.wait()), CLOSE_GRACE_S)
        except TimeoutError:
            pass
        finally:
            signal_group(self.pid, signal.SIGKILL)
            await self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()

    async def _ask(
        self,
        method: Literal[
            "create_model", "forward_backward", "optim_step", "save", "load", "drop_model"
        ],
        *,
        size: int = 0,
        **arguments: Any,
    ) -> Any:
        """Send a call whose arrays have `size` bytes, and return its result."""
        try:
            call = {"method": method, "arguments": arguments}
            message = await aside.run(size, lambda: encode(to_wire(call)))
        except (FramingError, TypeError, ValueError) as error:
            raise ResidentError("user", "invalid_arguments", f"{method}: {error}") from error
        # The request is finished, even if its caller no longer waits for it.
        task = asyncio.ensure_future(self._exchange(message))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # no caller may wait for it any more, so asyncio must not warn of it

    async def _exchange(self, message: bytes) -> Any:
        async with self._turn:
            if self._died is not None:
                raise self._died
            try:
                self._writer.write(message)
                await self._writer.drain()
            except (ConnectionError, OSError):
                raise await self._explain_end() from None
            return (await self._read())["result"]

    async def _read(self) -> dict[str, Any]:
        """Read the next answer. Raises the error in it, or ResidentDied."""
        try:
            sizes = lengths(await self._reader.readexactly(HEAD.size))
            parts = [await self._reader.readexactly(size) for size in sizes]
            message = await aside.run(sum(sizes), decode, *parts)
        except (asyncio.IncompleteReadError, ConnectionError, FramingError):
            raise await self._explain_end() from None
        if "error" in message:
            error = message["error"]
            raise ResidentError(error["category"], error["code"], error["message"])
        return message

    async def _explain_end(self) -> ResidentDied:
        """End the process, if it still runs, and explain its end."""
        if self._died is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._process.wait()), CLOSE_GRACE_S)
            signal_group(self.pid, signal.SIGKILL)
            code = await self._process.wait()
            end = f"exited with status {code}"
            if code < 0:
                end = f"was ended by {signal.Signals(-code).name}"
            log = read_tail(self._log) or "(empty)"
            self._died = ResidentDied(f"the trainer's process {end}. End of its log:\n{log}")
        return self._died


def _count_bytes(datum: Datum) -> int:
    parts: list[Any] = [datum.tokens]
    for value in datum.inputs.values():
        if isinstance(value, SparseRows):
            parts += [value.values, value.crow_indices, value.col_indices]
        else:
            parts.append(value)
    return sum(int(np.asarray(part).nbytes) for part in parts)
