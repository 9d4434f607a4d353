"""Takes the pictures of docs/images with a headless Chromium: ``python screenshots.py RUN``.

report.png       the report of a finished quick start, from the top
transcripts.png  its transcripts, the wrong verdicts first

Chromium is the system's (`apt-get install chromium`), or what NIP_CHROMIUM names; it is driven by
its own protocol over a WebSocket, for which nip's HTTP client is enough.
"""

import argparse
import asyncio
import base64
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

IMAGES = Path(__file__).parents[2] / "docs" / "images"
START_S = 60


def chromium() -> str:
    """The browser's command. Raises SystemExit, saying how to get one."""
    names = (os.environ.get("NIP_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    command = next((name for name in names if name and shutil.which(name)), None)
    if command is None:
        raise SystemExit("no Chromium here: apt-get install chromium, or set NIP_CHROMIUM")
    return command


class Tab:
    """A page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol. Raises RuntimeError with what the browser says."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message)
        while True:
            answer = await self._socket.receive_json(timeout=120)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    async def run(self, script: str) -> Any:
        """The value of a script in the page."""
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return result["result"].get("value")

    async def show(
        self, address: str, *, width: int = 1200, height: int = 800, dark: bool = False
    ) -> None:
        """Open a page of this size, in light or dark."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url=address)
        end = time.monotonic() + START_S
        await asyncio.sleep(1)
        while await self.run("document.readyState") != "complete":
            if time.monotonic() > end:
                raise RuntimeError(f"{address}: not loaded within {START_S} s")
            await asyncio.sleep(0.2)
        await asyncio.sleep(1)

    async def save(self, picture: Path, place: dict[str, float] | None = None) -> None:
        """Save what is seen, or one place of it. Raises RuntimeError for an empty page."""
        clip = {key: place[key] for key in ("x", "y", "width", "height")} if place else None
        more = {} if clip is None else {"clip": {**clip, "scale": 1}}
        result = await self.call("Page.captureScreenshot", format="png", **more)
        data = base64.b64decode(result["data"])
        if len(data) < 8_000:
            raise RuntimeError(f"{picture}: the page is empty")
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(data)


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Tab]:
    """A browser with one page, which ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu"]
        command += ["--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
        process = subprocess.Popen(  # noqa: ASYNC220
            [*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            port = await _port(Path(profile) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as http:
                async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [page for page in await answer.json() if page["type"] == "page"]
                address = pages[0]["webSocketDebuggerUrl"]
                async with http.ws_connect(address, max_msg_size=0) as socket:
                    yield Tab(socket)
        finally:
            process.terminate()
            process.wait(30)


async def _port(file: Path) -> int:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        await asyncio.sleep(0.1)
    raise SystemExit(f"the browser did not start within {START_S} s")


async def take(run: Path, out: Path) -> None:
    """Take the pictures of the run."""
    report = (run / "report.html").resolve()
    if not report.exists():
        raise SystemExit(f"{report} is not there; train the run first")
    async with browser() as tab:
        await tab.show(report.as_uri(), height=900)
        await tab.save(out / "report.png")
        await tab.run("document.getElementById('transcripts').scrollIntoView()")
        await tab.save(out / "transcripts.png")


def main() -> None:
    """Read the command line and take them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the directory of a finished run, runs/quickstart")
    parser.add_argument("--out", type=Path, default=IMAGES)
    options = parser.parse_args()
    asyncio.run(take(options.run, options.out))


if __name__ == "__main__":
    sys.exit(main())
