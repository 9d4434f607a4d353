"""An engine of tokens, as trainers ask one: POST /inference/v1/generate in, token ids out.

It has no weights. What it answers is a function of the prompt's text, and every request is kept.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import dumps, loads
from typing import Any

LOGPROB = -0.25


class TokenEngine:
    """The requests it has had, with the completion of each."""

    def __init__(self, tokenizer: Any, answer: Callable[[str], str]) -> None:
        self.tokenizer, self.answer = tokenizer, answer
        self.calls: list[tuple[list[int], list[int], dict[str, Any]]] = []
        """Prompt, completion, sampling parameters."""
        self.url = ""

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The response to a request."""
        text = self.answer(self.tokenizer.decode(body["token_ids"]))
        stop = body["sampling_params"]["stop_token_ids"]
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), *stop[:1]]
        self.calls.append((body["token_ids"], ids, body["sampling_params"]))
        content = [{"token": f"token_id:{i}", "logprob": LOGPROB} for i in ids]
        choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
        return {"request_id": str(len(self.calls)), "choices": [choice]}


@contextmanager
def token_engine(tokenizer: Any, answer: Callable[[str], str]) -> Iterator[TokenEngine]:
    """One that listens on loopback."""
    engine = TokenEngine(tokenizer, answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(engine.complete(body))

        def do_GET(self) -> None:
            self._send({"data": []})

        def _send(self, document: dict[str, Any]) -> None:
            data = dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    engine.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
