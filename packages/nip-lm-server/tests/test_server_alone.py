"""The server without the rest of nip: nothing of it is imported, and its README shows what was run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nip_lm_server.proving.proxies import find_proxy
from nip_lm_server.proving.stranger import InputError

ROOT = Path(__file__).parents[3]
README = (ROOT / "packages" / "nip-lm-server" / "README.md").read_text(encoding="utf-8")
# The distributions that an environment with the server alone lacks, and the commands that need none.
WITHOUT = """
import sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("nip_core", "nip_cli", "nip_prefect", "prefect", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Lacking())
from nip_lm_server.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def alone(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "", "COLUMNS": "200", **environment},
    )


def test_scripts_of_its_readme_are_those_of_the_root_which_are_run():
    root = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n.*?```", README, re.DOTALL)
    assert len(blocks) == 2 and all(block in root for block in blocks)
    assert len(re.sub(r"```.*?```", "", README, flags=re.DOTALL).split()) <= 500


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--help",), 0, "--served-model-name"),
        (("prove", "--help"), 0, "ADAPTER_DIR"),
        (("modls", "list"), 2, "there is no command 'modls'; did you mean 'models'?"),
        (("start",), 2, "there are serve, prove, models"),
        (("prove", "nowhere", "m"), 2, "nip-lm-server: URL: an address like http://host:8000"),
        (("prove", "http://127.0.0.1:9", "m"), 3, "nip-lm-server: http://127.0.0.1:9: nobody"),
        (
            ("--engine", "embedded", "--model", "tiny", "--state", "state", "--port", "0"),
            2,
            "pip install 'nip-lm-server[local]'",
        ),
    ],
)
def test_its_commands_need_nothing_else_of_nip(tmp_path, arguments, status, words):
    arguments = [str(tmp_path / word) if word == "state" else word for word in arguments]
    done = alone(*arguments, NIP_API_KEYS="k")
    assert done.returncode == status, done
    assert words in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_a_proof_asks_through_the_proxy_of_the_environment_and_this_machine_directly(tmp_path):
    far, here, proxy = "http://model.invalid:8000", "http://127.0.0.1:8", "http://127.0.0.1:9"
    for kind in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        assert find_proxy(far, {kind: "127.0.0.1:9"}) == proxy
        assert (
            find_proxy(here, {kind: proxy}) is find_proxy("https://[::1]/v1", {kind: proxy}) is None
        )
    assert find_proxy(far, {"HTTPS_PROXY": proxy}) is find_proxy(far, {"no_proxy": far}) is None
    for names in ("model.invalid", "model.invalid:8000", ".invalid", "*.invalid", "*"):
        assert find_proxy(far, {"HTTP_PROXY": proxy, "NO_PROXY": f"a, {names}"}) is None
    network = {"HTTP_PROXY": proxy, "NO_PROXY": "10.0.0.0/8"}
    assert find_proxy("http://10.1.2.3", network) is None
    assert find_proxy("http://11.1.2.3", network) == proxy
    # As `nip` hides what no client can use, and as it stands there otherwise.
    for hidden in ({}, {"all_proxy": ""}):
        with pytest.raises(InputError, match=r"^environment variable all_proxy: a proxy of a kind"):
            find_proxy(far, {"ALL_PROXY": "socks5://user:secret@127.0.0.1:9", **hidden})
    assert find_proxy(far, {"HTTP_PROXY": proxy, "http_proxy": ""}) is None
    # Port 9 is nobody's, so the message says who was asked.
    asked = alone("prove", far, "m", HTTP_PROXY=proxy)
    assert asked.returncode == 3 and "127.0.0.1:9" in asked.stderr
