"""The rows of a list can be taken away: as files and by Python they are those that the list has."""

import csv
import html
import inspect
import io
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from hostile_run import FORMULAS, HALF, LONG, TEXTS, make_hostile
from hypothesis import given
from hypothesis import strategies as st
from viewing import client_of, everything, text_of

import nip_core
from nip_core.errors import SettingsError
from nip_core.run_store.store import open_store
from nip_core.showing.episodes.episode_filters import SORTS, EpisodeFilters
from nip_core.showing.episodes.episode_rows import ReadableEpisode, ReadableMessage
from nip_core.showing.episodes.row_formats import (
    CsvColumns,
    as_cell,
    without_guards,
    write_csv_lines,
)
from nip_core.showing.run_tables import RunTables
from nip_view.downloads import write_line
from nip_view.runs import ShownRuns

QUERIES = [
    {},
    {"split": "test", "iteration": "1", "sort": "tokens"},
    {"verdict": "wrong", "sort": "reward"},
    {"verdict": "not-right", "label": "0", "sort": "problem"},
    {"decision": "1", "outcome": "finished", "invalid": "0", "sort": "played"},
    {"problem": "CLAMP", "mutation": "none"},
    {"text": "the", "agent": "prover", "iteration": "0"},
    {"agent": "verifier", "round": "0", "split": "train"},
    {"sort": "confident", "split": "test"},
    {"verdict": "right", "text": "nowhere at all"},
]


@pytest.fixture(scope="module")
def client(trained):
    return client_of(trained)


def rows_of(client, address, **asked):
    answer = client.get(address, params=asked)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.content.splitlines()]


@pytest.mark.parametrize("asked", QUERIES, ids=lambda asked: "-".join(asked.values()) or "all")
def test_file_line_of_python_and_list_have_the_same_rows(client, asked):
    keys = everything(client, "/runs/small/episodes", **asked)
    rows = rows_of(client, "/runs/small/episodes.jsonl", **asked)
    assert [row["key"] for row in rows] == keys
    assert bool(keys) == (asked.get("text") != "nowhere at all")
    if not keys:
        return
    page = client.get("/runs/small/episodes", params=asked).text
    line = html.unescape(re.search(r"<code>(from nip_core import run.*?)</code>", page, re.S)[1])
    names = {}
    exec(line, names)
    assert "Run it in the folder" not in page  # as the line names the store
    assert [row.key for row in names["rows"]] == keys
    assert [row.note for row in names["rows"]] == [row["note"] for row in rows]
    found = eval(line.rpartition("rows = ")[2].removesuffix(".rows"), {"run": nip_core.run})
    assert found.episodes["key"].to_pylist() == keys
    assert {*found.generations["episode"].to_pylist()} == {*keys}


@pytest.mark.parametrize("text", ["it's", 'say "x"', "'\\\"", "\u202e\x01é😀\n", "{x}"])
def test_the_line_of_python_says_odd_texts_as_they_are(trained, text):
    shown = ShownRuns(open_store(trained, read_only=True)).get("small")
    filters = EpisodeFilters(split="test", problem=f'"{text}"', note=text, invalid=False, label=-1)
    line = write_line(shown, filters)
    assert line.isprintable()
    assert eval(line.removesuffix(".rows"), {"run": nip_core.run})._filters == filters


def test_each_filter_of_the_list_is_one_of_python():
    filters = [field.name for field in fields(EpisodeFilters)]
    where = inspect.signature(RunTables.where).parameters
    assert sorted(where) == sorted(["self", *filters])
    assert all(re.search(rf"\b{order}\b", RunTables.where.__doc__) for order in SORTS)


def test_a_row_has_all_that_the_tables_have_of_its_episode(client, trained):
    tables = nip_core.run("small", store=str(trained)).where(iteration=0, split="test")
    row = rows_of(client, "/runs/small/episodes.jsonl", iteration="0", split="test")[0]
    [episode] = tables.episodes.filter(pc.equal(tables.episodes["key"], row["key"])).to_pylist()
    generations = tables.generations
    calls = generations.filter(pc.equal(generations["episode"], row["key"])).to_pylist()
    said = [(c["round"], c["agent"], c["text"], c["model_served"]) for c in calls]
    assert [(m["round"], m["agent"], m["text"], m["model"]) for m in row["messages"]] == said != []
    assert row["rewards"] == {entry["agent"]: entry["reward"] for entry in episode["rewards"]}
    for name in ("question", "solution", "problem", "split", "iteration", "rounds", "seed"):
        assert row[name] == episode[name]
    assert row["label"] == episode["y"]
    assert (row["verdict"] == "right") == (episode["decision"] == episode["y"])
    assert row["prompt_tokens"] == sum(call["prompt_tokens"] for call in calls)


def test_a_row_has_what_the_agent_that_decided_was_asked(scripted):
    client, shown = client_of(scripted[0]), 0
    plain = rows_of(client, "/runs/scripted/episodes.jsonl")
    assert not any("asked" in row for row in plain)
    address = "/runs/scripted/episodes.csv?split=test"
    assert not any("asked" in row for row in read_csv(client.get(address)))
    asked = client.get(f"{address}&asked=yes")
    assert any(row["asked"] for row in read_csv(asked))
    assert 'filename="scripted-test-asked.csv"' in asked.headers["content-disposition"]
    for row in rows_of(client, "/runs/scripted/episodes.jsonl", asked="yes"):
        page = client.get(f"/runs/scripted/episodes/{row['key']}?tab=asked").text
        last = page.rpartition('<section class="asked"')[2]
        chat = re.findall(
            r'<div class="chat (system|user|assistant)">.*?<p class="prose">(.*?)</p></div>',
            last,
            re.DOTALL,
        )
        if row["decision"] != "no decision":
            shown += 1
            asked = [(message["role"], message["content"]) for message in row["asked"]]
            assert asked == [(role, html.unescape(text)) for role, text in chat]
    assert shown > 10


def test_filters_of_episodes_are_refused_by_tables_of_whole_splits(trained):
    small = nip_core.run("small", store=str(trained)).where(split="test", verdict="wrong")
    with pytest.raises(SettingsError, match=r"metrics are of whole .* know no verdict"):
        _ = small.metrics
    with pytest.raises(SettingsError, match="decision 'yes': use one of reject, accept"):
        small.where(decision="yes")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"invalid": "no"}, "invalid 'no': use True or False"),
        ({"invalid": 0}, "invalid 0: use True or False"),
        ({"p_from": "0.9"}, "p_from '0.9': use a probability, a number from 0 to 1"),
        ({"p_from": float("nan")}, "p_from nan: use a probability"),
        ({"p_to": True}, "p_to True: use a probability"),
        ({"p_from": 0.9, "p_to": 0.1}, "p_from 0.9 is above p_to 0.1"),
        ({"iteration": "2"}, "iteration '2': use a whole number"),
        ({"iteration": True}, "iteration True: use a whole number"),
        ({"round": 1.5}, "round 1.5: use a whole number"),
        ({"round": 2**80}, "use a number from 0 on"),
        ({"round": -1}, "round -1: use a number from 0 on"),
        ({"label": True}, "label True: use a whole number"),
        ({"label": 2}, "label 2: use 1 (right), 0 (wrong) or -1 (none)"),
        ({"split": 3}, "split 3: use a text"),
        ({"verdict": ["wrong"]}, "verdict ['wrong']: use a text"),
        ({"noted": True}, "noted True: use a text"),
        ({"text": b"a"}, "text b'a': use a text"),
        ({"text": "\ud800"}, "half of a pair"),
        ({"agent": "nobody"}, "agent 'nobody': there are prover, verifier"),
    ],
    ids=str,
)
def test_a_wrong_value_of_a_filter_is_named_with_what_it_may_be(trained, asked, words):
    with pytest.raises(SettingsError) as refused:
        nip_core.run("small", store=str(trained)).where(**asked)
    assert words in str(refused.value)


def test_numbers_of_a_notebook_are_numbers(trained):
    small = nip_core.run("small", store=str(trained))
    plain = small.where(0, label=1, invalid=False, round=1, p_from=0.0)
    arrays = {"iteration": np.int64(0), "label": np.int8(1), "invalid": np.False_}
    found = small.where(**arrays, round=np.int32(1), p_from=np.float32(0))
    assert found.episodes == plain.episodes
    whole = small.where(np.int64(0), label=np.int8(1)).episodes
    assert whole == small.where(0, label=1).episodes and whole.num_rows


def test_the_line_of_view_md_is_that_of_the_page_where_runs_are_in_runs(
    trained, tmp_path, monkeypatch
):
    page = (Path(__file__).parents[3] / "docs" / "view.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n(from nip_core import run\n.*?)```", page, re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "quickstart").symlink_to(trained / "small")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block, names)
    asked = {"split": "test", "verdict": "wrong"}
    client = client_of("runs")
    assert [row.key for row in names["rows"]] == everything(
        client, "/runs/quickstart/episodes", **asked
    )
    shown = html.unescape(client.get("/runs/quickstart/episodes", params=asked).text)
    assert block.strip() in shown
    # Elsewhere it is run with what the page says beside it.
    store = re.search(r"or put <code>(store=.*?)</code> behind", shown)[1]
    line = block.strip().rpartition("rows = ")[2].replace('"quickstart"', f'"quickstart", {store}')
    monkeypatch.chdir(tmp_path / "runs")
    assert eval(line, {"run": nip_core.run}) == names["rows"]


def test_pairs_of_a_comparison_are_taken_away_in_its_order(client):
    asked = {"a": "small@0", "b": "small@2", "split": "test"}
    page = client.get("/compare", params=asked).text
    shown = re.findall(r"/pair\?a=small/([\w-]{16})&amp;b=small/([\w-]{16})", page)
    rows = rows_of(client, "/compare.jsonl", **asked)
    assert [(row["a"]["key"], row["b"]["key"]) for row in rows] == shown != []
    assert {row["a"]["iteration"] for row in rows} == {0}
    table = read_csv(client.get("/compare.csv", params=asked))
    assert [(row["a_key"], row["change"]) for row in table] == [
        (row["a"]["key"], row["change"]) for row in rows
    ]
    broken = rows_of(client, "/compare.jsonl", **asked, kind="broken")
    assert broken == [row for row in rows if row["change"] == "broken"]


def test_a_file_has_a_name_and_a_look_at_it_reads_nothing(client, trained):
    address = "/runs/small/episodes.csv?split=test&verdict=wrong"
    for method in ("HEAD", "GET"):
        answer = client.request(method, address)
        assert answer.status_code == 200
        name = 'attachment; filename="small-test-wrong.csv"'
        assert answer.headers["content-disposition"] == name
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert client.head(address).content == b""
    assert client_of(trained, token="a token").get(address).status_code == 401
    assert client.get("/runs/small/episodes.xlsx").status_code == 404
    assert client.get("/runs/small/episodes.csv?colour=red").status_code == 400


# A hostile run


@pytest.fixture(scope="module")
def hostile(scripted, tmp_path_factory):
    return make_hostile(scripted[0], tmp_path_factory.mktemp("hostile") / "runs", "scripted")


def read_csv(answer):
    assert answer.status_code == 200, answer.text
    text = answer.content.decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


@pytest.fixture(scope="module")
def taken(hostile):
    csv.field_size_limit(1 << 24)
    client = client_of(hostile)
    address = "/runs/scripted/episodes"
    files = (rows_of(client, f"{address}.jsonl"), client.get(f"{address}.csv?asked=yes"))
    return *files, client


SIGNS = {"=", "+", "-", "@"}


def begins_formula(cell):
    """Whether a spreadsheet would take a cell for a formula, once it has passed over the rest."""
    bare = re.sub(r"^[\s\"]+", "", cell)[:1]
    return unicodedata.normalize("NFKC", bare) in SIGNS


def cells_anywhere(text):
    """All cells that readers of several countries, with quotation marks and without, would see."""
    for delimiter in ",;\t":
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
            how = {"delimiter": delimiter, "quoting": quoting}
            whole = csv.reader(io.StringIO(text, newline=""), **how)
            lines = ([*csv.reader([line], **how)] for line in re.split(r"[\r\n]+", text))
            yield from (cell for row in whole for cell in row)
            yield from (cell for rows in lines for row in rows for cell in row)
    yield from re.split(r"[,;\t\r\n]", text)


def test_a_spreadsheet_executes_nothing_of_a_hostile_run(taken):
    rows, answer, _ = taken
    table = read_csv(answer)
    assert [row["key"] for row in table] == [row["key"] for row in rows]
    numbers = {"decision_value", "p_accept"} | {n for n in table[0] if n.startswith("reward_")}
    for row in [{name: name for name in table[0]}, *table]:
        for name, cell in row.items():
            if name in numbers and name != cell:
                assert cell == "" or float(cell) is not None
            elif name != "key":
                assert not begins_formula(cell), (name, cell[:40])
    for cell in cells_anywhere(answer.content.decode("utf-8-sig").replace(LONG, "y")):
        is_number = re.fullmatch(r"-\d+(\.\d+)?", cell)
        is_key = re.fullmatch(r'"?-[\w-]{15}"?', cell)
        assert is_number or is_key or not begins_formula(cell), cell[:80]
    assert {row["question"] for row in table} >= {f"'{FORMULAS[0]}", "\t'=1+1"}
    codes = {c for c in answer.content.decode() if unicodedata.category(c) in ("Cc", "Cf", "Zl")}
    assert codes == {"\n", "\r", "\t", "\ufeff"}  # and of these carriage returns end rows alone
    assert answer.content.count(b"\r") == len(table) + 1 == answer.content.count(b"\r\n")


@given(st.lists(st.lists(st.text("=+-@',;\t\n\" a\uff1d", max_size=12), min_size=3, max_size=3)))
def test_wherever_a_reader_splits_no_text_begins_a_formula_and_each_comes_back(table):
    lines = write_csv_lines([[as_cell(text) for text in row] for row in table])
    written = b"".join(lines).decode()
    found = [cell for cell in cells_anywhere(written) if begins_formula(cell)]
    assert not found, (written, found[:3])
    read = csv.reader(io.StringIO(written, newline=""), strict=True)
    assert [[without_guards(cell) for cell in row] for row in read] == table


def test_a_key_joins_with_the_tables_and_what_is_no_key_is_guarded(client, trained):
    pandas = pytest.importorskip("pandas")
    row = rows_of(client, "/runs/small/episodes.jsonl", iteration="0", split="test")[0]
    row["messages"] = [ReadableMessage(**message) for message in row["messages"]]
    columns, keys = CsvColumns(with_asked=False), ["-AbC_d-efGh12345", "-1+cmd|' /C'!A0"]
    episodes = [ReadableEpisode(**{**row, "asked": None, "key": key}) for key in keys]
    for episode in episodes:
        columns.add(episode)
    head = [as_cell(name) for name in columns.names()]
    lines = b"".join(write_csv_lines([head, *map(columns.cells, episodes)]))
    read = pandas.read_csv(io.BytesIO(lines))
    assert read["key"].tolist() == [keys[0], f"'{keys[1]}"]
    # A file of the viewer joins with the tables, as docs/view.md says.
    answer = client.get("/runs/small/episodes.csv?split=test")
    played = nip_core.run("small", store=str(trained)).where(split="test")
    file = pandas.read_csv(io.BytesIO(answer.content))
    joined = file.merge(played.generations.to_pandas(), left_on="key", right_on="episode")
    assert len(joined) == played.generations.num_rows > 0
    duckdb = pytest.importorskip("duckdb")
    calls = played.generations  # noqa: F841, as the query names it
    found = duckdb.sql(
        "select file.key from file join calls on file.key = calls.episode"
    ).fetchall()
    assert len(found) == len(joined)


def test_rows_are_mappings_with_the_fields_that_a_line_of_json_has(client, trained):
    played = nip_core.run("small", store=str(trained)).where(iteration=0, split="test")
    [line, *_] = rows_of(
        client, "/runs/small/episodes.jsonl", iteration="0", split="test", sort="played"
    )
    row = next(row for row in played.rows if row["key"] == line["key"])
    assert isinstance(row, Mapping) and {**row}.keys() - {"asked"} == line.keys()
    assert row["question"] == row.question == line["question"] and row.get("nothing") is None
    assert [dict(message) for message in row["messages"]] == line["messages"]
    with pytest.raises(KeyError, match="there are key, run, iteration"):
        row["y"]
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = pandas.DataFrame(played.rows)
    assert [*frame.columns] == [*row] and frame["messages"][0][0].keys() == row.messages[0].keys()
    assert polars.DataFrame(played.rows).columns == [*row]
    assert row == replace(row)


def test_pandas_reads_a_hostile_file_with_numbers_as_numbers(taken):
    pandas = pytest.importorskip("pandas")
    rows, answer, _ = taken
    table = pandas.read_csv(io.BytesIO(answer.content), keep_default_na=False)
    assert list(table.columns)[:2] == ["key", "run"] and len(table) == len(rows)
    assert table["reward_prover"].dtype.kind == "f" and table["prompt_tokens"].dtype.kind == "i"
    assert table["star"].dtype.kind == "b"
    longest = max((m["text"] for row in rows for m in row["messages"]), key=len)
    assert longest == LONG


def test_lines_of_json_have_exactly_the_texts_and_no_other_line_ends(taken, hostile):
    rows, _, client = taken
    body = client.get("/runs/scripted/episodes.jsonl").content
    assert len(body.decode().splitlines()) == len(rows)
    tables = nip_core.run("scripted", store=str(hostile))
    episodes = {row["key"]: row for row in tables.episodes.to_pylist()}
    for row in rows:
        assert row["question"] == episodes[row["key"]]["question"]
        assert row["columns"]["=odd"] == HALF
    said = {text for text in tables.generations["text"].to_pylist()}
    assert {message["text"] for row in rows for message in row["messages"]} == said
    assert said >= {*TEXTS, LONG}


def test_hostile_texts_are_text_on_every_page(taken):
    rows, _, client = taken
    key = rows[0]["key"]
    other = rows[1]["key"]
    for address in (
        "/runs/scripted/episodes",
        "/runs/scripted/episodes?text=script",
        "/runs/scripted/matrix",
        f"/runs/scripted/episodes/{key}",
        f"/runs/scripted/episodes/{key}?tab=asked",
        f"/runs/scripted/episodes/{key}?tab=facts",
        f"/pair?a=scripted/{key}&b=scripted/{other}",
        "/compare?a=scripted@0&b=scripted@0",
    ):
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert "alert(1)</script>" not in answer.text and "<img" not in answer.text
        assert "</template>" not in answer.text
        assert not [
            tag for tag in re.findall(r"<script[^>]*>", answer.text) if "/static" not in tag
        ]
    assert "alert(1)" in text_of(client.get("/runs/scripted/episodes?text=script").text)


@pytest.mark.parametrize("value", [-1.5, 3, True, None])
def test_numbers_stay_numbers(value):
    assert as_cell(value) == {-1.5: "-1.5", 3: "3", True: "TRUE", None: ""}[value]


def test_the_lines_of_view_md_give_the_texts_of_a_csv_back(client, tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "view.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n(import csv\n.*?)```", page, re.DOTALL)
    asked = {"split": "test", "verdict": "wrong"}
    file = client.get("/runs/small/episodes.csv", params=asked).content
    (tmp_path / "quickstart-test-wrong.csv").write_bytes(file)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block, names)
    lines = rows_of(client, "/runs/small/episodes.jsonl", **asked)
    for name in ("key", "problem", "question", "solution"):
        assert [row[name] for row in names["rows"]] == [line[name] for line in lines] != []
