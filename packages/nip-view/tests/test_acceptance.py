"""P(accept) and the tokens of answers on the pages of the viewer."""

import math
import re
import shutil

import pytest
from handmade import Rollouts
from stored_rows import typed_tables
from viewing import HOSTILE, client_of, text_of

import nip_core
from nip_core.errors import SettingsError
from nip_core.rollouts.storage.tables import commit_shard, join_shards
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_view.app import templates
from nip_view.parts.token_chances import write_closely

SAID = {
    # y, decision, P(accept); in the order of "confident and wrong first"
    "sure and wrong": (0, 1, 0.98),
    "wrong": (1, 0, 0.3),
    "wrong by a hair": (0, 1, 0.55),
    "right, hardly": (1, 1, 0.6),
    "right": (0, 0, 0.1),
    "not known": (1, 0, None),
}
TOKENS = [
    {"token": "Decision:", "logprob": 0.0, "top": []},
    {
        "token": "\n" + HOSTILE,
        "logprob": math.log(0.25),
        "top": [{"token": " accept", "logprob": math.log(0.5)}],
    },
]


@pytest.fixture(scope="module")
def client(trained, tmp_path_factory):
    """A store with one test of six episodes, of which five have a P(accept)."""
    folder = tmp_path_factory.mktemp("judged")
    rollouts = Rollouts("small")
    for i, (y, decision, p) in enumerate(SAID.values()):
        words = "Decision: accept" if decision else "Decision: reject"
        rollouts.add(i, y, ["Is it?", "It is.", words], (0.0, 1.0))
        rollouts.episodes[-1]["decision"] = decision
        rollouts.generations[-1] |= {"decision": decision, "p_accept": p}
    rollouts.generations[2]["token_logprobs"] = TOKENS
    (folder / "small").mkdir()
    shutil.copy(trained / "small/run.json", folder / "small/run.json")
    store = open_store(folder)
    directory = RunStore(store, "small").rollouts(0, "train")
    tables = typed_tables(rollouts.episodes, rollouts.generations)
    commit_shard(store, directory, "0000", tables)
    join_shards(store, directory, ["0000"])
    client = client_of(folder)
    client.keys = dict(zip(SAID, tables.episodes["key"].to_pylist(), strict=True))
    client.folder = folder
    return client


def listed(client, **asked):
    page = client.get("/runs/small/episodes", params=asked)
    assert page.status_code == 200, page.text
    names = {key: name for name, key in client.keys.items()}
    return [names[key] for key in re.findall(r'<tr role="row" id="e-([^"]+)"', page.text)]


def test_confident_and_wrong_verdicts_come_first_where_that_is_asked(client):
    assert listed(client, sort="confident") == list(SAID)
    found = nip_core.run("small", store=str(client.folder)).where(order="confident")
    assert found.episodes["key"].to_pylist() == [*client.keys.values()]


def test_the_least_sure_verdicts_come_first_where_that_is_asked(client):
    unsure = ["wrong by a hair", "right, hardly", "wrong", "right", "sure and wrong", "not known"]
    assert listed(client, sort="unsure") == unsure


def test_p_accept_is_a_filter_from_and_to(client):
    assert listed(client, sort="confident", p_from="0.55", p_to="0.6") == [
        "wrong by a hair",
        "right, hardly",
    ]
    assert listed(client, p_to="1", sort="confident") == list(SAID)[:5]
    for wrong in ("2", "x", "1e-3", "-1", "nan", "1.5"):
        page = client.get("/runs/small/episodes", params={"p_from": wrong})
        assert page.status_code == 400 and "from 0 to 1" in page.text
    with pytest.raises(SettingsError, match="p_from 2"):
        nip_core.run("small", store=str(client.folder)).where(p_from=2)


def test_the_list_and_the_deciding_turn_have_it_as_a_tag(client):
    page = client.get("/runs/small/episodes?sort=confident").text
    assert page.count("P(accept) 0.98") == 1 and page.count('class="chip p-accept"') == 5
    episode = text_of(client.get(f"/runs/small/episodes/{client.keys['wrong']}").text)
    assert episode.count("P(accept) 0.30") == 1
    without = client.get(f"/runs/small/episodes/{client.keys['not known']}").text
    assert 'class="chip p-accept"' not in without


def test_p_accept_near_its_ends_is_said_as_it_is(client):
    key = client.keys["sure and wrong"]
    for tab in ("", "?tab=asked"):
        [tag] = re.findall(
            r'class="chip p-accept" title="([^"]*)"',
            client.get(f"/runs/small/episodes/{key}{tab}").text,
        )
        assert tag.startswith("0.98: how likely")
    facts = " ".join(text_of(client.get(f"/runs/small/episodes/{key}?tab=facts").text).split())
    assert "P(accept) 0.98 " in facts
    said = {1.2345e-6: "1.2e-06", 0.99999876: "0.9999988", 0.5: "0.5", 0.0: "0", 1.0: "1"}
    assert {p: write_closely(p) for p in said} == said
    tag = templates().get_template("acceptance.html.jinja").module.tag
    assert ", namely 1.2e-06" in tag(1.2345e-6) and "namely" not in tag(0.98)


def test_what_was_asked_stands_open_where_the_answer_decided(client):
    key = client.keys["sure and wrong"]
    page = client.get(f"/runs/small/episodes/{key}?tab=asked").text
    *earlier, deciding = page.split('<section class="asked"')[1:]
    assert "decides: accept" in text_of(deciding) and "P(accept)" in deciding
    assert "<details open>" in deciding and "from its earlier turns" in deciding
    assert not any("decides" in of or "<details open>" in of for of in earlier)


def test_the_page_of_a_run_compares_it_with_the_labels(client):
    shown = client.get("/runs/small?split=train").text
    (chart,) = re.findall(r'<figure class="chart square">.*?</figure>', shown, re.DOTALL)
    lines = re.findall(r'<polyline( class="chance")? points', chart)
    assert {*lines} == {' class="chance"'}  # what lies between groups is not known
    page = text_of(shown)
    assert "Calibration of P(accept)" in page
    brier = sum((p - y) ** 2 for y, _, p in SAID.values() if p is not None) / 5
    assert "5 verdicts; calibration error" in page and f"Brier score {brier:.3f}" in page


def test_tokens_are_shown_with_their_probabilities_as_text(client):
    page = client.get(f"/runs/small/episodes/{client.keys['sure and wrong']}").text
    assert "<script>alert(1)" not in page
    shown = " ".join(text_of(page).split())
    assert "2 tokens with their probabilities" in shown
    assert "⏎<script>alert(1)</script>␣" in shown
    assert "0.25" in shown and "␣accept 0.50" in shown
    others = client.get(f"/runs/small/episodes/{client.keys['wrong']}").text
    assert "with their probabilities" not in others
