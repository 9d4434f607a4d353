"""With a proxy in every variable the whole of `nip train` stays on this machine."""

import json
import subprocess
import sys

from recording_proxy import recording_proxy, variables
from small_game import FEW, write_config


def test_a_run_with_proxies_in_its_environment_finishes_and_none_is_asked(own_prefect, tmp_path):
    config = write_config(tmp_path, rl=FEW)
    with recording_proxy() as proxy:
        # As a desktop sets them: httpx can't even be told of the last one.
        proxies = {**variables(proxy), "all_proxy": f"socks5://127.0.0.1:{proxy.port}"}
        done = subprocess.run(
            [sys.executable, "-m", "nip_prefect", "train", str(config), "--json"],
            env={**own_prefect, **proxies},
            capture_output=True,
            text=True,
            timeout=180,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["status"] == "finished"
    assert proxy.connections == 0, proxy.asked
