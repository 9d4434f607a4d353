"""`nip view` in Chromium: without barriers, wide and narrow, light and dark, and live.

NIP_SHOTS names a directory for pictures of every page.
"""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
from browsing import CHROMIUM, ENVIRONMENT, PATIENCE_S, SCRIPTS

from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

SIZES = ((1440, 900), (390, 844))
SCHEMES = ("light", "dark")
TABS, FILTERS = "nav.tabs a", ".filters-fold select"
CELLS, PROBLEMS = ".matrix td.cell-box", ".matrix tbody th"


def asked(viewed, path):
    """A page as a program gets it."""
    headers = {"Authorization": f"Bearer {viewed.token}"}
    request = urllib.request.Request(viewed.origin + path, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def pages(viewed):
    """Every kind of page, by name."""
    key = re.search(r"episodes/([\w-]{16})", asked(viewed, "/runs/small/episodes?verdict=wrong"))[1]
    compared = "/compare?a=small@0&b=small@2&split=test"
    pair = re.search(r'href="(/pair\?[^"]+)"', asked(viewed, compared))[1].replace("&amp;", "&")
    listed = asked(viewed, "/runs/longer/episodes?split=test&iteration=5")
    debated = re.search(r"episodes/([\w-]{16})", listed)[1]
    return {
        "runs": "/",
        "run": "/runs/small",
        "matrix": "/runs/small/matrix",
        "episodes": "/runs/small/episodes",
        "search": "/runs/small/episodes?text=e&agent=prover",
        "hits": f"/runs/small/episodes/{key}?text=e",
        "nothing": "/runs/small/episodes?problem=no-such-problem",
        "episode": f"/runs/small/episodes/{key}?verdict=wrong",
        "asked": f"/runs/small/episodes/{key}?tab=asked",
        "facts": f"/runs/small/episodes/{key}?tab=facts",
        "jobs": "/runs/small/jobs",
        "settings": "/runs/small/settings",
        "compare": compared,
        "pair": pair,
        "iterations": "/runs/longer/matrix",
        "channels": f"/runs/longer/episodes/{debated}",
    }


@pytest.fixture(scope="module")
def looks(viewed, pages):
    """What the browser and axe-core say of every page, in each size and scheme."""
    shots = os.environ.get("NIP_SHOTS")
    plan = {
        "chromium": CHROMIUM,
        "origin": viewed.origin,
        "token": viewed.token,
        "sizes": SIZES,
        "schemes": SCHEMES,
        "patience_ms": 1000 * PATIENCE_S,
        "measured": [TABS, FILTERS, CELLS, PROBLEMS],
        "opened": True,
        "pages": [
            {
                "name": name,
                "path": path,
                "shot": f"{shots}/{name}-{{size}}-{{scheme}}.png" if shots else None,
                "full": True,
            }
            for name, path in pages.items()
        ],
    }
    done = subprocess.run(
        ["node", str(SCRIPTS / "browse.mjs"), str(ENVIRONMENT)],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_axe_finds_nothing_on_any_page(looks, pages):
    assert len(looks) == len(pages) * len(SIZES) * len(SCHEMES)
    assert all(look["passes"] > 10 for look in looks)
    barriers = [
        (look["name"], look["width"], look["scheme"], look["violations"])
        for look in looks
        if look["violations"]
    ]
    assert not barriers


def test_no_page_is_wider_than_the_screen_and_none_complains(looks):
    assert [(x["name"], x["width"]) for x in looks if x["scroll_width"] > x["width"]] == []
    assert [(look["name"], look["said"]) for look in looks if look["said"]] == []


def test_no_note_is_cut_off_and_what_one_aims_at_is_high_enough(looks):
    assert [(x["name"], x["width"]) for x in looks if x["cut"]] == []
    assert [(x["name"], x["width"], x["low"][:4]) for x in looks if x["low"]] == []


def test_every_tab_can_be_reached_and_a_narrow_screen_folds_the_filters(looks):
    for look in looks:
        tabs, filters = look["places"][TABS], look["places"][FILTERS]
        assert tabs and all(0 <= left < right <= look["width"] for left, right in tabs)
        if look["name"] in ("episodes", "matrix"):
            assert bool(filters) == (look["width"] > 1000)


def test_a_narrow_screen_has_room_for_four_iterations_and_shows_the_newest(looks):
    for look in looks:
        if look["name"] != "iterations":
            continue
        cells, problems = look["places"][CELLS], look["places"][PROBLEMS]
        beside = max(right for _, right in problems)
        last = max(right for _, right in cells)
        seen = {left for left, right in cells if left >= beside and right <= look["width"]}
        assert last <= look["width"] and len(seen) >= 4


def test_every_page_has_its_content(looks):
    words = {
        "run": ("Accuracy", "Confusion", "Calibration of the scale", "Reward of a test episode"),
        "matrix": ("right, all problems",),
        "episode": ("verifier", "prover", "round 0"),
        "asked": ("system", "answer of"),
        "facts": ("seed", "protocol", "Models that answered"),
        "jobs": ("succeeded",),
        "compare": ("Right on one side only", "The verifier", "became wrong."),
        "pair": ("Comparison", "Solution", "the other message lacks"),
        "channels": ("Who speaks when", "to prover0_channel"),
    }
    for look in looks:
        for word in words.get(look["name"], ()):
            assert word in look["text"], (look["name"], word)


def test_a_reader_finds_a_transcript_filters_and_sees_the_run_go_on(going_on):
    viewed, aside = going_on
    run = RunStore(open_store(viewed.store, read_only=True), "small")
    tables = read_rollouts(run.store, run.rollouts(0, "test"))
    texts = tables.generations["text"].to_pylist()
    word = max(re.findall(r"[a-z]{4,}", texts[0]), key=len)
    plan = {
        "chromium": CHROMIUM,
        "origin": viewed.origin,
        "url": viewed.url,
        "run": "small",
        "word": word,
        "patience_ms": 1000 * PATIENCE_S,
    }
    node = subprocess.Popen(
        ["node", str(SCRIPTS / "use.mjs"), str(ENVIRONMENT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert node.stdin is not None and node.stdout is not None
    node.stdin.write(json.dumps(plan))
    node.stdin.close()
    seen = {}
    for line in node.stdout:
        step = json.loads(line)
        seen[step["step"]] = step
        if step["step"] == "ready":
            # The rest of the split is committed, while the page is open.
            split = Path(viewed.store) / "small/iterations/0001/rollouts/train"
            for path in sorted((aside / "split").iterdir(), reverse=True):
                shutil.move(path, split / path.name)
        if step["step"] == "news":
            shutil.move(aside / "0002", split.parents[2])
    assert node.wait(60) == 0
    assert "token" not in seen["opened"]["url"]
    everything = [t.strip() for i in (0, 1) for t in _texts(run, i)]
    assert any(text and text in seen["transcript"]["text"] for text in everything)
    assert "SYSTEM" in seen["asked"]["text"].upper()
    found = seen["filter"]
    assert "verdict=wrong" in found["url"] and 0 < found["wrong"] < int(found["all"])
    assert {mark.split()[0] for mark in found["marks"]} == {"✗"}
    assert found["again"] == found["all"]
    # "Back" has undone the menu as well: text is looked for in all episodes.
    assert "verdict" not in seen["keys"]["first"]
    assert seen["keys"]["listed"] > 1
    assert seen["keys"]["first"] != seen["keys"]["second"]
    assert (seen["ready"]["count"], seen["news"]["count"]) == ("20", "40")
    assert seen["finished"] == {"step": "finished", "requests": [], "errors": []}


def _texts(run, iteration):
    return read_rollouts(run.store, run.rollouts(iteration, "test")).generations["text"].to_pylist()
