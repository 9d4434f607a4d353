"""An endpoint of chats that is a stranger's: it answers as a test plans."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Reply = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


@dataclass
class Endpoint:
    """A stranger's endpoint: it answers as planned, and keeps what it was asked."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def answering(reply: Reply, models: Sequence[str] = ()) -> Iterator[Endpoint]:
    """Answer by `reply`; `models` are those that the endpoint lists."""
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            endpoint.requests.append(request)
            endpoint.keys.append(self.headers["authorization"])
            status, body = reply(request)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            body = {
                "object": "list",
                "data": [{"id": model, "object": "model"} for model in models],
            }
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def say(text: str | None, finish: str = "stop", **more: Any) -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, **more}
    body = {
        "model": "judge-by-any-name",
        "choices": [choice | {"finish_reason": finish}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3},
    }
    return lambda request: (200, body)
