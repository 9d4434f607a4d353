"""Texts in the list of episodes, and what is looked for in them: found, cut out and marked."""

import html
import re
import shutil
import tempfile

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from handmade import Rollouts
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stored_rows import typed_tables
from viewing import HOSTILE, client_of, everything, text_of

from nip_core.rollouts.storage.tables import (
    StoredRollouts,
    commit_shard,
    join_shards,
    read_rollouts,
)
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_view.episode_list import shorten
from nip_view.parts import kept_calls
from nip_view.parts.text_search import find_pattern, split_text

ODD = "First\r\nsecond\x00\x07 \u202egnorw\u202c <b>שלום</b> " + "👩\u200d💻" * 90
ACCEPT = "Decision: accept"


@pytest.fixture(scope="module")
def client(trained):
    return client_of(trained)


@pytest.fixture(scope="module")
def tables(trained):
    """Rows of the run's first test: episodes by key, and generations."""
    run = RunStore(open_store(trained, read_only=True), "small")
    read = read_rollouts(run.store, run.rollouts(0, "test"))
    return {row["key"]: row for row in read.episodes.to_pylist()}, read.generations.to_pylist()


def rows_of(page):
    """The rows of a list, by the key of the episode."""
    rows = re.findall(r'<tr role="row" id="e-.*?</tr>', page, re.DOTALL)
    return {re.search(r"/episodes/([\w-]+)", row)[1]: row for row in rows}


def played(folder, run_json, episodes, generations):
    """A store with a run whose first training split has these rows, in one shard."""
    (folder / "small").mkdir()
    shutil.copy(run_json, folder / "small/run.json")
    store = open_store(folder)
    directory = RunStore(store, "small").rollouts(0, "train")
    commit_shard(store, directory, "0000", typed_tables(episodes, generations))
    join_shards(store, directory, ["0000"])
    return folder


@pytest.fixture(scope="module")
def odd(trained, tmp_path_factory):
    """A store with odd texts: of a plain episode, one without a question, and a tree."""
    rollouts = Rollouts("small")
    rollouts.add(0, 1, ["Is it right?", ODD, ACCEPT], (1.0, 1.0))
    rollouts.add(1, 1, [HOSTILE, "the needle", ACCEPT], (1.0, 1.0))
    rollouts.add(2, 1, ["shared needle", "one leaf", ACCEPT], (1.0, 1.0))
    rollouts.add(3, 1, ["other leaf", ACCEPT], (1.0, 1.0))
    plain, bare, leaf, other = rollouts.episodes
    plain["question"] = ODD
    bare["question"], bare["solution"] = " \n", "\n  def f():\n    return 1"
    # Leaves 0.0.0 and 0.1 of one tree; what they share stands once, with the first.
    leaf["branch_path"], other["branch_path"] = "0.0.0", "0.1"
    other |= {name: leaf[name] for name in ("problem", "question_id", "question")}
    for row in rollouts.generations:
        if row["episode"] == leaf["key"]:
            row["branch_path"] = "0.0.0"[: 2 * row["round"] + 1]
        elif row["episode"] == other["key"]:
            row["round"] += 1
            row["branch_path"] = "0.1.0"[: 2 * row["round"] + 1]
    other["branch_path"] = "0.1.0"
    rollouts.generations[0]["reasoning"] = "I think of a Needle, and of another needle"
    return played(
        tmp_path_factory.mktemp("odd"),
        trained / "small/run.json",
        rollouts.episodes,
        rollouts.generations,
    )


def test_each_row_shows_the_question_and_what_a_prover_said_last(client, tables):
    episodes, generations = tables
    last = {row["episode"]: row["text"] for row in generations if row["agent"] == "prover"}
    rows = rows_of(client.get("/runs/small/episodes?iteration=0&split=test").text)
    assert rows.keys() == episodes.keys()
    for key, row in rows.items():
        shown = " ".join(text_of(row).split())
        assert " ".join(episodes[key]["question"].split())[:60] in shown
        assert " ".join(last[key].split())[:90] in shown
        assert episodes[key]["problem"] in shown


def test_odd_texts_stay_one_line_and_text(odd):
    rows = rows_of(client_of(odd).get("/runs/small/episodes").text)
    plain, bare = rows["small-e0-0"], rows["small-e0-1"]
    shown = re.findall(r"<bdi>(.*?)</bdi>", plain, re.DOTALL)
    assert len(shown) == 2
    for line in shown:
        assert line.startswith("First second ") and "&lt;b&gt;שלום&lt;/b&gt;" in line
        assert not re.search(r"[\x00-\x1f]", line) and len(html.unescape(line)) <= 120
        assert html.unescape(line)[-2:] in ("👩…", "💻…")
    assert ">def f(): return 1<" in bare


@pytest.mark.parametrize(("agent", "round_"), [("verifier", 0), ("prover", None), (None, 1)])
def test_a_search_finds_what_that_agent_wrote_in_that_round(client, tables, agent, round_):
    episodes, generations = tables
    spoken = [
        row
        for row in generations
        if agent in (None, row["agent"]) and round_ in (None, row["round"])
    ]
    counted = {}
    for row in spoken:
        for word in {*re.findall(r"[a-z]{4,}", row["text"].lower())}:
            counted.setdefault(word, set()).add(row["episode"])
    by_anybody = "\n".join(row["text"].lower() for row in generations)
    word = max(counted, key=lambda w: (len(counted[w]) < len(episodes), by_anybody.count(w)))
    expected = {
        row["episode"] for row in spoken if word in row["text"].lower()
    }  # parts of words, too
    asked = {"iteration": 0, "split": "test", "text": word}
    asked |= {} if agent is None else {"agent": agent}
    asked |= {} if round_ is None else {"round": round_}
    assert {*everything(client, "/runs/small/episodes", **asked)} == expected
    nobody = {**asked, "text": "no such words"}
    assert everything(client, "/runs/small/episodes", **nobody) == []


def test_without_a_text_those_are_listed_in_which_the_agent_had_a_turn_in_the_round(client, tables):
    _, generations = tables
    asked = {"iteration": 0, "split": "test", "agent": "prover", "round": 3}
    expected = {r["episode"] for r in generations if (r["agent"], r["round"]) == ("prover", 3)}
    assert {*everything(client, "/runs/small/episodes", **asked)} == expected


def test_hits_are_cut_out_in_the_list_and_marked_in_the_episode(odd):
    client = client_of(odd)
    rows = rows_of(client.get("/runs/small/episodes?text=NEEDLE").text)
    marks = {key: re.findall(r"<mark>(.*?)</mark>", row) for key, row in rows.items()}
    assert marks == {
        "small-e0-0": ["Needle", "needle"],
        "small-e0-1": ["needle"],
        "small-e0-2": ["needle"],
        "small-e0-3": ["needle"],  # of the call that it shares with the other leaf
    }
    assert "2 hits" in text_of(rows["small-e0-0"]) and "thoughts in round 0" in rows["small-e0-0"]
    page = client.get("/runs/small/episodes/small-e0-0?text=NEEDLE").text
    assert re.findall(r'<mark id="(hit-\d)">(.*?)</mark>', page) == [
        ("hit-1", "Needle"),
        ("hit-2", "needle"),
    ]
    assert 'href="#hit-1">First hit' in page and '<details class="thoughts" open>' in page
    without = client.get("/runs/small/episodes/small-e0-0").text
    assert "<mark" not in without and '<details class="thoughts">' in without
    other = client.get("/runs/small/episodes/small-e0-0?text=needle&agent=prover").text
    assert "no hits for needle in what the prover wrote" in " ".join(text_of(other).split())


def test_a_text_with_markup_is_found_and_marked_as_text(odd):
    client = client_of(odd)
    address = "/runs/small/episodes{}?text=%3Cscript%3E"
    for page in (client.get(address.format("")), client.get(address.format("/small-e0-1"))):
        assert re.search(r"<mark[^>]*>&lt;script&gt;</mark>alert\(1\)&lt;/script&gt;", page.text)
        assert "<script>alert" not in page.text


def test_texts_are_kept_in_a_file_without_a_name_and_never_in_the_run(odd, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in odd.rglob("*")}
    client = client_of(odd)
    assert len(rows_of(client.get("/runs/small/episodes?text=needle").text)) == 4
    # From now on a search does without the run's files.
    monkeypatch.setattr(StoredRollouts, "generations", lambda *_: pytest.fail("read again"))
    assert len(rows_of(client.get("/runs/small/episodes?text=leaf").text)) == 2
    assert [*tmp_path.iterdir()] == []
    assert {path: path.stat().st_mtime_ns for path in odd.rglob("*")} == before


def test_where_the_disk_is_full_texts_are_read_from_the_run_and_the_page_says_so(odd, monkeypatch):
    roomy = rows_of(client_of(odd).get("/runs/small/episodes?text=needle").text)
    monkeypatch.setattr(kept_calls, "_LEFT_FREE", 1 << 60)
    page = client_of(odd).get("/runs/small/episodes?text=needle").text
    assert rows_of(page) == roomy
    assert "less than 1 GB is free" in page


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=40), st.text(min_size=1, max_size=3))
@example("aaa", "aa")
@example("ſtraße K", "s")
@example("[a](b).*", ".*")
def test_marks_take_nothing_from_a_text(text, wanted):
    parts = split_text(text, find_pattern(wanted), 7)
    assert "".join(part.text for part in parts) == text
    hits = [part for part in parts if part.hit]
    assert [part.hit for part in hits] == [*range(8, 8 + len(hits))]
    assert all(len(part.text) == len(wanted) for part in hits)
    assert bool(hits) >= (wanted in text)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60), st.integers(5, 40))
def test_a_beginning_is_one_line_that_is_short_enough(text, most):
    line = shorten(text, most)
    assert len(line) <= most and not re.search(r"[\n\r\t\x00\x85\u2028]", line)


def test_letters_that_a_search_tells_apart_are_told_apart_by_marks():
    cased = [
        c for c in (*map(chr, range(0x580)), *"\u1e9e\u212a\u212b") if {c.lower(), c.upper()} != {c}
    ]
    letters, text = pa.array(cased), "".join(cased)
    for letter in cased:
        found = letters.filter(pc.match_substring(letters, letter, ignore_case=True))
        marked = [part.text for part in split_text(text, find_pattern(letter)) if part.hit]
        assert marked == found.to_pylist()
