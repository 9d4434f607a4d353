"""Two servers behind one address, as a load balancer has them: each request goes to one by chance.

balanced   an address whose requests go to several others
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

_PASSED = ("Authorization", "Content-Type", "X-data-parallel-rank")


@asynccontextmanager
async def balanced(replicas: Sequence[str], seed: int) -> AsyncIterator[str]:
    """Listen at an address, and send each request to one of the replicas, drawn by `seed`."""
    draw = random.Random(seed)
    connector = aiohttp.TCPConnector(force_close=True)  # servers close what is idle
    async with aiohttp.ClientSession(connector=connector) as session:

        async def pass_on(request: web.Request) -> web.Response:
            headers = {name: request.headers[name] for name in _PASSED if name in request.headers}
            body = await request.read()
            async with session.request(
                request.method, draw.choice(replicas) + request.path, headers=headers, data=body
            ) as answer:
                return web.Response(
                    status=answer.status,
                    body=await answer.read(),
                    content_type=answer.content_type,
                )

        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
