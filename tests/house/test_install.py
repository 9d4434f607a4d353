"""What `make quickstart` and `make install` take torch from, against servers on loopback."""

import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "install.py"


@pytest.fixture
def install(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.sys, "platform", "linux")
    return module


@contextmanager
def server(handler):
    running = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/whl/cpu"
    finally:
        running.shutdown()
        running.server_close()


@contextmanager
def silent():
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/whl/cpu"


def unreachable():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    return f"http://127.0.0.1:{port}/whl/cpu"


def answering(status, asked):
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args):
            pass

    return Handler


class Dripping(BaseHTTPRequestHandler):
    """Sends a header every now and then, and never all of them."""

    def do_HEAD(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for _ in range(20):
            self.wfile.write(b"X-More: to come\r\n")
            time.sleep(0.1)

    def log_message(self, *args):
        pass


def test_the_small_torch_is_taken_where_no_gpu_is_and_the_index_has_it(install):
    asked = []
    with server(answering(200, asked)) as index:
        assert install.why_not_small(index, [], {}, has_gpu=False) is None
        assert asked == ["/whl/cpu/torch/"]  # once
        # Nobody is asked where it would change nothing, or where the user has said where to look.
        assert "GPU" in install.why_not_small(index, [], {}, has_gpu=True)
        assert "empty" in install.why_not_small("", [], {}, has_gpu=False)
        for options in (["--index-url=http://mirror"], ["-i", "m"], ["--no-index", "-f", "d"]):
            assert "PIP_OPTIONS" in install.why_not_small(index, options, {}, has_gpu=False)
        for configured in ({"index-url": "https://mirror/simple"}, {"no-index": "true"}):
            assert "configuration" in install.why_not_small(index, [], configured, has_gpu=False)
        assert len(asked) == 1
        more = {"index-url": "https://pypi.org/simple/", "find-links": "/wheels", "no-index": "0"}
        assert install.why_not_small(index, ["--no-cache-dir"], more, has_gpu=False) is None
    with server(answering(404, asked)) as index:
        assert install.why_not_small(index, [], {}, has_gpu=False) == f"{index} answers 404"


def test_an_index_that_does_not_answer_costs_seconds(install, monkeypatch, capsys):
    monkeypatch.setattr(install, "ANSWER_S", 0.2)
    monkeypatch.setattr(install.answers, "__defaults__", (None, 0.2))
    with silent() as mute, server(Dripping) as dripping:
        for index in (unreachable(), mute, dripping, "https://no-such-host.invalid/whl/cpu"):
            begun = time.monotonic()
            assert "does not answer" in install.why_not_small(index, [], {}, has_gpu=False)
            assert time.monotonic() - begun < 1
        # Nor is pip told of one, which it would ask for every package, again and again.
        with server(answering(403, [])) as private:
            options = ["--extra-index-url", mute, f"--extra-index-url={private}", "--pre"]
            options += ["--extra-index-url", "file:///simple"]
            left = install.without_silent(options)
    assert left == [
        *("--extra-index-url", private, "--pre"),
        *("--extra-index-url", "file:///simple"),
    ]
    assert f"{mute} of PIP_OPTIONS does not answer and is left out" in capsys.readouterr().out


def test_make_installs_by_the_script_and_hands_it_what_it_was_given():
    for target in ("quickstart", "install"):
        done = subprocess.run(
            ["make", "-n", target, "PIP_OPTIONS=--pre", "TORCH_INDEX=u", "VENV=/none/venv"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        called = 'PIP_OPTIONS="--pre" TORCH_INDEX="u" /none/venv/bin/python scripts/install.py'
        assert called in done.stdout and "pip install" not in done.stdout


def test_all_distributions_are_installed_in_place_and_the_root_first(install):
    first, *parts = install.list_editable("local,dev")[1::2]
    assert first == f"{ROOT}[local,dev]" and install.list_editable("")[1] == str(ROOT)
    assert {*parts} == {str(path.parent) for path in ROOT.glob("packages/*/pyproject.toml")}
    assert {*install.list_editable("local,dev")[::2]} == {"-e"}


def test_torch_is_installed_for_the_extra_that_needs_it_alone(install, monkeypatch):
    calls = []
    monkeypatch.setattr(install, "install_torch", lambda *_: calls.append("torch"))
    monkeypatch.setattr(install, "check_pip", lambda options, what, quiet: calls.append(what))
    monkeypatch.setattr(install, "compile_all", lambda: None)
    for extras in ("wandb,figures", ""):
        monkeypatch.setattr(sys, "argv", ["install.py", *filter(None, [extras])])
        install.main()
        assert calls == [[install.BACKEND], install.list_editable(extras)]
        calls.clear()
    monkeypatch.setattr(sys, "argv", ["install.py", "local,dev"])
    install.main()
    assert calls[0] == "torch" and calls[2] == install.list_editable("local,dev")


def test_without_pip_in_the_environment_uv_installs(install, monkeypatch, tmp_path):
    assert install.find_installer()[:4] == [sys.executable, "-m", "pip", "install"]
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"has no pip: .* -m ensurepip"):
        install.find_installer()
    uv = tmp_path / "uv"
    uv.touch(mode=0o755)
    assert install.find_installer() == [str(uv), "pip", "install", "--python", sys.executable]
    # Its configuration counts as pip's does.
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://mirror/simple")
    assert install.pip_configuration() == {"index-url": "https://mirror/simple"}


def test_a_driver_of_nvidia_is_seen(install, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not install.has_nvidia(tmp_path)
    command = tmp_path / "nvidia-smi"
    command.touch(mode=0o755)
    assert install.has_nvidia(tmp_path)
    command.unlink()
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    assert install.has_nvidia(tmp_path)


def wheel(folder, version):
    """Put a torch of a few bytes into an index as PEP 503 has it."""
    file = folder / "torch" / f"torch-{version}-py3-none-any.whl"
    facts = f"torch-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("torch/__init__.py", "")
        packed.writestr(
            f"{facts}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
        packed.writestr(
            f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr(f"{facts}/RECORD", "")


@pytest.mark.parametrize("has_wheel", [pytest.param(True, marks=pytest.mark.long), False])
def test_pip_takes_torch_alone_from_that_index_and_else_what_it_finds(tmp_path, has_wheel):
    """The script by itself, in an environment with nothing but pip, on a machine without a GPU."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    [version] = [line.removeprefix("torch==") for line in pins if line.startswith("torch==")]
    files = tmp_path / "whl" / "cpu"
    (files / "torch").mkdir(parents=True)
    if has_wheel:
        wheel(files, f"{version}+cpu")

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *args):
            pass

    venv = tmp_path / "venv"
    make = [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", venv]
    subprocess.run(make, check=True)
    call = "import sys, install; install.install_torch(sys.argv[1], [], quiet=True, has_gpu=False)"
    # What others tell pip does not count here, and the package index is out of reach.
    told = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    told |= {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", "HTTPS_PROXY": unreachable()}
    with server(Files) as index:
        done = subprocess.run(
            [venv / "bin" / "python", "-c", call, index],
            env=told | {"PYTHONPATH": str(SCRIPT.parent), "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
        )
    site = next((venv / "lib").glob("python*/site-packages"))
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"nip: 1 of 3, torch without CUDA, from {index}: 0.2 GB")
    if has_wheel:
        assert (done.returncode, len(lines)) == (0, 1), done.stderr
        assert (site / f"torch-{version}+cpu.dist-info").is_dir()
    else:
        assert done.returncode == 1 and "torch" in done.stderr
        assert f"as pip got none from {index}: 0.2 GB to download, or some 3 with" in lines[1]
