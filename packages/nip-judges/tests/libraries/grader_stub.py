"""A server of chats for judges: each answer is written by a function of the last message."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Answer = Callable[[str], str]
"""The chat's messages, one after another -> the judge's words."""


class Stub:
    """Where the server is, and the chats that it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.chats: list[str] = []


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # many ask at once, some on a new connection each


@contextmanager
def grading(answer: Answer) -> Iterator[Stub]:
    """Serve on a free port of loopback until the end."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            chat = "\n".join(_text(message["content"]) for message in request["messages"])
            stub.chats.append(chat)
            message = {"role": "assistant", "content": answer(chat)}
            body = json.dumps(
                {
                    "id": "chat",
                    "object": "chat.completion",
                    "created": 1,
                    "model": request["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
                }
            ).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    stub = Stub(f"http://127.0.0.1:{server.server_port}/v1")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return str(content)
