"""The code that README.md shows runs as it stands there, and README.md stays short."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from doc_blocks import ROOT, Block, blocks
from server_here import one_here

from nip_base.spec import ServerSpec
from nip_core.loop import train
from nip_core.parameters import load_parameters

README = ROOT / "README.md"
LONGEST = 15
"""Lines of a door's code."""
PLAYED_WITHOUT_A_MODEL = (
    "lm_server.engine=deterministic",
    "agents._default.model_name=deterministic",
    "rl.num_iterations=1",
    "rl.rollouts_per_iteration=40",
    "dataset_options.max_test_size=40",
    "fine_tuning.poll_interval_s=0.1",
    "agents.verifier.num_epochs=1",
)
SMALL = [
    "rl.num_iterations=1",
    "rl.rollouts_per_iteration=10",
    "dataset_options.max_test_size=4",
    "nip_protocol.min_message_rounds=3",
    "nip_protocol.max_message_rounds=3",
]


def find(words: str) -> Block:
    """The one block of code with these words."""
    (block,) = [block for block in blocks(README) if words in block.text]
    return block


def test_readme_can_be_read_in_minutes():
    prose = re.sub(r"^[ \t]*(`{3,}).*?^[ \t]*\1", "", README.read_text("utf-8"), flags=re.S | re.M)
    prose = re.sub(r"<!--.*?-->|\]\([^)]*\)", " ", prose)
    words = [word for word in prose.split() if re.search(r"\w", word)]
    assert len(words) <= 1000


def test_its_first_screen_says_that_this_is_a_prefect_pipeline():
    assert "Prefect" in README.read_text("utf-8").partition("\n```")[0][:800]


@pytest.mark.parametrize("words", ["AdpProtocol", "openai.OpenAI()", "import tinker", "@flow"])
def test_a_door_has_five_to_fifteen_lines_of_code(words):
    lines = [line for line in find(words).text.splitlines() if line.strip()]
    assert 5 <= len(lines) <= LONGEST


async def test_the_protocol_of_ones_own_is_played_and_pays_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server_in_thread: None
):
    monkeypatch.chdir(tmp_path)
    Path("rebuttal.py").write_text(find("AdpProtocol").text)
    (command,) = re.findall(r"`nip train (quickstart --set [^`]*)`", README.read_text("utf-8"))
    own = re.findall(r"--set (\S+)", command)
    await train(load_parameters("quickstart", [*own, *PLAYED_WITHOUT_A_MODEL]))
    rows = [
        row
        for path in Path("runs/rebuttal").glob("iterations/*/rollouts/test/episodes-*.parquet")
        for row in pq.read_table(path).to_pylist()
    ]
    fooled = [row for row in rows if row["y"] == 0 and row["decision"] == 1]
    assert fooled and {
        one["reward"] for row in fooled for one in row["rewards"] if one["agent"] == "verifier"
    } == {-3.0}


def test_the_script_for_openai_trains_and_asks_without_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (served_as,) = re.findall(r"--served-model-name (\S+)", README.read_text("utf-8"))
    monkeypatch.chdir(tmp_path)
    rows = [
        {"role": "user", "content": "Is 2 even?"},
        {"role": "assistant", "content": "yes"},
    ]
    Path("train.jsonl").write_text((json.dumps({"messages": rows}) + "\n") * 10)
    spec = ServerSpec("deterministic", "tiny", served_model_name=served_as)
    with one_here(spec, tmp_path / "state") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        names: dict[str, Any] = {}
        exec(compile(find("openai.OpenAI()").text, str(README), "exec"), names)
        names["client"].close()
    assert names["job"].status == "succeeded"
    assert names["answer"].choices[0].message.content


async def test_the_flow_of_ones_own_adds_an_iteration_each_night(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefect_server: str,
    server_in_thread: None,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    text = find("@flow").text
    assert 'config="quickstart"' in text
    names: dict[str, Any] = {"__name__": "nightly"}
    small = f'config="deterministic", overrides={SMALL}'
    exec(compile(text.replace('config="quickstart"', small), str(README), "exec"), names)
    for night in (1, 2):  # there is no folder of runs yet on the first one
        await names["nightly"](run="nightly")
        last = max(int(path.name) for path in Path("runs/nightly/iterations").iterdir())
        assert last == night
