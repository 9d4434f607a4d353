"""What `nip doctor` says of a machine with a GPU, on machines that are made up."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from nip_bridges.hub import client as hub
from nip_cli.launching import launch
from nip_core.errors import ServerError, SettingsError
from nip_study import remote_runs
from nip_up import doctor as screen
from nip_up import doctor_checks as doctor

NO_ADDRESSES = (
    "http://user:s3cret/pw@localhost:9/api",
    "user:s3cretpw@localhost:9",
    "http://s3cret:abc/api",
    "http://s3cret@[::1",
    "://s3",
    "http://host\\s3/api",
    "http://127.0.0.1:9/s3 api",
    "http://s3..example/api",
    "http://127.0.0.1:99999/s3",
)


@pytest.mark.parametrize(
    ("driver", "built_for", "works", "ok", "said"),
    [
        ("580.65.06", "13.0", True, True, "for CUDA 13.0"),
        ("550.54.15", "13.0", False, False, "needs driver 580 or newer"),
        ("550.54.15", "12.8", True, True, "driver 550.54.15"),
        ("580.65.06", None, False, False, "a CPU build"),
        (None, "13.0", False, False, "torch sees no device"),
        (None, "13.0", True, True, "driver unknown"),
    ],
)
def test_a_driver_or_a_torch_that_would_leave_the_gpu_idle_is_named(
    monkeypatch, driver, built_for, works, ok, said
):
    monkeypatch.setattr(doctor, "driver_version", lambda: driver)
    monkeypatch.setattr("torch.version.cuda", built_for)
    monkeypatch.setattr("torch.cuda.is_available", lambda: works)
    finding = doctor._cuda(has_gpu=True)
    assert finding.ok is ok and said in finding.detail


def test_what_kernels_are_compiled_with_is_missed_on_a_gpu_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shutil, "which", lambda command: None)
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda name: str(tmp_path))
    with_gpu, without = (
        {f.what: f for f in doctor._for_gpus(has_gpu) if f.what != "CUDA"}
        for has_gpu in (True, False)
    )
    for what in ("C compiler", "Python.h"):
        assert not with_gpu[what].ok and "apt-get install" in with_gpu[what].detail
        assert without[what].ok


def test_names_and_details_stand_apart_and_long_ones_go_on_in_their_column(monkeypatch, capsys):
    findings = [
        doctor.Finding("disk", True, "58.0 GB free here"),
        doctor.Finding("model with-a-name-of-32-characters", False, "a detail " * 20),
    ]
    screen._print(findings)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].index("58.0") == lines[1].index("a detail") == 40
    monkeypatch.setattr(screen.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    screen._print(findings)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3 and max(map(len, lines)) <= 80
    assert {line[:40].strip() for line in lines[2:]} == {""}


def test_a_password_in_prefects_address_is_printed_by_nobody(monkeypatch):
    finding = doctor._prefect("http://ada:a-word-of-it@127.0.0.1:1/api?token=a-word-of-it")
    assert finding.detail.startswith("PREFECT_API_URL=http://***@127.0.0.1:1/api: no Prefect")
    address = "http://ada:a-word-of-it@127.0.0.1:1/api"
    with temporary_settings({PREFECT_API_URL: address}):
        with pytest.raises(ServerError) as refused:
            launch._check_prefect()
        assert "PREFECT_API_URL http://***@127.0.0.1:1/api: no Prefect server" in str(refused.value)
    with temporary_settings({PREFECT_API_URL: address}), pytest.raises(SettingsError) as far:
        remote_runs._check_prefect("tcp://cluster.example:8786")
    assert "a-word-of-it" not in str(refused.value) + str(far.value)


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_what_is_no_address_is_refused_by_name_and_not_shown(monkeypatch, address):
    finding = doctor._prefect(address)
    assert not finding.ok and "PREFECT_API_URL: " in finding.detail and "s3" not in finding.detail
    monkeypatch.setenv("PREFECT_API_URL", address)
    with pytest.raises(SettingsError, match=r"^PREFECT_API_URL: ") as no:
        launch.import_prefect()
    assert "s3" not in str(no.value)
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(SettingsError, match="variable HF_ENDPOINT: ") as no:
        hub.connect()
    assert "s3" not in str(no.value)


def test_what_is_no_address_in_a_profile_of_prefect_is_refused_too():
    for check in (launch._check_prefect, lambda: remote_runs._check_prefect("tcp://far:8786")):
        with (
            temporary_settings({PREFECT_API_URL: "http://s3cret:abc/api"}),
            pytest.raises(SettingsError, match=r"^PREFECT_API_URL: ") as no,
        ):
            check()
        assert "s3" not in str(no.value)


@pytest.mark.parametrize(
    ("status", "body", "ok", "said"),
    [
        (200, "true", True, ": answers"),
        (401, "", True, "asks for a key"),
        (200, "<html>", False, "no Prefect server (HTTP 200)"),
        (404, "", False, "no Prefect server (HTTP 404)"),
    ],
)
def test_the_server_that_is_named_is_asked(status, body, ok, said):
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/api/health" else 500)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    with server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        finding = doctor._prefect(f"http://127.0.0.1:{server.server_port}/api")
        thread.join()
    assert finding.ok is ok and said in finding.detail
