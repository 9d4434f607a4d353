"""A run that goes on, that is damaged, or that was done again: shown as it is by now."""

import json
import re
import shutil

import pytest
from viewing import client_of, everything, text_of

from nip_core import run
from nip_core.errors import CorruptionError
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_view.parts.run_index import RunIndex


class Clock:
    """A clock that only moves when it is told to."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of the store, and the directory of the newest training split in it."""
    shutil.copytree(trained, tmp_path / "runs", ignore=shutil.ignore_patterns("lm_server"))
    return tmp_path / "runs", tmp_path / "runs/small/iterations/0001/rollouts/train"


def test_shards_of_a_split_that_is_being_played_are_shown_as_they_come(copied):
    store, split = copied
    aside = store.parent / "later"
    aside.mkdir()
    for path in [*split.glob("manifest.json"), *split.glob("*0001*")]:
        shutil.move(path, aside / path.name)
    shutil.rmtree(store / "small/iterations/0002")
    clock = Clock()
    client = client_of(store, clock=clock)
    before = everything(client, "/runs/small/episodes", split="train", iteration="1")
    assert len(before) == 20
    page = client.get("/runs/small/episodes").text
    assert "more are being played" in page and 'data-live="/runs/small/state"' in page
    # A line of Python reads whole splits, so it has less here, which is said beside it.
    assert "Python has them once" in page
    assert "Python has them once" not in client.get("/runs/small/episodes?split=test").text
    played = run("small", store=str(store)).where(split="train", iteration=1, order="played")
    assert played.rows == []
    state = client.get("/runs/small/state").json()["state"]
    assert client.get("/runs/small/state").json()["state"] == state
    for path in aside.iterdir():
        shutil.move(path, split / path.name)
    clock.now_s += 2
    assert client.get("/runs/small/state").json()["state"] != state
    after = everything(client, "/runs/small/episodes", split="train", iteration="1")
    assert len(after) == 40 and {*before} < {*after}
    page = client.get("/runs/small/episodes").text
    assert "more are being played" not in page and "Python has them once" not in page


def test_a_finished_run_is_not_asked_for_news(trained):
    assert "data-live" not in client_of(trained).get("/runs/small").text


def test_what_was_read_once_is_not_read_again(trained):
    clock = Clock()
    index = RunIndex(RunStore(open_store(trained, read_only=True), "small"), clock)
    first = index.refresh()
    assert first.table.num_rows == 2 * 40 + 3 * 20
    index._columns_of = lambda shard: pytest.fail(f"{shard.name} is read again")
    for _ in range(3):
        clock.now_s += 60
        assert index.refresh() is first


def test_a_damaged_shard_is_named_and_the_rest_is_shown(copied):
    store, split = copied
    damaged = next(split.glob("generations-0000*"))
    damaged.write_bytes(damaged.read_bytes()[:-7] + b"damaged")
    client = client_of(store)
    for address in ("/runs/small", "/runs/small/episodes", "/runs/small/matrix?split=train"):
        answer = client.get(address)
        assert answer.status_code == 200
        assert damaged.name in answer.text
    assert len(everything(client, "/runs/small/episodes", split="train")) == 60
    # A file would not say what it lacks, so there is one of whole splits alone, as from Python.
    for address, is_whole in {
        "/runs/small/episodes.csv": False,
        "/runs/small/episodes.jsonl?iteration=1": False,
        "/runs/small/episodes.csv?split=train&sort=played": False,
        "/runs/small/episodes.csv?iteration=0": True,
        "/runs/small/episodes.jsonl?iteration=1&split=test": True,
        "/compare.csv?a=small@0&b=small@1&split=train": False,
        "/compare.jsonl?a=small@0&b=small@1&split=test": True,
    }.items():
        for method in ("GET", "HEAD"):
            answer = client.request(method, address)
            assert answer.status_code == (200 if is_whole else 503), address
        assert is_whole or damaged.name in client.get(address).text
    # No link leads to a file that is refused: a browser would not show why.
    for address, is_whole in {
        "/runs/small/episodes": False,
        "/runs/small/episodes?split=test": True,
        "/runs/small/matrix?split=train": False,
        "/runs/small/matrix?split=test": True,
        "/compare?a=small@0&b=small@1&split=train": False,
        "/compare?a=small@0&b=small@1&split=test": True,
    }.items():
        page = client.get(address).text
        assert (".jsonl" in page) == is_whole, address
        assert is_whole or damaged.name in page
    tables = run("small", store=str(store))
    assert len(tables.where(iteration=1, split="test", order="failures").rows) == 20
    with pytest.raises(CorruptionError, match=damaged.name):
        _ = tables.where(iteration=1).rows


def test_damage_that_comes_later_is_named_by_the_episode_that_needs_the_file(copied):
    store, split = copied
    client = client_of(store)
    key = everything(client, "/runs/small/episodes", split="train", iteration="1")[0]
    for path in split.glob("generations-*"):
        path.unlink()
    answer = client.get(f"/runs/small/episodes/{key}")
    assert answer.status_code == 200
    assert re.search(r"generations-\d+\.\w+\.parquet: missing", answer.text)


@pytest.mark.parametrize(
    "path", ["run.json", "iterations/0001/metrics-test.json", "iterations/0000/models.json"]
)
def test_a_damaged_document_is_named_and_the_episodes_are_shown(copied, path):
    store, _ = copied
    (store / "small" / path).write_text('{"half": ')
    client = client_of(store)
    for address in ("/", "/runs/small", "/runs/small/jobs", "/runs/small/settings"):
        assert client.get(address).status_code == 200, address
    assert path.rpartition("/")[2] in client.get("/runs/small").text
    assert len(everything(client, "/runs/small/episodes")) == 140


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("times.json", '{"test": null}'),
        ("models.json", '{"groups": {"prover": 5}}'),
        ("metrics-test.json", '{"accuracy": "high"}'),
        ("../../estimate.json", '{"usd": "much"}'),
        ("../../superseded", "a file"),
        ("rollouts", "a file"),
    ],
)
def test_one_damaged_run_takes_no_other_down_with_it(copied, path, content):
    store, _ = copied
    other = {**json.loads((store / "small/run.json").read_text()), "run": "other"}
    other.pop("sha256")
    (store / "other").mkdir()
    (store / "other/run.json").write_text(json.dumps(other))
    damaged = (store / "small/iterations/0001" / path).resolve()
    if damaged.is_dir():
        shutil.rmtree(damaged)
    damaged.write_text(content)
    client = client_of(store)
    listed = re.findall(r'<tr><th scope="row">.*?</tr>', client.get("/").text, re.DOTALL)
    rows = {re.search("/runs/([a-z]+)", row)[1]: text_of(row) for row in listed}
    assert "damaged" in rows["small"] and damaged.name in rows["small"]
    assert "damaged" not in rows["other"]
    for end in ("", "/state", "/matrix", "/episodes", "/jobs", "/settings"):
        assert client.get(f"/runs/small{end}").status_code == 200
    assert damaged.name in text_of(client.get("/runs/small").text)
    if everything(client, "/runs/small/episodes"):
        key = everything(client, "/runs/small/episodes")[0]
        assert client.get(f"/runs/small/episodes/{key}?tab=facts").status_code == 200


def test_files_that_are_not_the_runs_own_do_no_harm(copied):
    store, split = copied
    iteration = store / "small/iterations/0002"
    for path in (iteration.parent / "notes.txt", split.parent / "notes.txt",
                 iteration / "rollouts/notes.txt", iteration.parent / "0007"):  # fmt: skip
        path.write_text("mine")
    (iteration / "jobs/mine").mkdir(parents=True)
    client = client_of(store)
    assert "damaged" not in client.get("/").text
    assert "Some of the run" not in client.get("/runs/small").text
    assert len(everything(client, "/runs/small/episodes")) == 140


def test_what_was_set_aside_to_be_done_again_is_shown_no_more(copied):
    store, _ = copied
    clock = Clock()
    client = client_of(store, clock=clock)
    assert everything(client, "/runs/small/episodes", iteration="1")
    target = store / "small/superseded/0001/iterations"
    target.mkdir(parents=True)
    for name in ("0001", "0002"):
        shutil.move(store / "small/iterations" / name, target / name)
    clock.now_s += 2
    assert not everything(client, "/runs/small/episodes", iteration="1")
    assert len(everything(client, "/runs/small/episodes")) == 60


def test_a_text_is_looked_for_in_what_was_played_anew(copied):
    store, split = copied
    clock = Clock()
    client = client_of(store, clock=clock)
    asked = {"text": "decision", "split": "train", "iteration": "0"}
    before = everything(client, "/runs/small/episodes", **asked)
    # As if the iteration was done again, and ended otherwise: shards of the same names.
    (store / "small/superseded/0001").mkdir(parents=True)
    again = store / "small/iterations/0000/rollouts/train"
    shutil.rmtree(again)
    shutil.copytree(split, again)
    shutil.rmtree(store / "small/iterations/0001")
    clock.now_s += 2
    after = everything(client, "/runs/small/episodes", **{**asked, "iteration": "1"})
    assert before and after and not {*before} & {*after}
    assert after == everything(
        client_of(store), "/runs/small/episodes", **{**asked, "iteration": "1"}
    )


def test_a_run_made_anew_under_the_name_of_a_deleted_one_is_shown_as_it_is_now(copied):
    store, _ = copied
    clock = Clock()
    client = client_of(store, clock=clock)
    assert len(everything(client, "/runs/small/episodes")) == 140
    before = client.get("/runs/small/state").json()
    record = json.loads((store / "small/run.json").read_text())
    record |= {"created_at": "2031-01-01T00:00:00.000+00:00"}
    record.pop("sha256")
    for name in ("0001", "0002"):
        shutil.rmtree(store / "small/iterations" / name)
    (store / "small/run.json").write_text(json.dumps(record))
    clock.now_s += 2
    assert len(everything(client, "/runs/small/episodes")) == 60
    assert "2031-01-01" in client.get("/").text and "2031-01-01" in client.get("/runs/small").text
    now = client.get("/runs/small/state").json()
    assert now["state"] != before["state"] and now["status"] == "stopped"


def test_a_run_that_begins_later_is_listed_and_an_unfinished_one_is_no_error(copied):
    store, _ = copied
    client = client_of(store)
    assert "newcomer" not in client.get("/").text
    (store / "newcomer").mkdir()
    document = json.loads((store / "small/run.json").read_text())
    document.pop("sha256", None)
    (store / "newcomer/run.json").write_text(json.dumps({**document, "run": "newcomer"}))
    assert "newcomer" in client.get("/").text
    for end in ("", "/matrix", "/episodes", "/jobs", "/settings"):
        assert client.get(f"/runs/newcomer{end}").status_code == 200
