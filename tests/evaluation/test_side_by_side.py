"""benchmarks/side_by_side.py: what its stub counts, its statistics, its page. No peer runs here."""

import json
import sys
import urllib.request
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def on_the_path():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def ask(url, *texts):
    messages = [{"role": "user", "content": text} for text in texts]
    body = json.dumps({"model": "stub", "messages": messages}).encode()
    with urllib.request.urlopen(f"{url}/v1/chat/completions", body, timeout=30) as answer:
        return json.loads(answer.read())["choices"][0]["message"]["content"]


def test_the_stub_counts_calls_that_are_made_again_and_waits_for_a_new_one():
    from beside.stub import MARK, VERDICT, Stub

    with Stub(0.01, 3) as stub:
        first = ask(stub.url, "a game")
        assert MARK in first and MARK in ask(stub.url, "a game", first)
        assert ask(stub.url, "a game", first, first) == VERDICT
        stub.mark()
        ask(stub.url, "a game")
        assert stub.state()["new_answer_s"] is None
        ask(stub.url, "another game")
        state = stub.state()
    assert (state["begun"], state["different"], state["answered"]) == (5, 4, 5)
    assert state["new_answer_s"] > 0.01


def test_a_ratio_is_that_of_means_and_lies_in_its_interval():
    from beside.runs import ratio

    found = ratio([2.0, 4.0, 3.0], [1.0, 2.0, 2.0])
    assert found["ratio"] == 1.8 and found["low"] <= 1.8 <= found["high"] <= 2.0
    assert ratio([1.0, 5.0], [1.0, 5.0])["high"] == 1.0
    with pytest.raises(ValueError, match="got 1 and 2"):
        ratio([1.0], [1.0, 2.0])


def test_the_page_says_what_was_not_measured_and_that_a_machine_was_loaded():
    from beside.page import page

    machine = {"cores": 2, "python": "3.11", "load_before": 7.0, "load_after": 7.5}
    made = {"command": "c", "commit": "d", "took_s": 1.0, "machine": machine, "small": False}
    killed = {"in_flight": 8, "repeated": 9, "seconds_to_new_answer": 2.0}
    players = {
        "nip": {"versions": {"nip": "1"}, "0.5": [killed]},
        "peer": {"reason": "not built"},
    }
    size = {"games": 4, "turns": 9, "in_flight": 8, "latency_s": 0.25, "shares": [0.5]}
    text = page({"e": {**made, **size, "players": players, "absent": {}}})
    assert "| nip | 50% | 8 | 9 | 1 | 2.0 | 1 |" in text
    assert "- peer is not measured throughout: not built" in text
    assert "loaded by other programs" in text
