"""A real HTTP proxy that writes down whatever reaches it, and answers in place of the server.

recording_proxy  one in a thread; variables: an environment that names it for everything
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_ANSWER = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    "data": [],
}
"""Of a chat, and of a list of jobs."""


class RecordingProxy(ThreadingHTTPServer):
    """`connections` counts all that came; `asked` has the first lines of requests, `heads` the rest."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.connections = 0
        self.asked: list[str] = []
        self.heads: list[dict[str, str]] = []

    @property
    def port(self) -> int:
        return self.server_address[1]

    def get_request(self) -> Any:
        request = super().get_request()
        self.connections += 1
        return request


class _Handler(BaseHTTPRequestHandler):
    server: RecordingProxy

    def _answer(self) -> None:
        self.server.asked.append(self.requestline)
        self.server.heads.append(dict(self.headers))
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps(_ANSWER).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_HEAD = _answer

    def do_PUT(self) -> None:
        self.server.asked.append(self.requestline)
        self.send_error(403)

    def do_CONNECT(self) -> None:
        self.server.asked.append(self.requestline)
        self.server.heads.append(dict(self.headers))
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def recording_proxy() -> Iterator[RecordingProxy]:
    with RecordingProxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


def variables(proxy: RecordingProxy, scheme: str = "http", user: str = "") -> dict[str, str]:
    """An environment in which it is the proxy for everything, in both spellings."""
    url = f"{scheme}://{user}127.0.0.1:{proxy.port}"
    names = ("http_proxy", "https_proxy", "all_proxy")
    return {spelt: url for name in names for spelt in (name, name.upper())}
