"""Every page shows what the tables say, and nothing that a model wrote becomes markup."""

import html
import json
import re
from collections import Counter
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pytest
from viewing import HOSTILE, client_of, everything, rows_on, text_of

from nip_core.evaluation.invalid import invalid_line
from nip_core.evaluation.split_metrics import InvalidAnswers
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.showing.asked_chats import Place, render_chat_on_record
from nip_view.side_by_side import list_places

COMPARED = "/compare?a=small@0&b=small@2&split=test"
LINK = re.compile(r'(?:href|action)="(/[^"]*|\?[^"]*)"')


@pytest.fixture(scope="module")
def client(trained):
    return client_of(trained)


@pytest.fixture(scope="module")
def episodes(trained):
    run = RunStore(open_store(trained, read_only=True), "small")
    places = [
        (i, split) for i in range(3) for split in ("train", "test") if (i, split) != (2, "train")
    ]
    return [
        row
        for place in places
        for row in read_rollouts(run.store, run.rollouts(*place)).episodes.to_pylist()
    ]


def test_no_link_of_any_page_leads_nowhere(client):
    waiting, seen, kinds = ["/"], set(), Counter()
    while waiting:
        address = waiting.pop()
        kind = re.sub(r"[\w-]{16}", "KEY", address.partition("?")[0])
        if address in seen or kinds[kind] >= 12:
            continue
        seen.add(address)
        kinds[kind] += 1
        answer = client.get(address)
        assert answer.status_code == 200, address
        if address.startswith("/runs/small") and answer.headers["content-type"].startswith(
            "text/html"
        ):
            assert '<span class="status finished">finished</span>' in answer.text, address
        for link in map(html.unescape, LINK.findall(answer.text)):
            waiting.append(link if link.startswith("/") else address.partition("?")[0] + link)
    assert {"/runs/small/jobs", "/runs/small/matrix", "/pair"} <= kinds.keys()
    assert kinds["/runs/small/episodes/KEY"] == 12


def test_without_filters_every_episode_is_listed_once_failures_first(client, episodes):
    keys = everything(client, "/runs/small/episodes")
    assert sorted(keys) == sorted(row["key"] for row in episodes)
    wrong = {row["key"] for row in episodes if row["decision"] != row["y"]}
    assert {*keys[: len(wrong)]} == wrong


@pytest.mark.parametrize(
    ("asked", "holds"),
    [
        ({"verdict": "wrong"}, lambda row: row["decision"] != row["y"]),
        (
            {"verdict": "right", "split": "test"},
            lambda r: r["decision"] == r["y"] and r["split"] == "test",
        ),
        ({"iteration": "1", "label": "0"}, lambda row: row["iteration"] == 1 and row["y"] == 0),
        ({"mutation": "none"}, lambda row: row["mutation"] is None),
        ({"decision": "1", "outcome": "finished"}, lambda row: row["decision"] == 1),
        ({"problem": "CLAMP"}, lambda row: "clamp" in row["problem"]),
    ],
)
def test_a_filter_lists_those_that_it_names(client, episodes, asked, holds):
    expected = {row["key"] for row in episodes if holds(row)}
    assert expected
    assert {*everything(client, "/runs/small/episodes", **asked)} == expected


def test_a_text_is_found_in_messages_whatever_its_case(client, trained):
    run = RunStore(open_store(trained, read_only=True), "small")
    rows = read_rollouts(run.store, run.rollouts(0, "test")).generations.to_pylist()
    word = max(re.findall(r"[a-z]{5,}", rows[0]["text"]), key=len)
    expected = {row["episode"] for row in rows if word in row["text"].lower()}
    asked = {"iteration": "0", "split": "test", "text": word.upper()}
    assert {*everything(client, "/runs/small/episodes", **asked)} == expected


def test_the_matrix_has_each_problem_with_its_verdict_in_each_iteration(client, episodes):
    pages = [client.get(f"/runs/small/matrix?split=test&page={page}").text for page in (1, 2)]
    tests = [row for row in episodes if row["split"] == "test"]
    for row in tests:
        mark = "right" if row["decision"] == row["y"] else "wrong"
        assert re.search(
            rf'class="cell {mark}" href="/runs/small/episodes/{row["key"]}\?', pages[0]
        )
    cells = re.findall(r'<a class="cell (\w+)"', pages[0])
    assert len(cells) == len(tests)
    ends = [re.findall(r'<a class="cell (\w+)"', line)[-1] for line in pages[0].split("<tr>")[3:]]
    assert ends == sorted(ends, key=["wrong", "right"].index)


def test_a_heading_is_the_question_with_the_name_small_beside_it(client, episodes):
    row = next(row for row in episodes if row["split"] == "test" and row["iteration"] == 2)
    first = " ".join(row["question"].split())[:30]
    matrix = client.get(f'/runs/small/matrix?split=test&problem="{row["problem"]}"').text
    other = next(
        of for of in episodes
        if (of["split"], of["problem"], of["iteration"]) == ("test", row["problem"], 0)
    )  # fmt: skip
    pages = {
        "matrix": (matrix, r"<th scope=\"row\"><a [^>]*><bdi>(.*?)</bdi></a>"),
        "episode": (client.get(f"/runs/small/episodes/{row['key']}").text, r"<h1>(.*?)</h1>"),
        "pair": (
            client.get(f"/pair?a=small/{other['key']}&b=small/{row['key']}").text,
            r"<h1>(.*?)</h1>",
        ),
        "comparison": (
            client.get("/compare?a=small@0&b=small@2&split=test").text,
            rf"small/{row['key']}\"><bdi>(.*?)</bdi></a>",
        ),
    }
    for name, (page, pattern) in pages.items():
        heading = text_of(re.search(pattern, page, re.DOTALL)[1]).strip()
        assert heading.startswith(first) and len(heading) <= 80, (name, heading)
        assert f'<code class="name">{row["problem"]}</code>' in page, name
    for page, _ in (pages["episode"], pages["pair"]):
        assert first in re.search(r"<title>(.*?)</title>", page, re.DOTALL)[1]


def test_two_iterations_stand_side_by_side_with_changed_verdicts_first(client, episodes):
    by_place = {
        (row["iteration"], row["problem"]): row for row in episodes if row["split"] == "test"
    }
    problems = {problem for _, problem in by_place}
    rights = {
        p: [by_place[i, p]["decision"] == by_place[i, p]["y"] for i in (0, 2)] for p in problems
    }
    broken = {p for p, (before, after) in rights.items() if before and not after}
    mended = {p for p, (before, after) in rights.items() if after and not before}
    assert broken or mended
    page = client.get("/compare?a=small@0&b=small@2&split=test").text
    in_row = r'scope="row"><a href="/pair.*?<code class="name">([^<]+)</code>'
    listed = re.findall(in_row, page)
    assert {*listed} == problems
    said = text_of(page)
    assert f"{len(mended)} verdict" in said
    assert f" became right, {len(broken)} became wrong." in said
    assert f"On the {len(problems)} episodes that both have:" in said
    backward = text_of(client.get("/compare?a=small@2&b=small@0&split=test").text)
    alone = f"{len(broken)} in small@0 alone, {len(mended)} in small@2 alone."
    assert alone in backward and "became right" not in backward
    assert {*listed[: len(broken)]} == broken
    assert {*listed[len(broken) : len(broken) + len(mended)]} == mended
    for number in (0, 999):  # a page that is not there is the nearest one
        other = client.get(f"/compare?a=small@0&b=small@2&split=test&page={number}").text
        assert re.findall(in_row, other) == listed


def test_what_differs_on_many_episodes_needs_no_file_and_more_is_said_when_asked(
    client, monkeypatch
):
    address = "/compare?a=small@0&b=small@2&split=test"
    few = client.get(address).text
    monkeypatch.setattr("nip_view.side_by_side.MOST_READ", 19)
    many = client.get(address).text
    (more,) = re.findall(r'href="([^"]*follows=1[^"]*)"', many)
    assert "follows=1" not in few
    said = [
        re.findall(r"<li>(The verifier|It|\d+ verdicts) (.*?)</li>", page) for page in (few, many)
    ]
    assert len(said[1]) == 3 and said[0][-3:] == said[1]
    assert "follows=1" in client.get(f"/compare{html.unescape(more)}").text


def test_a_run_and_its_report_say_the_same_of_the_first_test_and_the_last(client, trained):
    report = (trained / "small" / "report.html").read_text(encoding="utf-8")
    said = [
        re.search(r"<p>(Iteration 2 beside iteration 0, .*?)</ul>", page, re.DOTALL)[1]
        for page in (report, client.get("/runs/small").text)
    ]
    assert said[0] == said[1]
    assert "The verifier accepts in" in text_of(said[0]) and " became wrong." in said[0]


def test_of_every_run_iterations_can_be_compared_however_long_others_are():
    tables = {
        run: pa.table({"split": ["test"] * count, "iteration": pa.array(range(count), pa.int32())})
        for run, count in {"a": 250, "b": 250, "c": 3}.items()
    }
    places = list_places(tables, "test")
    assert {"a@0", "a@249", "b@0", "b@249", "c@0", "c@1", "c@2"} <= {*places}
    assert len(places) <= 400


def test_what_is_compared_stays_chosen_where_the_menu_does_not_have_it(client):
    # The last iteration has a test alone.
    page = client.get("/compare?a=small@2&b=small@0&split=train").text
    assert "<option selected>small@2</option>" in page
    assert "<option selected>small@0</option>" in page


def links(page, path):
    return [html.unescape(link) for link in re.findall(rf'href="({path}[^"]*)"', page)]


def test_a_pair_leads_back_to_its_comparison_and_to_its_neighbours(client):
    for kind in ("", "&kind=same"):
        pairs = links(client.get(COMPARED + kind).text, "/pair")
        assert len(pairs) > 2
        for place in (0, 1, len(pairs) - 1):
            page = client.get(pairs[place]).text
            (back,) = links(page, "/compare.a")
            assert {*back.partition("?")[2].split("&")} == {
                *(COMPARED + kind).partition("?")[2].split("&")
            }
            for name, step in (("before", -1), ("after", 1)):
                found = re.findall(rf'<a data-{name} href="([^"]*)"', page)
                there = pairs[place + step : place + step + 1] if place + step >= 0 else []
                assert [*map(html.unescape, found)] == there


def test_an_episode_stands_beside_the_nearest_with_another_verdict_and_is_led_back_to(
    client, episodes
):
    asked, seen = "?split=test&sort=problem", set()
    tests = [row for row in episodes if row["split"] == "test"]
    for row in tests[:30]:
        episode = f"/runs/small/episodes/{row['key']}{asked}"
        (link,) = links(client.get(episode).text, "/pair")
        named = dict(parse_qsl(urlsplit(link).query))
        own, other = ("a", "b") if named["side"] == "a" else ("b", "a")
        assert named[own] == f"small/{row['key']}"
        plays = {
            f"small/{of['key']}": (of["iteration"], of["decision"] == of["y"])
            for of in tests
            if (of["problem"], of["sample"]) == (row["problem"], row["sample"])
        }
        (at, is_right), (there, is_other_right) = plays.pop(named[own]), plays[named[other]]
        assert (at < there) == (own == "a")
        changed = [abs(i - at) for i, is_good in plays.values() if is_good != is_right]
        assert abs(there - at) == min(changed) if changed else there == max(plays.values())[0]
        seen.add((bool(changed), is_other_right))
        back = links(client.get(link).text, "/runs/small/episodes")
        assert [f"/runs/small/episodes{asked}", episode] == back[:2]
    assert len(seen) > 2


def test_a_pair_shows_its_problem_once_and_the_same_words_unmarked(client):
    page = client.get(links(client.get(f"{COMPARED}&kind=same").text, "/pair")[0]).text
    assert len(re.findall(r"<h2 class=\"label\">Solution</h2>", page)) == 1
    for side in re.findall(r"<article.*?</article>", page, re.DOTALL):
        assert ("same in both" in side) == ("<mark" not in side)


def test_what_a_model_wrote_is_text_also_where_it_is_marked(scripted):
    client = client_of(scripted[0])
    keys = re.findall(r"/episodes/([\w-]{16})", client.get("/runs/scripted/episodes").text)
    address = f"/pair?a=scripted/{keys[0]}&b=scripted/{keys[-1]}"
    page = client.get(address)
    assert page.status_code == 200
    assert "<script>alert" not in page.text and "<img" not in page.text
    assert "<script>alert(1)</script>" in text_of(page.text)


def test_an_address_of_a_pair_with_an_unknown_part_says_what_there_is(client):
    (pair, *_) = links(client.get(COMPARED).text, "/pair")
    assert client.get(f"{pair}&side=c").status_code == 400
    assert client.get(f"{pair}&side=a&list=to%3D//example.org").status_code == 400
    for wrong in (f"{pair}&kind=better", f"{pair}&sort=kind"):
        answer = client.get(wrong)
        assert answer.status_code == 400
        assert "broken, mended" in answer.text or "a, b, kind, side" in answer.text


def test_what_was_asked_is_what_was_sent_word_for_word(scripted):
    store, bodies = scripted
    client = client_of(store)
    shown = Counter()
    for key in everything(client, "/runs/scripted/episodes"):
        page = client.get(f"/runs/scripted/episodes/{key}?tab=asked").text
        for turn in page.split('<section class="asked"')[1:]:
            chat = re.findall(
                r'<div class="chat (system|user|assistant)">.*?<p class="prose">(.*?)</p></div>',
                turn,
                re.DOTALL,
            )
            shown[json.dumps([[role, html.unescape(text)] for role, text in chat])] += 1
    sent = Counter(
        json.dumps([[m["role"], m["content"]] for m in body["messages"]]) for body in bodies
    )
    assert sum(sent.values()) > 40
    assert shown == sent


def test_what_a_model_wrote_is_text_and_no_markup(scripted):
    client = client_of(scripted[0])
    for tab in ("", "asked"):
        key = everything(client, "/runs/scripted/episodes")[0]
        page = client.get(f"/runs/scripted/episodes/{key}?tab={tab}").text
        assert HOSTILE in html.unescape(page)
        assert "<img" not in page and "alert(1)</script>" not in page
        assert re.findall(r"<script[^>]*>", page) == [
            tag for tag in re.findall(r"<script[^>]*>", page) if 'src="/static/' in tag
        ]
    hostile = "<script>alert(3)</script>"
    for address in (
        f"/runs/scripted/episodes?text={hostile}",
        f"/runs/{hostile}",
        f"/?x={hostile}",
    ):
        assert hostile not in client.get(address).text


def test_invalid_answers_and_the_calibration_of_the_scale_are_shown(scripted):
    store, _ = scripted
    run = RunStore(open_store(store, read_only=True), "scripted")
    tables = read_rollouts(run.store, run.rollouts(0, "test"))
    rows = tables.generations.to_pylist()
    invalid = {row["episode"] for row in rows if row["invalid_reason"] is not None}
    client = client_of(store)
    assert {*everything(client, "/runs/scripted/episodes", invalid="1")} == invalid != set()
    page = text_of(client.get(f"/runs/scripted/episodes/{min(invalid)}").text)
    assert "invalid answer, attempt 1" in page
    # A verdict of 8 of 10 says 80 %; the page says how often it was right.
    decided = [r for r in tables.episodes.to_pylist() if r["outcome"] == "finished"]
    eight = [row["y"] for row in decided if abs(row["decision_value"] - 0.6) < 1e-9]
    overview = text_of(client.get("/runs/scripted").text)
    shown = re.search(r"80\.0\s%\s+([\d.]+)\s%.*?\s(\d+)\s", overview, re.DOTALL)
    assert shown, "no calibration"
    assert float(shown[1]) == pytest.approx(100 * sum(eight) / len(eight), abs=0.06)
    brier = sum(((r["decision_value"] + 1) / 2 - r["y"]) ** 2 for r in decided) / len(decided)
    assert f"Brier score {brier:.3f}" in overview


def test_invalid_answers_are_counted_by_reason_in_metrics_report_and_overview(scripted):
    store, bodies = scripted
    run = RunStore(open_store(store, read_only=True), "scripted")
    rows = read_rollouts(run.store, run.rollouts(0, "test")).generations.to_pylist()
    first = [row for row in rows if row["attempt"] == 0 and row["invalid_reason"] is not None]
    counted = run.read_json(run.metrics(0, "test"))["invalid_answers"]
    assert counted["invalid"] == len(first) > 0
    assert sum(counted["by_reason"].values()) == len(first)
    line = invalid_line(InvalidAnswers.model_validate(counted))
    said = f"{line[0].upper()}{line[1:]}."
    assert said in text_of(client_of(store).get("/runs/scripted").text)
    assert html.escape(said) in run.store.get(f"{run.root}/report.html").decode()
    # Who was asked again was told so, and `nip prompt` shows it.
    hinted = [b for b in bodies if b["messages"][-1]["content"].startswith("Your answer to this")]
    assert len(hinted) == sum(row["attempt"] > 0 for row in rows)
    episodes = read_rollouts(run.store, run.rollouts(0, "test")).episodes["key"].to_pylist()
    number = episodes.index(first[0]["episode"])
    place = Place(first[0]["agent"], first[0]["round"], str(number), split="test")
    asked = render_chat_on_record(run, place)
    again = [answer["asked_again"] for answer in asked.answers]
    assert again[0].startswith("Your answer to this") and again[-1] is None


def test_the_confusion_counts_the_verdicts_and_leads_to_them(client, episodes):
    page = client.get("/runs/small?split=test&iteration=0").text
    first = [row for row in episodes if (row["split"], row["iteration"]) == ("test", 0)]
    links = re.findall(r'href="(/runs/small/episodes\?[^"]*label=[^"]*)">(\d+)</a>', page)
    assert sum(int(count) for _, count in links) == len(first)
    for link, count in links:
        assert len(rows_on(client.get(html.unescape(link)).text)) == int(count)


def test_a_page_asks_for_nothing_but_what_the_viewer_itself_serves(client):
    for address in ("/", "/runs/small", "/runs/small/jobs"):
        page = client.get(address).text
        assert not re.search(r'(?:src|href|action)="(?!/|\?|#)', page)
        assert "style=" not in page and not re.search(r"\son\w+=", page)
    for name in re.findall(r'"(/static/[^"]+)"', client.get("/").text):
        assert client.get(name).status_code == 200


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/runs/small/episodes?colour=red", 400, "no such filter"),
        ("/runs/small/episodes?verdict=blue", 400, "use one of wrong, right"),
        ("/runs/small/episodes?iteration=x", 400, "a number was expected"),
        ("/runs/small/episodes?p_from=.9&p_to=0.1", 400, "p_from=.9 is above p_to=0.1"),
        ("/runs/small?split=nowhere", 400, "there are test, train"),
        ("/runs/small/episodes/0123456789abcdef", 404, "there is no episode"),
        ("/runs/nowhere", 404, "there is no run"),
        ("/runs/..%2f..%2fetc", 404, "Not there"),
        ("/static/1/..%2f..%2fapp.py", 404, "Not there"),
        ("/compare?a=small@0&b=nowhere@1", 404, "there is no run"),
        ("/nowhere", 404, "no such page"),
    ],
)
def test_an_address_that_asks_for_what_is_not_there_is_told_so(client, address, status, words):
    answer = client.get(address)
    assert answer.status_code == status
    assert words in text_of(answer.text)
