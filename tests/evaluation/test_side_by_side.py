"""benchmarks/side_by_side.py: what its stub counts, its statistics, its page. No peer runs here."""

import argparse
import json
import re
import shutil
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
    killed |= {"calls_per_s": 12.4, "bytes": 350_000}
    players = {
        "nip": {"versions": {"nip": "1"}, "0.5": [killed]},
        "peer": {"reason": "not built"},
    }
    size = {"games": 4, "turns": 9, "in_flight": 8, "latency_s": 0.25, "shares": [0.5]}
    text = page({"e": {**made, **size, "players": players, "absent": {}}})
    assert "| nip | 50% | 8 | 9 | 1 | 2.0 | 12 | 0.3 | 1 |" in text
    assert "- peer is not measured throughout: not built" in text
    assert "loaded by other programs" in text


def test_a_part_that_begins_with_the_load_of_the_one_before_it_was_not_measured_beside_others():
    from beside.page import mark_followers

    def parts(*loads, commit="d"):
        machines = ({"load_before": b, "load_after": a} for b, a in loads)
        return [{"command": "c", "commit": commit, "machine": machine} for machine in machines]

    def follows(*marked):
        mark_followers([*marked])
        return [part["machine"]["follows"] for part in marked]

    assert follows(*parts((0.4, 4.8), (4.8, 2.2), (2.2, 1.1))) == [False, True, True]
    # Another program may have gone on throughout, or have begun before a part.
    assert follows(*parts((3.0, 4.8), (4.8, 2.2))) == [False, False]
    assert follows(*parts((0.4, 0.5), (4.8, 2.2))) == [False, False]
    assert follows(*parts((2.0, 2.0))) == [False]
    assert follows(*parts((0.4, 4.8)), *parts((4.8, 2.2), commit="e")) == [False, False]


def test_rounds_that_lie_on_either_side_put_neither_ahead_in_serving():
    from beside.summary import table

    at = {"adapters": 0, "in_flight": 8}
    cell = "0 adapters, 8 in flight"
    rows = {
        "nip, embedded": {"cells": {cell: [{"tokens_per_s": 94.0}]}},
        "nip over vLLM": {"cells": {cell: [{"tokens_per_s": 60.0}]}},
        "vLLM": {"cells": {cell: [{"tokens_per_s": 78.0}]}},
    }
    ratio = {"of": "nip, embedded", "to": "vLLM", **at, "ratio": 1.2, "low": 0.95, "high": 1.4}
    part = {"model": "smollm2", "adapters": [0], "in_flight": [8], "rows": rows}
    assert table({"a": part | {"ratios": [ratio]}})[-1].endswith("| 78.0 (vLLM) | even |")
    sure = ratio | {"low": 1.1}
    other = ratio | {"of": "nip over vLLM"}
    assert table({"a": part | {"ratios": [sure, other]}})[-1].endswith("| 78.0 (vLLM) | nip |")


def test_a_run_of_locust_in_which_a_request_failed_is_no_measurement():
    from beside.load import figures_of
    from beside.runs import Failed

    counted = {"requests": 24, "failures": [], "requests_per_s": 5.5, "median_ms": 320.04}
    counted["p95_ms"] = 400.0
    figures = {"tokens_per_s": 176.0, "requests": 24, "median_ms": 320.0, "p95_ms": 400.0}
    assert figures_of(counted, 32) == figures
    with pytest.raises(Failed, match="31 tokens"):
        figures_of({**counted, "failures": ["31 tokens"]}, 32)
    with pytest.raises(Failed, match="nothing was answered"):
        figures_of({**counted, "requests": 0}, 32)


def test_models_are_asked_in_turn_with_prompts_that_differ():
    from beside.load import Server, Size, chats

    server, size = Server("http://h", "k", "base", ["x", "y", "z"]), Size(words=20)
    bodies = chats(server, 3, size, "seed")["bodies"]
    assert [body["model"] for body in bodies[:4]] == ["x", "y", "z", "x"]
    assert len({body["messages"][0]["content"] for body in bodies}) == len(bodies)
    assert {body["model"] for body in chats(server, 0, size, "seed")["bodies"]} == {"base"}
    assert chats(server, 3, size, "seed")["bodies"] == bodies


@pytest.mark.parametrize("pad", ["<|pad|>", "<|end|>"], ids=["a pad", "the end is the pad"])
def test_the_model_that_is_served_under_load_names_no_end(tmp_path, pad):
    from beside.models import endless

    from nip_core.models import BUNDLED

    model = shutil.copytree(BUNDLED["tiny"], tmp_path / "model")
    said = json.loads((model / "tokenizer_config.json").read_text())
    end = said["eos_token"]
    (model / "tokenizer_config.json").write_text(json.dumps(said | {"pad_token": pad}))
    place = endless(model, tmp_path / "endless")
    tokens = json.loads((place / "tokenizer.json").read_text())["added_tokens"]
    never = json.loads((place / "tokenizer_config.json").read_text())["eos_token"]
    assert never not in (end, *(["<|pad|>"] if pad == end else []))
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((place / name).read_text())
        assert {"id": settings["eos_token_id"], "content": never}.items() <= next(
            token for token in tokens if token["content"] == never
        ).items()
    assert end not in (place / "chat_template.jinja").read_text()


def test_a_model_that_is_not_there_is_refused_with_what_helps(tmp_path):
    from beside.models import find_model

    assert not find_model("tiny").is_large
    with pytest.raises(ValueError, match="nip models add"):
        find_model(str(tmp_path))


def test_the_page_of_serving_says_who_serves_no_adapters_and_compares_by_cells():
    from beside.load import key, ratios
    from beside.page import page

    def row(*speeds):
        figures = [{"tokens_per_s": speed} for speed in speeds]
        return {"refused": "", "cells": {key(0, 8): figures, key(3, 8): figures}}

    rows = {"nip, embedded": row(200.0, 220.0), "vLLM": row(100.0, 110.0)}
    rows["transformers serve"] = {"refused": "404", "cells": {key(0, 8): [{"tokens_per_s": 50.0}]}}
    found = ratios(rows, [(0, 8), (3, 8)])
    assert [(r["to"], r["adapters"], r["ratio"]) for r in found] == [
        ("vLLM", 0, 2.0),
        ("vLLM", 3, 2.0),
    ]
    machine = {"cores": 2, "python": "3.11", "load_before": 0.1, "load_after": 1.5}
    made = {"command": "c", "commit": "d", "took_s": 1.0, "machine": machine, "small": False}
    settings = {"tokens": 32, "words": 80, "run_s": 4.0, "lora_rank": 8}
    size = {"settings": settings, "in_flight": [8], "adapters": [0, 3], "versions": {"nip": "1"}}
    absent = {"peer": {"reason": "not built"}}
    text = page({"a": {**made, **size, "rows": rows, "absent": absent, "ratios": found}})
    assert "| nip, embedded | 210 | 210 |" in text and "| transformers serve | 50 |  |" in text
    assert "- transformers serve serves no adapters: 404" in text
    assert "- peer is not measured throughout: not built" in text


def test_the_shares_of_the_cores_tell_the_run_from_programs_of_low_priority():
    from side_by_side import shares

    parts = shares([10, 0, 0, 0, 0, 5], [40, 20, 10, 35, 5, 5])
    assert parts == {"user": 0.4, "low_priority": 0.2, "idle": 0.4}
    assert shares([], []) == {}


def test_the_table_at_the_head_says_where_another_one_is_ahead():
    from beside.summary import table

    def rounds(speed, seconds):
        return [{"tokens_per_s": speed, "whole_s": seconds}]

    rows = {"nip job": rounds(90.0, 2.0), "TRL": rounds(100.0, 2.02), "peer": rounds(10.0, 9.0)}
    head, _, speed, whole = table({"b": {"rows": rows}})
    assert head == "| | nip | best of the others | ahead |"
    assert speed.endswith("| 90 | 100 (TRL) | **TRL** |")
    assert whole.endswith("| 2.0 | 2.0 (TRL) | even |")
    seconds = {"nip, embedded": [0.1], "nip over vLLM": [0.3], "vLLM by hand": [0.2]}
    assert table({"c": {"seconds": seconds}})[-1].endswith(
        "| 0.10 (embedded) | 0.20 (vLLM by hand) | nip |"
    )
    assert table({}) == []


def test_a_second_model_has_columns_at_the_head_and_sections_below_those_of_the_first():
    from beside.page import page
    from beside.summary import table

    machine = {"cores": 2, "python": "3.11", "load_before": 0.1, "load_after": 0.2}
    made = {"command": "c", "commit": "d", "took_s": 1.0, "machine": machine, "small": False}
    part = {**made, "absent": {}, "versions": {"nip": "1"}}
    small = {**part, "model": "tiny", "seconds": {"nip, embedded": [0.1], "vLLM by hand": [0.2]}}
    large = {**part, "model": "smollm2", "seconds": {"nip, embedded": [3.0], "vLLM by hand": [2.0]}}
    result = {"c": small, "models": {"smollm2": {"c": large}}}
    head, _, row = table(result)
    assert head.endswith("| ahead | smollm2: nip | best of the others | ahead |")
    assert row.endswith(
        "| 0.10 | 0.20 (vLLM by hand) | nip | 3.00 | 2.00 (vLLM by hand) | **vLLM by hand** |"
    )
    first, second = (
        "## From trained weights",
        "### From trained weights to their first answer, smollm2",
    )
    text = page(result)
    assert text.index(first) < text.index(second)


def test_the_page_is_made_of_its_figures_and_links_to_sections_that_it_has():
    """A part that only a further model was measured with has its section under that one's name."""
    from beside.page import page

    document = BENCHMARKS.parent / "docs" / "results" / "side_by_side.json"
    result = json.loads(document.read_text(encoding="utf-8"))
    text = page(result)
    assert text == document.with_suffix(".md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w-]", "", head.lower().replace(" ", "-")) for head in headings}
    linked = set(re.findall(r"\(#([\w-]+)\)", text))
    assert linked and linked <= anchors


def test_the_page_says_of_which_commit_it_is_and_aloud_if_of_several():
    from beside.page import describe_commits

    parts = {name: {"commit": "d", "small": False} for name in "ab"}
    assert describe_commits(parts) == "All of it was measured at d."
    parts["a"] |= {"by_turns": {}, "view": {"commit": "d-dirty"}}
    assert "at d, but for tables of two commits by turns (" in describe_commits(parts)
    others = {"models": {"smollm2": {"a": {"commit": "e"}}}}
    assert describe_commits(parts | others).startswith("**The parts were measured at 2 different")


def test_a_part_is_measured_again_at_another_commit_of_other_sizes_or_when_asked(monkeypatch):
    import side_by_side
    from side_by_side import is_done

    options = argparse.Namespace(again=False, small=False, rounds=2)
    part = {"commit": "d", "small": False, "asked_rounds": 2}
    monkeypatch.setattr(side_by_side, "commit", lambda: "d")
    assert is_done(part, options) and not is_done(None, options)
    assert not is_done(part | {"commit": "e"}, options)
    assert not is_done(part | {"small": True}, options)
    assert not is_done(part, argparse.Namespace(again=True, small=False, rounds=2))
    monkeypatch.setattr(side_by_side, "commit", lambda: "d-dirty")
    assert not is_done(part | {"commit": "d-dirty"}, options)


def test_nips_own_benchmarks_have_rows_of_their_own_and_sections():
    from beside.page import page

    machine = {"cores": 2, "python": "3.11", "load_before": 0.1, "load_after": 0.2}
    made = {"command": "c", "commit": "d", "took_s": 1.0, "machine": machine, "small": False}
    case = {"case": "all", "rollouts": 1000, "nip_seconds": 3.0, "pyarrow_seconds": 1.0}
    step = {"peak_mb": 150, "cpu_seconds": 2.0, "peak_mb_of_a_helper": 200}
    size = {"episodes": 1000, "disk_mb": 3, "steps": {"join": step}}
    view = {"episodes": 500, "first_page_s": 0.5, "peak_memory_mb": 300}
    view |= {"filters": {"f": {"slowest_s": 0.1}}, "searches": {"s": {"first_s": 0.2}}}
    went_on = {"finished_rollouts": 900, "seconds_to_first_new_answer": 4.0, "repeated": 65}
    went_on |= {"bar": {"seconds": 10.0, "repeated": 64, "met": False}}
    bar = {"factor": 3.0, "peak_rss_mb": 1000.0, "met": True}
    players = {
        "nip": {"seconds": [2.0, 3.0], "versions": {"nip": "1"}},
        "inspect": {"seconds": [1.0, 1.5], "versions": {"inspect-ai": "1"}},
        "nip --help": {"prints": True, "seconds": [0.2]},
    }
    text = page(
        {
            "g": {**made, "resume": went_on},
            "h": {
                **made,
                "dataset": {"cases": [case | {"peak_rss_mb": 99.0}], "bar": bar},
                "scale": {"sizes": [size]},
            },
            "i": {**made, "view": view},
            "j": {**made, "players": players},
        }
    )
    assert "seconds to the first call | 2.5 | 1.2 (inspect) | **inspect** |" in text
    assert "seconds | 3.0 | 1.0 (pyarrow, a copy) | **pyarrow, a copy** |" in text
    assert (
        "| 1,000 | 3,000 | 150, 2 |" in text
        and "1,000 episodes: most MB of a process | 200" in text
    )
    assert "beyond what may be in flight | 1 | not measured | – |" in text
    assert "Our bar, 10 s and 64 calls, is **missed**." in " ".join(text.split())
    assert "for training data, is met." in " ".join(text.split())
    assert "| 900 | 4.0 | 65 |" in text and "| 0.50 | 0.10 | 0.20 | 300 |" in text


def test_a_request_to_llama_cpp_turns_one_adapter_on_and_its_files_name_all_tensors(tmp_path):
    gguf = pytest.importorskip("gguf")
    from beside.gguf_adapter import write_tiny
    from beside.llama import wishes
    from beside.models import SERVED

    from nip_core.models import BUNDLED

    asked = wishes(["x", "y"])
    assert [each["scale"] for each in asked["y"]["lora"]] == [0.0, 1.0]
    assert [each["scale"] for each in asked[SERVED]["lora"]] == [0.0, 0.0]
    write_tiny(Path(BUNDLED["tiny"]), tmp_path / "tiny.gguf")
    names = {tensor.name for tensor in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors}
    assert {"token_embd.weight", "output_norm.weight", "blk.3.ffn_down.weight"} <= names
    assert len(names) == 2 + 4 * 9


def test_a_whole_run_forgets_parts_that_it_does_not_measure():
    from beside.models import find_model
    from side_by_side import drop_others

    tiny = find_model("tiny")
    result = {"a": 1, "f": 2, "commits": ["d"], "models": {"smollm2": {"f": 3}}}
    drop_others(result, [("a", tiny), ("f", tiny)])
    assert result == {"a": 1, "f": 2, "commits": ["d"], "models": {}}
