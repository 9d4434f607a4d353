"""Cancelled in Prefect while a job trains elsewhere: the job is kept or cancelled, as set."""

import asyncio
import json
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml
from prefect import get_client
from prefect.deployments import run_deployment
from prefect.states import Cancelling
from prefect_stack import until
from slow_game import ONE
from small_game import write_config

from nip_base.spec import ServerSpec
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE
from nip_lm_server.launch import start_or_attach, stop
from nip_prefect.flows.train import train

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture
def webhook():
    """A real HTTP server that keeps what is posted to it."""
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/secret-path", posted
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def lm_server(tmp_path):
    replies = yaml.safe_load(DEFAULT_FILE.read_text()) | {"training": {"seconds": 60.0}}
    path = tmp_path / "replies.yaml"
    path.write_text(yaml.safe_dump(replies))
    spec = ServerSpec("deterministic", "deterministic", replies=str(path))
    handle = start_or_attach(spec, tmp_path / "server")
    yield handle
    stop(handle)


def jobs_of(lm_server):
    request = urllib.request.Request(
        f"{lm_server.url}/v1/fine_tuning/jobs",
        headers={"Authorization": f"Bearer {lm_server.api_key}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return {job["id"]: job["status"] for job in json.loads(answer.read())["data"]}


@pytest.mark.parametrize("on_cancel", ["keep", "cancel"])
async def test_a_remote_job_is_kept_or_cancelled_as_set(
    stack, lm_server, webhook, on_cancel, tmp_path, monkeypatch
):
    url, posted = webhook
    name = f"on-cancel-{on_cancel}"
    config = write_config(
        tmp_path,
        rl=ONE,
        run_name=name,
        lm_server={"url": lm_server.url},
        fine_tuning={"poll_interval_s": 0.2, "settle_s": 0.0, "on_cancel": on_cancel},
    )
    monkeypatch.setitem(stack.environment, "NIP_API_KEY", lm_server.api_key)
    monkeypatch.setitem(stack.environment, "NIP_WEBHOOK", url)
    worker = stack.start_worker()
    started = await run_deployment(
        "train/quickstart", parameters={"config_file": str(config)}, timeout=0
    )
    await asyncio.to_thread(until, lambda: len(jobs_of(lm_server)) == 2, "both jobs are there", 240)
    async with get_client() as client:
        await client.set_flow_run_state(started.id, Cancelling())
        end_s = time.monotonic() + 180
        while not (flow_run := await client.read_flow_run(started.id)).state.is_cancelled():
            assert time.monotonic() < end_s, flow_run.state
            await asyncio.sleep(0.5)
    run = RunStore(open_store(tmp_path / "runs"), name)
    assert run.read_json(f"{run.root}/lease.json")["state"] == "released"
    if on_cancel == "cancel":
        await asyncio.to_thread(
            until, lambda: set(jobs_of(lm_server).values()) == {"cancelled"}, "they are cancelled"
        )
    else:
        assert set(jobs_of(lm_server).values()) <= {"running", "queued", "validating_files"}
    await asyncio.to_thread(until, lambda: posted, "the webhook is told")
    assert posted[-1]["state"] in ("Cancelling", "Cancelled") and posted[-1]["run"] == name
    worker.terminate()
    worker.wait(timeout=60)
    if on_cancel == "keep":
        monkeypatch.setenv("NIP_API_KEY", lm_server.api_key)
        before = set(jobs_of(lm_server))
        result = await train(str(config))
        assert result["status"] == "finished" and set(jobs_of(lm_server)) == before
