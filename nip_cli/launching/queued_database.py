"""Prefect's server on SQLite, whose transactions wait for each other. As a program: `prefect`.

Prefect's transactions begin by reading, and fail where another one writes before they do: the
request gets a 503, and the client is silent for two seconds, as it was between many iterations.
"""

import runpy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


def queue_transactions() -> None:
    """Let each transaction of this process's server begin by waiting for its turn to write."""
    from prefect.server.database.configurations import SQLITE_BEGIN_MODE, AioSqliteConfiguration
    from prefect.server.database.dependencies import set_database_config
    from prefect.server.utilities.database import get_dialect
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    class Queued(AioSqliteConfiguration):
        @asynccontextmanager
        async def begin_transaction(
            self, session: Any, with_for_update: bool = False
        ) -> AsyncIterator[Any]:
            async with super().begin_transaction(session, with_for_update=True) as transaction:
                await session.connection()  # it begins here, and not by its first statement
                # A session within this one, as at the pause of a queue, would wait for it.
                token = SQLITE_BEGIN_MODE.set("DEFERRED")
                try:
                    yield transaction
                finally:
                    SQLITE_BEGIN_MODE.reset(token)

    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    if get_dialect(url).name == "sqlite":
        set_database_config(Queued(connection_url=url))


if __name__ == "__main__":
    queue_transactions()
    runpy.run_module("prefect", run_name="__main__")
