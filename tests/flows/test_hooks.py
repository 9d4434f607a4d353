"""A webhook that fails is mentioned in the log; its address, which is a secret, never is."""

import logging
import socket
import threading
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings
from prefect.states import Failed

from nip_prefect.flows.hooks import WEBHOOK, tell

TOKEN = "token-that-nobody-may-see"


class FailingWebhook(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(500, f"no such hook: {self.path}")
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def fails():
    """The address of a webhook that answers 500."""
    server = HTTPServer(("127.0.0.1", 0), FailingWebhook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def refuses():
    """An address where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def is_no_address():
    return "http://[oops"


@pytest.fixture
def logged(caplog):
    """Everything that is logged, by whomever."""
    loggers = [logging.getLogger(name) for name in ("", "prefect", "prefect.flow_runs", "aiohttp")]
    for logger in loggers:
        caplog.set_level(logging.DEBUG, logger=logger.name)
    logging.getLogger("prefect").addHandler(caplog.handler)  # it passes nothing on to the root
    with temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: False}):
        yield caplog
    logging.getLogger("prefect").removeHandler(caplog.handler)


@pytest.mark.parametrize(
    ("webhook", "said"),
    [("fails", "HTTP 500"), ("refuses", "not told"), ("is_no_address", "not told")],
)
async def test_a_webhook_that_fails_is_logged_without_its_address(
    webhook, said, request, logged, monkeypatch
):
    address = f"{request.getfixturevalue(webhook)}/hooks/{TOKEN}"
    monkeypatch.setenv(WEBHOOK, address)
    ended = FlowRun(id=uuid.uuid4(), flow_id=uuid.uuid4(), name="its-flow-run")
    await tell("train", ended, Failed(message="its message"))
    assert f"{WEBHOOK}: {said}" in logged.text
    for record in logged.records:
        shown = f"{logging.Formatter().format(record)} {vars(record)}"
        assert address not in shown and TOKEN not in shown
