"""A TCP proxy before a real server, whose connections a test breaks or stops.

tcp_proxy   passes bytes on between a client and a port of this machine
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TcpProxy:
    """`break_all` breaks what is open; while `silent`, nothing comes through, in either way."""

    def __init__(self, port: int) -> None:
        self._to, self.port = port, 0
        self.silent = False
        self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def break_all(self) -> None:
        for writer in [*self._open]:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not self.silent:
                    writer.write(data)
                    await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, there}
        await asyncio.gather(self._pass(reader, there), self._pass(there_reader, writer))
        self._open -= {writer, there}


@asynccontextmanager
async def tcp_proxy(port: int) -> AsyncIterator[TcpProxy]:
    """One before `port`."""
    proxy = TcpProxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        proxy.break_all()
        server.close()
