"""A server that speaks S3, in a process of its own: moto's, which heeds conditions on writes.

It handles one request at a time, once it has all of it, so that looking at a condition and writing
are one step, as they are at S3, and a client that is stopped half way holds nobody up. The first
write of an object with "lost-answer" in its name is done and answered with 500; the first two
answers about what has "cut-answer" in its name break off half way, as does the first one to the
beginning of its writing in parts, and to the end. The bucket "careless" heeds no conditions. Run as
a script, with an address and a port or without, it serves and prints its port. A POST of
``{"delay_s": 2.0, "refused": 0.3}`` to ``/-/trouble`` lets it answer so much later from then on, and
that share of requests with 503.
"""

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def serve() -> Iterator[dict[str, str]]:
    """The environment in which ``s3://`` means this server; buckets are made with `make_bucket`."""
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).absolute())], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()  # pytest's time limit is its deadline
        assert port, "the S3 server did not start"
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "a-test-key",
            "AWS_SECRET_ACCESS_KEY": "a-test-secret",
            "AWS_REGION": "us-east-1",
        }
    finally:
        server.kill()
        server.wait()


def make_bucket(environment: dict[str, str], name: str) -> str:
    """Make a bucket and return its URL."""
    url = f"{environment['AWS_ENDPOINT_URL']}/{name}"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60).close()
    return f"s3://{name}"


try:
    raise ConnectionError("the answer is lost")
except ConnectionError:
    _NO_ERROR = sys.exc_info()  # WSGI's way of taking a start of an answer back


def _one_at_a_time(application: Callable[..., Any]) -> Callable[..., Any]:
    lock = threading.Lock()
    lost: set[str] = set()
    cut: Counter[str] = Counter()
    trouble, draw = {"delay_s": 0.0, "refused": 0.0}, random.Random(0)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        path, is_write = environ["PATH_INFO"], environ["REQUEST_METHOD"] == "PUT"
        if path == "/-/trouble":
            trouble.update(json.loads(environ["wsgi.input"].read()))
            start("204 No Content", [])
            return []
        time.sleep(trouble["delay_s"])
        if draw.random() < trouble["refused"]:
            start("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        if path.startswith("/careless/"):
            environ.pop("HTTP_IF_NONE_MATCH", None)
            environ.pop("HTTP_IF_MATCH", None)
        with lock:
            said = list(application(environ, start))
            if is_write and "lost-answer" in path and path not in lost:
                lost.add(path)
                start("500 Internal Server Error", [("Content-Length", "0")], _NO_ERROR)
                return [b""]
            asked = path + environ["QUERY_STRING"].partition("uploadId")[0]
            # More than a client's own repeats, which are of requests and not of answers.
            cuts = {"GET": 2, "POST": 1}.get(environ["REQUEST_METHOD"], 0)
            if "cut-answer" in asked and cut[asked] < cuts:
                cut[asked] += 1
                whole = b"".join(said)
                return [whole[: len(whole) // 2]]  # then the connection is closed
            return said

    return answer


def _main() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            pass

    application = _one_at_a_time(DomainDispatcherApplication(create_backend_app))
    host, port = sys.argv[1:3] or ("127.0.0.1", "0")
    server = make_server(host, int(port), application, threaded=True, request_handler=Quiet)
    print(server.port, flush=True)
    parent = os.getppid()
    server.timeout = 1.0
    while os.getppid() == parent:  # a killed test leaves no server behind
        server.handle_request()


if __name__ == "__main__":
    _main()
