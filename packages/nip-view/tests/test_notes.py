"""Notes and stars are kept beside a run: nobody's words are lost, and the run does not notice."""

import asyncio
import html
import json
import re
import shutil
import threading
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from viewing import client_of, everything, rows_on

from nip_core import run
from nip_core.errors import CorruptionError, SettingsError
from nip_core.records.rewinds import rewind
from nip_core.run_store.lease import acquire
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.showing.episodes.notes import MOST_CHARACTERS, RunNotes
from nip_core.upkeep.verify import verify_run
from nip_verify.whole import summarise_check
from nip_view.parts.run_index import RunIndex

TOKEN = "the-token-of-this-test"
LIST = "/runs/small/episodes?split=test&verdict=wrong"
FROM_HERE = {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def store(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "runs", ignore=shutil.ignore_patterns("lm_server"))


@pytest.fixture
def client(store):
    client = client_of(store, token=TOKEN)
    client.get(f"/?token={TOKEN}")  # which becomes a cookie
    return client


def form_of(page, key):
    """Where the form of an episode sends, and what it sends by itself."""
    form = re.search(
        rf'<form class="noting" method="post" action="([^"]*/{key}/note[^"]*)".*?</form>',
        page,
        re.S,
    )
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form[0]))
    fields["note"] = html.unescape(
        re.search(r"<textarea[^>]*>\n(.*?)</textarea>", form[0], re.S)[1]
    )
    return html.unescape(form[1]), fields


def send(client, page, key, **changed):
    action, fields = form_of(page, key)
    return client.post(
        action, data={**fields, **changed}, headers=FROM_HERE, follow_redirects=False
    )


def episodes_of(store):
    index = RunIndex(RunStore(open_store(store, read_only=True), "small")).refresh()
    return index.take(range(index.table.num_rows))


def test_a_star_and_a_note_are_shown_found_and_taken_away(client, store):
    page = client.get(LIST).text
    first, second, *_ = rows_on(page)
    answer = send(client, page, first, star="1")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{LIST}#e-{first}")
    opened = f"/runs/small/episodes/{second}?split=test&verdict=wrong&tab=asked"
    words = "Reads the code,\nnot the question </textarea><b>=1+1"
    answer = send(client, client.get(opened).text, second, note=words.replace("\n", "\r\n"))
    assert (answer.status_code, answer.headers["location"]) == (303, f"{opened}#note")
    # 1. On both pages, as text.
    for address in (opened, LIST):
        page = client.get(address).text
        assert form_of(page, second)[1]["note"] == words
        assert "</textarea><b>" not in page
    assert re.search(rf'form="note-of-{first}" [^>]*aria-pressed="true"', page)
    assert re.search(rf'form="note-of-{second}" [^>]*aria-pressed="false"', page)
    # 2. By filters.
    assert everything(client, "/runs/small/episodes", noted="starred") == [first]
    assert everything(client, "/runs/small/episodes", noted="note") == [second]
    assert {*everything(client, "/runs/small/episodes", noted="any")} == {first, second}
    assert everything(client, "/runs/small/episodes", note="NOT the question") == [second]
    # 3. In files and in Python.
    lines = client.get("/runs/small/episodes.jsonl?noted=any&sort=played").text.splitlines()
    taken = {row["key"]: (row["star"], row["note"]) for row in map(json.loads, lines)}
    assert taken == {first: (True, ""), second: (False, words)}
    assert words in html.unescape(client.get("/runs/small/episodes.csv?noted=note").text)
    small = run("small", store=str(store))
    assert {row["key"]: (row["star"], row["note"]) for row in small.notes.to_pylist()} == taken
    assert [row.note for row in small.where(noted="note").rows] == [words]
    # 4. Away again.
    send(client, client.get(LIST).text, first, star="0")
    send(client, client.get(LIST).text, second, note=" ")
    assert run("small", store=str(store)).notes.num_rows == 0


def test_where_notes_are_taken_their_filters_are_there_before_the_first(client, store):
    assert 'name="noted"' in client.get(LIST).text
    assert 'name="noted"' not in client_of(store).get(LIST).text


def test_verifying_says_the_same_with_notes_and_without(client, store):
    small = RunStore(open_store(store), "small")
    before = summarise_check(verify_run(small))
    key = rows_on(client.get(LIST).text)[0]
    assert send(client, client.get(LIST).text, key, star="1", note="x").status_code == 303
    assert small.store.exists(small.notes)
    assert summarise_check(verify_run(small)) == before
    assert before["problems"] == []


def test_notes_are_written_while_somebody_runs_the_run_and_stay_when_it_is_rewound(store):
    small = RunStore(open_store(store), "small")
    last = next(row for row in episodes_of(store) if (row.split, row.iteration) == ("test", 2))
    with acquire(small.store, small.root) as lease:
        RunNotes(small).write(last, note="before the rewind")
        lease.check()
        rewind(small, lease, 2, "test", token="t")
    notes = RunNotes(RunStore(open_store(store, read_only=True), "small")).read()
    assert notes[last.key].note == "before the rewind"
    assert last.key not in {row.key for row in episodes_of(store)}
    # Played again it has the same key; that it is another play can be told.
    assert notes[last.key].is_of(last)
    RunNotes(small).write(replace(last, completion_tokens=1), star=True)
    notes = RunNotes(small).read()
    assert notes[last.key].star and notes[last.key].is_of(last)  # the words are of before
    assert not notes[last.key].is_of(replace(last, completion_tokens=last.completion_tokens + 1))


def test_two_viewers_at_once_lose_nothing(store):
    shared, *rows = episodes_of(store)[:21]
    writers = [RunNotes(RunStore(open_store(store, read_only=True), "small")) for _ in range(2)]

    def write(number):
        for row in rows[number::2]:
            writers[number].write(row, star=True, note=f"by {number}")
            writers[number].write(shared, note=f"{number}: {row.key}", read_mark="another")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    noted = writers[0].read()
    assert {row.key for row in (shared, *rows)} == noted.keys()
    assert all(noted[row.key].star for row in rows)
    # Of notes on one episode, written without having seen each other, all stand there.
    for number in range(2):
        for row in rows[number::2]:
            assert f"{number}: {row.key}" in noted[shared.key].note


def test_a_note_that_was_written_meanwhile_is_not_overwritten(client):
    page = client.get(LIST).text
    key = rows_on(page)[0]
    assert send(client, page, key, note="mine").status_code == 303
    answer = send(client, page, key, note="yours")  # from the same old page
    assert answer.status_code == 303
    both = "Somebody else had written meanwhile; both texts stand here."
    back = client.get(answer.headers["location"]).text
    assert back.count(both) == 1 and both in back[back.index(f'id="e-{key}"') :]
    opened = f"/runs/small/episodes/{key}?split=test"
    assert both in client.get(f"{opened}&joined={key}").text
    assert both not in client.get(opened).text and "joined" not in form_of(back, key)[0]
    assert form_of(client.get(LIST).text, key)[1]["note"] == "mine\n\nyours"
    answer = send(client, client.get(LIST).text, key, note="ours")
    assert answer.headers["location"] == f"{LIST}#e-{key}"
    assert form_of(client.get(LIST).text, key)[1]["note"] == "ours"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://127.0.0.1"}, 303),
        ({"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}, 303),
        ({}, 303),
        ({"Origin": "null", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://example.org"}, 403),
        ({"Origin": "http://127.0.0.1:8000"}, 403),
        ({"Origin": "https://127.0.0.1"}, 403),  # of another server at this name
        ({"Origin": "http://[::1"}, 403),
        ({"Origin": "http://127.0.0.1/x"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Host": "example.org"}, 421),
    ],
)
def test_only_pages_of_this_viewer_write_notes(client, store, headers, status):
    page = client.get(LIST).text
    action, fields = form_of(page, rows_on(page)[0])
    answer = client.post(
        action, data={**fields, "star": "1"}, headers=headers, follow_redirects=False
    )
    assert answer.status_code == status
    assert run("small", store=str(store)).notes.num_rows == (status == 303)


def test_without_the_token_or_the_form_nothing_is_written(client, store):
    page = client.get(LIST).text
    action, fields = form_of(page, rows_on(page)[0])
    stranger = client_of(store, token=TOKEN)
    assert stranger.post(action, data=fields).status_code == 401
    assert stranger.post(f"{action}&token={TOKEN}", data=fields).status_code == 401
    for form in ("", "0" * 64, TOKEN):
        assert client.post(action, data={**fields, "form": form}).status_code == 403
    for header in ("Basic zzz", "Bearer zzz", f"Basic {TOKEN}", f"{TOKEN}", ""):
        answer = client.post(action, data={**fields, "form": ""}, headers={"Authorization": header})
        assert answer.status_code == 403
    long = {**fields, "note": "n" * (MOST_CHARACTERS + 1)}
    assert client.post(action, data=long).status_code == 403
    assert client.post(action, data={**fields, "note": "n" * 200_000}).status_code == 413
    assert client.post(action, content=iter([b"note=1"])).status_code == 411
    assert client.post(action, data={**fields, "star": "7"}).status_code == 403
    assert client.post(action.replace("/note", "/nothing"), data=fields).status_code == 405
    there = action.replace(rows_on(page)[0], "0123456789abcdef")
    assert client.post(there, data=fields).status_code == 404
    assert run("small", store=str(store)).notes.num_rows == 0


def test_a_program_with_the_token_writes_without_a_form(store):
    program = client_of(store, token=TOKEN)
    key = episodes_of(store)[0].key
    answer = program.post(
        f"/runs/small/episodes/{key}/note",
        data={"star": "1", "note": "by a program"},
        headers={"Authorization": f"Bearer {TOKEN}"},
        follow_redirects=False,
    )
    assert answer.status_code == 303
    assert run("small", store=str(store)).notes["note"].to_pylist() == ["by a program"]


def post_by_hand(store, messages, **headers):
    """What a server gets that passes a request on as it came, in these messages."""
    key, statuses = episodes_of(store)[0].key, []
    named = {"host": "127.0.0.1", "authorization": f"Bearer {TOKEN}", **headers}
    scope = {
        **{"type": "http", "method": "POST", "query_string": b""},
        "path": f"/runs/small/episodes/{key}/note",
        "headers": [(n.replace("_", "-").encode(), v.encode()) for n, v in named.items()],
    }

    async def receive():
        return messages.pop(0)

    async def send(message):
        statuses.append(message.get("status"))

    asyncio.run(client_of(store, token=TOKEN).app(scope, receive, send))
    assert run("small", store=str(store)).notes.num_rows == 0
    return statuses[0]


def test_who_hangs_up_writes_nothing_and_leaves_no_error(store):
    half = {"type": "http.request", "body": b"note=hal", "more_body": True}
    assert post_by_hand(store, [half, {"type": "http.disconnect"}], content_length="100") == 400


def test_a_length_that_is_not_that_of_the_body_is_refused_unread(store):
    headers = {"content_length": "6", "transfer_encoding": "chunked"}
    assert post_by_hand(store, [], **headers) == 411


def test_the_way_back_leads_to_no_other_site(client):
    key = rows_on(client.get(LIST).text)[0]
    _, fields = form_of(client.get(LIST).text, key)
    for end in ("?to=//example.org", "?to=list&x=//example.org", "?split=https://example.org"):
        answer = client.post(
            f"/runs/small/episodes/{key}/note{end}", data=fields, follow_redirects=False
        )
        back = urlsplit(answer.headers["location"])
        assert (back.scheme, back.netloc) == ("", "")
        assert back.path.startswith("/runs/small/episodes")


def test_a_viewer_without_a_token_shows_notes_and_takes_none(client, store):
    page = client.get(LIST).text
    key = rows_on(page)[0]
    send(client, page, key, star="1", note="to be read")
    everybody = client_of(store)
    page = everybody.get(LIST).text
    assert "to be read" in page and 'method="post"' not in page
    assert (
        "No notes are taken: nip view was started with --no-token"
        in everybody.get(f"/runs/small/episodes/{key}").text
    )
    assert everybody.post(f"/runs/small/episodes/{key}/note", data={}).status_code == 403


def test_damaged_notes_are_named_and_nothing_is_added_to_them(client, store):
    path = store / "small/notes.jsonl"
    key = rows_on(client.get(LIST).text)[0]
    send(client, client.get(LIST).text, key, note="whole")
    action, fields = form_of(client.get(LIST).text, key)
    path.write_bytes(path.read_bytes() + b'{"key": 7}\n')
    before = path.read_bytes()
    page = client.get(LIST).text
    assert "small/notes.jsonl, line 2: no note" in page and rows_on(page)
    assert client.get(f"/runs/small/episodes/{key}").status_code == 200
    assert client.post(action, data={**fields, "note": "more"}).status_code == 503
    # Rows without notes would look like rows of which nobody has noted anything.
    refused = client.get("/runs/small/episodes.csv")
    assert refused.status_code == 503 and "small/notes.jsonl, line 2" in refused.text
    assert path.read_bytes() == before
    with pytest.raises(CorruptionError, match="line 2"):
        _ = run("small", store=str(store)).notes


def test_a_store_that_can_not_be_written_says_so(store):
    place = store / "small" / "notes.jsonl"
    place.mkdir()  # nothing can be written there, whoever asks
    client = client_of(store, token=TOKEN)
    client.get(f"/?token={TOKEN}")
    page = client.get(LIST)
    assert page.status_code == 200 and "notes.jsonl" in page.text


def test_too_long_a_note_is_refused_with_its_length(store):
    notes = RunNotes(RunStore(open_store(store, read_only=True), "small"))
    with pytest.raises(SettingsError, match=r"10,001 characters; at most 10,000"):
        notes.write(episodes_of(store)[0], note="n" * 10_001)
