"""Takes the pictures of docs/view.md, from a run that is there, with what `make test-view` builds.

    .venv/bin/python packages/nip-view/tests/browser/shots.py RUN_STORE RUN .view-env docs/images

The run is best the quick start's: `nip train quickstart`.
"""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

CHROMIUM = "/usr/bin/chromium"


def main() -> None:
    """Start the viewer, take the pictures, end it."""
    store, run, environment, target = sys.argv[1:]
    nip = str(Path(sys.executable).with_name("nip"))
    command = [nip, "view", run, "--run-store", store, "--no-open", "--no-token"]
    viewer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert viewer.stdout is not None
    match = re.search(r"(http://[^/]+)/", viewer.stdout.readline())
    assert match is not None
    origin = match[1]
    wrong = f"/runs/{run}/episodes?split=test&verdict=wrong"
    with urllib.request.urlopen(origin + wrong) as answer:
        key = re.search(r"episodes/([\w-]{16})", answer.read().decode())
    assert key is not None
    pages = {
        "run": (f"/runs/{run}", "light"),
        "matrix": (f"/runs/{run}/matrix", "dark"),
        "episode": (f"/runs/{run}/episodes/{key[1]}?split=test&verdict=wrong", "light"),
    }
    for name, (path, scheme) in pages.items():
        shot = f"{target}/view-{name}.png"
        plan = {
            "chromium": CHROMIUM,
            "origin": origin,
            "token": None,
            "sizes": [[1280, 760]],
            "schemes": [scheme],
            "patience_ms": 300_000,
            "pages": [{"name": name, "path": path, "shot": shot}],
        }
        script = str(Path(__file__).with_name("browse.mjs"))
        subprocess.run(["node", script, environment], input=json.dumps(plan), text=True, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
    viewer.terminate()
    viewer.wait(60)


if __name__ == "__main__":
    main()
