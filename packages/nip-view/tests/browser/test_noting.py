"""Notes and stars are written in a real browser, whether the page's script runs or not."""

import json
import subprocess

import pytest
from browsing import CHROMIUM, ENVIRONMENT, PATIENCE_S, SCRIPTS

from nip_core import run

NOTE = "It believes the prover.\n=1+1 </textarea><b>"


@pytest.mark.parametrize("scripts", [True, False], ids=["with-script", "without-script"])
def test_a_reader_notes_what_they_saw_and_takes_it_away(viewed, scripts):
    plan = {
        "chromium": CHROMIUM,
        "url": viewed.url,
        "list": "/runs/small/episodes?split=test&sort=played",
        "note": NOTE,
        "scripts": scripts,
        "patience_ms": 1000 * PATIENCE_S,
    }
    done = subprocess.run(
        ["node", str(SCRIPTS / "note.mjs"), str(ENVIRONMENT)],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    [noted] = seen["noted"]
    assert (noted["star"], noted["note"]) == (True, NOTE)
    assert seen["back"] == f"#e-{noted['key']}"
    assert (seen["opened"], seen["emptied"], seen["errors"]) == (NOTE, "", [])
    assert seen["asked"] == 2 * scripts * ["beforeunload"]  # and not when it was kept
    assert seen["file"] == "small-test.jsonl"
    assert run("small", store=str(viewed.store)).notes.num_rows == 0
