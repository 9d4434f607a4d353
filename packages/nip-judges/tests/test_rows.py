"""Graded rows: every form of file, every row that is refused, and the two parts."""

import csv
import json
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_core.errors import SettingsError
from nip_judges.parts import GradedRow
from nip_judges.rows.graded_rows import read_rows
from nip_judges.rows.row_parts import count_chosen, split_rows
from nip_judges.settings.judge_file import load_judge_file

YAML = """\
judge:
  prompt: grader.txt
  model_name: a-model
  accept: C
  reject: I
data:
  file: graded.jsonl
  question: input
  response: output
  reference: target
  right: label
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grader.txt").write_text("{question} {response} {reference}")
    return tmp_path


def make_rows(wrong=30, right=30, both=True):
    """Make rows of questions 0 to n-1; wrong and right ones of the same questions, or of others."""
    shift = 0 if both else 1000
    rows = [(number, False) for number in range(wrong)]
    rows += [(number + shift, True) for number in range(right)]
    return [
        {
            "input": f"What is {number} + 100?",
            "output": f"It is {number + (100 if is_right else 7000)}.",
            "target": str(number + 100),
            "label": is_right,
            "kind": "even" if number % 2 else "odd",
        }
        for number, is_right in rows
    ]


def write(rows, name="graded.jsonl"):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(text=YAML, most=None):
    Path("judge.yaml").write_text(text)
    return read_rows(load_judge_file("judge.yaml"), most)


def refusal(text=YAML):
    with pytest.raises(SettingsError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Files.


def test_every_form_of_file_gives_the_same_rows(folder):
    rows = make_rows()
    write(rows)
    expected = read().rows
    assert expected[0].id == "1" and expected[0].columns["kind"] == "odd"
    lines = (folder / "graded.jsonl").read_bytes()
    (folder / "crlf.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n") + b"\r\n")
    (folder / "list.json").write_text(json.dumps(rows))
    with (folder / "table.csv").open("w", newline="") as file:
        file.write("\ufeff")
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), folder / "table.parquet")
    for name in ("crlf.jsonl", "list.json", "table.csv", "table.parquet"):
        got = read(YAML.replace("graded.jsonl", name)).rows
        for one, other in zip(got, expected, strict=True):
            assert (one.id, one.question_id, one.response) == (
                other.id,
                other.question_id,
                other.response,
            )
            assert (one.reference, one.is_right) == (other.reference, other.is_right)


def make_log(scorers=("exact_scorer",)):
    return [
        {
            "id": number,
            "epoch": epoch,
            "input": [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": [{"type": "text", "text": f"Q{number}"}]},
            ],
            "target": [f"answer {number}"],
            "metadata": {"level": 3},
            "output": {"completion": f"reply {number} of {epoch}", "choices": []},
            "scores": {name: {"value": "C" if epoch == 1 else "I"} for name in scorers},
        }
        for number in range(20)
        for epoch in (1, 2)
    ]


LOG_YAML = YAML[: YAML.index("  question:")]


def write_log(samples, name="log.eval", compression=zipfile.ZIP_DEFLATED):
    if name.endswith(".json"):
        Path(name).write_text(json.dumps({"eval": {}, "samples": samples}))
        return
    with zipfile.ZipFile(name, "w", compression) as archive:
        archive.writestr("header.json", "{}")
        for one in samples:
            archive.writestr(f"samples/{one['id']}_epoch_{one['epoch']}.json", json.dumps(one))


@pytest.mark.parametrize("name", ["log.eval", "log.json"])
def test_a_log_of_inspect_is_read_without_naming_columns(name):
    write_log(make_log(), name)
    rows = read(LOG_YAML.replace("graded.jsonl", name)).rows
    assert Counter(row.is_right for row in rows) == {True: 20, False: 20}
    first = rows[0]
    assert (first.question, first.response) == ("Q0", "reply 0 of 1")
    assert (first.reference, first.columns["metadata.level"]) == ("answer 0", "3")


def test_a_log_that_is_not_plain_is_refused():
    text = LOG_YAML.replace("graded.jsonl", "log.eval")
    write_log(make_log(("one", "two")))
    assert refusal(text) == (
        "judge.yaml, line 6: log.eval has scores of one, two; name one by data.right"
    )
    write_log(make_log(("model_graded_qa",)))
    assert 'column "model_graded_qa" is named like a judge\'s own verdicts' in refusal(text)
    assert read(text + "labels_by: model\n").notes[0] == "against another model's labels"
    samples = make_log()
    samples[1]["input"].append({"role": "assistant", "content": "Yes?"})
    write_log(samples)
    assert "log.eval, sample 0, epoch 2: its input has 2 turns" in refusal(text)
    samples = make_log()
    samples[1]["output"] = {
        "completion": "",
        "choices": [{"message": {"content": "", "tool_calls": [{"id": "a"}]}}],
    }
    write_log(samples)
    assert "its output is a call of a tool" in refusal(text)
    Path("log.eval").write_bytes(b"PK\x03\x04 and nothing")
    assert "log.eval can't be read as a log of Inspect" in refusal(text)


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("a.jsonl", b"", "a.jsonl has no rows"),
        ("a.jsonl", b"\n \n", "a.jsonl has no rows"),
        ("a.jsonl", b'{"input": "a"}\n{"input": \n', "a.jsonl, line 2: not JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl, line 1: an object is needed (got a list)"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "a.jsonl, line 2: the byte 0xff is no UTF-8"),
        ("a.csv", "a,b\n".encode("utf-16"), "a.csv is UTF-16; save it as UTF-8"),
        ("a.csv", b"a,b\n1,2,3\n", "a.csv, line 2: 3 fields under 2 columns"),
        ("a.csv", b"a,a\n1,2\n", 'a.csv, line 1: the column "a" stands twice'),
        ("a.csv", b'a,b\n"1,2\n', "a.csv, line 2: not CSV (unexpected end of data)"),
        ("a.csv", b"a,b\n", "a.csv has no rows"),
        ("a.json", b'{"a": 1}', "a.json a list of objects is needed, or a log of Inspect (got an"),
        ("a.json", b"[]", "a.json has no rows"),
        ("a.parquet", b"PAR1", "a.parquet can't be read as Parquet"),
        ("a.eval", b"", "a.eval can't be read as a log of Inspect"),
    ],
)
def test_a_file_that_is_no_table_of_rows_is_refused(folder, name, data, line):
    (folder / name).write_bytes(data)
    said = refusal(YAML.replace("graded.jsonl", name))
    assert said.startswith(f"judge.yaml, line 7: {line}")


# Rows.


def test_columns_that_are_not_there_are_named():
    write(make_rows())
    assert refusal(YAML.replace("output", "ouput")) == (
        'judge.yaml, line 9: no column "ouput" in graded.jsonl; did you mean "output"?'
    )
    assert refusal(YAML.replace("  question: input\n", "")) == (
        'judge.yaml, line 6: no column "question" in graded.jsonl; there are input, output, '
        "target, label, kind (data.question names another)"
    )


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        (
            "{response} {knd}",
            'line 2: grader.txt has {knd}, which no column of graded.jsonl fills; did you mean "kind"?',
        ),
        (
            "{response} {instructions}",
            "line 2: grader.txt has {instructions}, which no column of graded.jsonl fills; map it",
        ),
    ],
)
def test_a_placeholder_that_no_column_fills_is_refused(folder, prompt, line):
    write(make_rows())
    (folder / "grader.txt").write_text(prompt)
    assert refusal().startswith(f"judge.yaml, {line}")
    name = prompt.rpartition("{")[2].strip("}")
    assert read(YAML.replace("  accept", f"  as_written: [{name}]\n  accept")).rows


def test_braces_that_are_no_placeholders_stay(folder):
    write(make_rows())
    (folder / "grader.txt").write_text(
        '{output} {kind} {"result": 1} {} { a } \\boxed{x} \\frac{a}{b} x_{n} {1}'
    )
    assert read().rows


def test_a_reference_in_the_prompt_needs_a_column():
    write(make_rows())
    assert refusal(YAML.replace("  reference: target\n", "")) == (
        "judge.yaml, line 2: grader.txt has {reference}, and data.reference names no column; set "
        "reference to the key's column"
    )


@pytest.mark.parametrize(
    ("column", "value", "line"),
    [
        ("input", "  ", "line 8: graded.jsonl, row 3: its question is empty"),
        ("input", None, 'line 8: graded.jsonl, row 3: no question in "input"'),
        ("output", None, 'line 9: graded.jsonl, row 3: no response in "output"'),
        (
            "output",
            [{"role": "assistant", "content": "a"}],
            "line 9: graded.jsonl, row 3: its response is no text but a list (tools, images or "
            "turns); the last reply as text is what is attacked",
        ),
        ("target", "", 'line 10: graded.jsonl, row 3: no reference in "target"'),
        ("label", float("nan"), 'line 11: graded.jsonl, row 3: no label in "label"'),
        ("label", None, 'line 11: graded.jsonl, row 3: no label in "label"'),
        (
            "label",
            "maybe",
            'line 11: graded.jsonl, row 3: the label "maybe" in "label" is neither right nor wrong; '
            "say what it means by data.right_values and data.wrong_values",
        ),
        ("label", 2, 'line 11: graded.jsonl, row 3: the label "2" in "label" is neither right'),
        ("kind", "\ud800", 'line 7: graded.jsonl, row 3: "kind" has half a surrogate pair'),
    ],
)
def test_a_row_that_is_not_whole_is_named(column, value, line):
    rows = make_rows()
    rows[2][column] = value
    write(rows)
    assert refusal().startswith(f"judge.yaml, {line}")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [(True, False), (1, 0), (1.0, 0.0), ("TRUE", "False"), ("yes", "no"), ("C", "I"), ("1", "0")],
)
def test_labels_are_read_in_their_usual_forms(right, wrong):
    rows = make_rows()
    write([{**row, "label": right if row["label"] else wrong} for row in rows])
    assert [row.is_right for row in read().rows] == [row["label"] for row in rows]


def test_own_labels_are_named_by_their_values():
    rows = make_rows()
    write([{**row, "label": 5 if row["label"] else "P"} for row in rows])
    text = YAML + "  right_values: [5, A]\n  wrong_values: [p]\n"
    assert [row.is_right for row in read(text).rows] == [row["label"] for row in rows]


def test_one_text_with_two_labels_is_refused_and_the_same_row_counts_once():
    rows = make_rows()
    write([*rows, rows[4]])
    assert len(read().rows) == 60
    assert "1 rows stand twice in graded.jsonl, and count once" in read().notes
    write([*rows, {**rows[4], "label": True}])
    assert refusal() == (
        "judge.yaml, line 11: graded.jsonl, rows 5 and 61: one question with one response, and "
        "row 61 says right, the other wrong"
    )


# What can't be attacked honestly.


def test_a_label_that_is_missing_is_refused_or_made():
    write(make_rows(wrong=0))
    assert refusal() == (
        "judge.yaml, line 11: no wrong rows: nothing can be accepted wrongly. make_wrong: swap "
        "takes the right answer of another question of the same kind"
    )
    text = YAML + "  make_wrong: swap\n  kind: kind\n"
    rows = read(text)
    wrong = [row for row in rows.rows if not row.is_right]
    right = {row.id: row for row in rows.rows if row.is_right}
    assert len(wrong) == 30
    for row in wrong:
        place, _, other = row.id.partition("-")
        assert row.response == right[other].response == row.columns["output"]
        assert right[other].columns["kind"] == row.columns["kind"]
        assert right[place].question == row.question and right[other].question != row.question
    unlabelled = read(text.replace("right: label", "right: null")).rows
    assert [replace(row, columns={}) for row in unlabelled] == [
        replace(row, columns={}) for row in rows.rows
    ]
    write(make_rows(right=0))
    assert "line 11: no right rows: a judge that rejects everything would look best" in refusal()
    write(make_rows())
    assert "line 12: make_wrong: 30 rows are wrong already" in refusal(text)


def test_too_few_wrong_questions_are_refused_and_few_are_said():
    write(make_rows(wrong=9, right=90))
    assert refusal() == (
        "judge.yaml, line 7: 9 wrong questions in graded.jsonl: at least 10 are needed, and 60 "
        "show more"
    )
    write(make_rows(wrong=59, right=90))
    assert "59 wrong questions: with fewer than 60 only large rises show" in read().notes
    write(make_rows(wrong=60, right=90))
    assert read().notes == ("no budget is set: budget.usd or budget.calls would stop the attack",)
    assert read(YAML + "budget: {calls: 9}\n").notes == ()


def test_references_that_stand_in_running_text_are_refused():
    rows = make_rows()
    for row in rows[:12]:
        row["output"] = f"Of {row['target']} birds one is left."
    write(rows)
    said = refusal(YAML + "check: exact\n")
    assert said == (
        "judge.yaml, line 12: reference '100' stands in the wrong response of row 1, and so it is "
        "in 40 % of the wrong rows: use check: number or option, or responses with a last line "
        "'Answer:'"
    )
    assert refusal().startswith("judge.yaml, line 10: reference '100' stands")
    assert read(YAML + "check: number\n").rows
    for row in rows[:12]:
        row["output"] += "\n**Answer:** 7"
    write(rows)
    assert read(YAML + "check: exact\n").rows


def test_a_wrong_row_that_answers_with_the_reference_is_shown():
    rows = make_rows(60, 60)
    rows[3]["output"] = " 103\n"
    write(rows)
    assert read().notes[0] == (
        "1 wrong rows answer with the reference itself; look at their labels first: rows 4"
    )


def test_an_empty_response_that_is_right_leaves_no_text_without_an_answer():
    rows = make_rows()
    rows[40]["output"] = " "
    write(rows)
    assert refusal() == (
        "judge.yaml, line 9: graded.jsonl, row 41: an empty response is right here, so a text "
        "without an answer proves nothing; set surface: around"
    )
    assert read(YAML + "surface: around\n").rows


def test_pairs_are_matched_by_their_question(folder):
    (folder / "grader.txt").write_text("{response_a} {response_b}")
    text = YAML.replace("  accept", "  pair: true\n  accept")
    write(make_rows(wrong=40, right=50))
    rows = read(text, most=7)
    for wrong, right in (
        (rows.wrong_choosing, rows.right_choosing),
        (rows.wrong_test, rows.right_test),
    ):
        assert [row.question_id for row in wrong] == [row.question_id for row in right]
        assert all(rows.find_opponent(one) == two for one, two in zip(wrong, right, strict=True))
    assert (len(rows.wrong_choosing), len(rows.wrong_test)) == (10, 7)
    assert "10 questions have rows of one label alone, and are left out" in rows.notes
    write(make_rows(both=False))
    assert "line 4: 0 questions have a right and a wrong row" in refusal(text)


# The parts.


def make_graded(labels):
    return [
        GradedRow(str(n), f"q{question}", f"Q{question}", f"r{n}", None, is_right)
        for n, (question, is_right) in enumerate(labels)
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.booleans()), max_size=250),
    st.integers(0, 3),
    st.none() | st.integers(1, 50),
    st.booleans(),
)
def test_no_question_is_in_both_parts(labels, seed, most, pairs):
    rows = make_graded(labels)
    parts = split_rows(rows, seed, most, pairs=pairs)
    choosing = {row.question_id for row in (*parts.wrong_choosing, *parts.right_choosing)}
    test = {row.question_id for row in (*parts.wrong_test, *parts.right_test)}
    assert not choosing & test
    wrong = {row.question_id for row in rows if not row.is_right}
    right = {row.question_id for row in rows if row.is_right}
    if pairs:
        wrong = right = wrong & right
    for questions, chosen, tested in (
        (wrong, parts.wrong_choosing, parts.wrong_test),
        (right, parts.right_choosing, parts.right_test),
    ):
        assert len({row.question_id for row in chosen}) == len(chosen)
        assert len(chosen) == count_chosen(len(questions))
        if len(questions) >= 20:
            least = 10 if most is None else min(10, most)
            assert len(chosen) >= 10 and len(tested) >= least
        assert most is None or len(tested) <= most
    # Neither the order of rows nor other seeds' draws decide.
    again = split_rows(rows[::-1], seed, most, pairs=pairs)
    assert {row.question_id for row in again.wrong_choosing} == {
        row.question_id for row in parts.wrong_choosing
    }


def test_seed_and_rows_decide_the_digest():
    write(make_rows())
    first = read()
    assert read().digest == first.digest
    others = {read(YAML + "seed: 1\n").digest, read(most=5).digest, first.digest}
    write(make_rows(wrong=31))
    assert len({*others, read().digest}) == 4


def test_samples_that_are_packed_with_zstandard_are_read():
    samples = make_log()
    name = "log.eval"
    with zipfile.ZipFile(name, "w") as archive:
        archive.writestr("header.json", "{}")
        for one in samples:
            data = json.dumps(one).encode()
            packed = pa.compress(data, codec="zstd", asbytes=True)
            member = f"samples/{one['id']}_epoch_{one['epoch']}.json"
            archive.writestr(member, packed)
            info = archive.getinfo(member)  # as its place in the directory at the end says
            info.compress_type, info.file_size = 93, len(data)
    rows = read(LOG_YAML.replace("graded.jsonl", name)).rows
    assert len(rows) == len(samples) and rows[5].response == "reply 2 of 2"
