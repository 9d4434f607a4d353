"""Takes the pictures of docs/prefect.md, of a run that it trains: ``python prefect_pictures.py``.

flow-graph.png      the graph of an iteration, as Prefect's UI draws it
flow-artifacts.png  what the run has published there

It starts a Prefect server of its own and trains one iteration of the configuration `deterministic`
with it, in a temporary directory. Chromium is found as `screenshots.py` finds it.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from screenshots import IMAGES, Tab, browser

RUN = "pictured"
START_S = 180
DRAWN_S = 5.0
"""The graph is moved into view before it stands still."""
WIDTH = 1300


@contextlib.asynccontextmanager
async def prefect_server(folder: Path) -> AsyncIterator[str]:
    """A Prefect server with its UI, which ends with the block; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    os.environ |= {
        "DO_NOT_TRACK": "1",
        "NO_PROXY": "127.0.0.1",
        "PREFECT_API_URL": f"{url}/api",
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_API_URL": f"{url}/api",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # noqa: ASYNC220
    try:
        for _ in range(2 * START_S):
            with contextlib.suppress(aiohttp.ClientError):
                if await _ask(f"{url}/api/health"):
                    break
            await asyncio.sleep(0.5)
        else:
            raise SystemExit(f"no Prefect server:\n{(folder / 'log').read_text()[-2000:]}")
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


async def _ask(url: str, body: dict[str, Any] | None = None) -> Any:
    async with aiohttp.ClientSession() as http:
        method = "GET" if body is None else "POST"
        async with http.request(method, url, json=body) as answer:
            answer.raise_for_status()
            return await answer.json()


async def take(out: Path) -> None:
    """Train the run, and take the pictures."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with prefect_server(Path(folder)) as url:
            command = [sys.executable, "-m", "nip_cli", "train", "deterministic"]
            settings = (f"run_name={RUN}", f"run_store={folder}", "rl.num_iterations=1")
            for setting in (*settings, "rollouts.episodes_per_shard=35"):
                command += ["--set", setting]
            subprocess.run(command, check=True, timeout=600)  # noqa: ASYNC221
            name = f"iteration-{RUN}-0"
            asked = {"flow_runs": {"name": {"any_": [name]}}}
            [flow_run] = await _ask(f"{url}/api/flow_runs/filter", asked)
            page = f"{url}/runs/flow-run/{flow_run['id']}"
            async with browser() as tab:
                await _save(tab, page, 900, "canvas", out / "flow-graph.png")
                await _save(tab, f"{url}/artifacts", 470, "main", out / "flow-artifacts.png")


async def _save(tab: Tab, page: str, height: int, selector: str, picture: Path) -> None:
    """Save an element of a page of this height."""
    await tab.show(page, width=WIDTH, height=height)
    await asyncio.sleep(DRAWN_S)
    place = f"document.querySelector('{selector}').getBoundingClientRect().toJSON()"
    await tab.save(picture, await tab.run(place))


def main() -> None:
    """Read the command line and take them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGES)
    asyncio.run(take(parser.parse_args().out))


if __name__ == "__main__":
    main()
