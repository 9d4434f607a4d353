"""Scores of other programs are compared as runs are: paired by question, clustered, with power."""

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nip_cli.cli import app
from nip_core.errors import DatasetError, SettingsError
from nip_core.evaluation.statistics.clustered import Mean, clustered_mean
from nip_core.evaluation.statistics.differences import mcnemar
from nip_core.evaluation.statistics.distributions import t_quantile
from nip_study.compare import inspect_logs
from nip_study.compare.scored_arms import are_files, compare_files
from nip_study.compare.scored_rows import Columns
from nip_study.compute.needed import detectable_mean, questions_needed

LOGS = Path(__file__).parent / "inspect_logs"
"""Written by inspect_ai 0.3.285, see make_logs.py there."""
RIGHT = {"q0": 1, "q1": 1, "q2": 0, "q3": 1, "q4": 0, "q5": 1}
BETTER = {"q0": 1, "q1": 1, "q2": 1, "q3": 1, "q4": 1, "q5": 0}


def write(path, rows):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def scores(path, values, **more):
    return write(path, [{"id": name, "score": score, **more} for name, score in values.items()])


def test_a_log_of_inspect_says_what_the_same_scores_in_json_lines_say(tmp_path):
    logs = compare_files([LOGS / "right.eval", LOGS / "better.eval"], Columns())
    assert [(arm.arm, arm.answers, arm.status) for arm in logs.arms] == [
        ("mockllm/right", 6, ""),
        ("mockllm/better", 6, ""),
    ]
    files = [scores(tmp_path / "right.jsonl", RIGHT), scores(tmp_path / "better.jsonl", BETTER)]
    rows = compare_files(files, Columns())
    assert [arm.arm for arm in rows.arms] == ["right", "better"]
    for log, row in zip(logs.arms, rows.arms, strict=True):
        assert (log.score, log.score_ci95, log.against) == (row.score, row.score_ci95, row.against)
    against = rows.arms[1].against
    assert against.difference == pytest.approx(1 / 6)
    assert against.p == against.p_holm == 1.0 == mcnemar(2, 1)
    assert against.ci95[0] < 0 < against.ci95[1]


def test_questions_of_a_cluster_count_as_alike_and_the_metadata_says_which():
    logs = [LOGS / "right.eval", LOGS / "better.eval"]
    alone = compare_files(logs, Columns()).arms[1]
    by_topic = compare_files(logs, Columns(cluster="topic")).arms[1]
    assert (alone.clusters, by_topic.clusters) == (6, 3)
    assert by_topic.score_ci95 != alone.score_ci95
    assert by_topic.against.detectable != alone.against.detectable
    with pytest.raises(
        DatasetError, match=r"right\.eval: sample 'q0', epoch 1: has no text.*'subject'"
    ):
        compare_files(logs, Columns(cluster="subject"))


def test_epochs_are_answers_to_one_question_and_a_sample_that_failed_is_no_silent_zero():
    logs = [LOGS / "right.eval", LOGS / "epochs.json"]
    with pytest.raises(
        DatasetError, match=r"epochs\.json: sample 'q5', epoch 2: has no score.*fails"
    ):
        compare_files(logs, Columns())
    arm = compare_files(logs, Columns(missing_score=0.0)).arms[1]
    assert (arm.questions, arm.answers, arm.score) == (6, 12, 9 / 12)
    # As one arm has answered twice, no verdicts can be told apart one by one.
    assert arm.against.p is None
    assert arm.against.ci95 is not None


def test_questions_in_chats_are_the_same_where_roles_and_texts_are_and_others_are_refused(tmp_path):
    log, again = LOGS / "chat.eval", LOGS / "chat_again.json"
    first, second = compare_files([log, again], Columns()).arms
    assert (first.score, second.score) == (pytest.approx(2 / 3), 1.0)
    document = json.loads(again.read_text())
    chat = document["samples"][2]["input"]
    assert [message["role"] for message in chat] == ["system", "user"]
    for place, key, value in ((1, "content", "another question"), (0, "role", "user")):
        document["samples"][2]["input"] = [{**message} for message in chat]
        document["samples"][2]["input"][place][key] = value
        (tmp_path / "other.json").write_text(json.dumps(document))
        with pytest.raises(DatasetError, match="sample 'q2', epoch 1: asks something else than"):
            compare_files([log, tmp_path / "other.json"], Columns())


def test_texts_that_summaries_of_inspect_cut_are_compared_whole(tmp_path):
    # The passages of both clusters begin with the same thousand characters and more, and so does
    # the first question of the third log.
    log, again, other = LOGS / "long.eval", LOGS / "long_again.json", LOGS / "long_other.eval"
    for key in ("passage", "source.passage", "topic"):
        for logs in ([log, again], [again, log], [log, log]):
            assert compare_files(logs, Columns(cluster=key)).arms[0].clusters == 2
    for first in (log, again):
        with pytest.raises(DatasetError, match="sample 'q0', epoch 1: asks something else than"):
            compare_files([first, other], Columns())
    rows = [
        {"id": f"q{k}", "score": 1, "topic": sample["metadata"]["topic"]}
        for k, sample in enumerate(json.loads(again.read_text())["samples"])
    ]
    assert rows[0]["topic"] == "of\n0"
    compare_files([log, write(tmp_path / "rows.jsonl", rows)], Columns(cluster="topic"))


def test_a_log_without_the_sample_whose_texts_are_cut_says_which(tmp_path):
    path = LOGS / "long.eval"
    with zipfile.ZipFile(path) as packed, zipfile.ZipFile(tmp_path / "a.eval", "w") as archive:
        for name in ("header.json", "summaries.json"):
            archive.writestr(name, inspect_logs._decompress(path, packed.getinfo(name)))
    with pytest.raises(DatasetError, match=r"a\.eval: has no samples/q0_epoch_1\.json, so"):
        compare_files([tmp_path / "a.eval", path], Columns())


def test_a_sample_that_a_scorer_left_without_a_score_gets_the_one_that_is_given(tmp_path):
    # Inspect writes NaN: of one scorer, or of a value of it.
    logs = [LOGS / "unscored.eval", LOGS / "unscored.json"]
    for key in ("grade", "grade_by_part.whole"):
        assert [
            (arm.answers, arm.score)
            for arm in compare_files(logs, Columns(score=key, missing_score=0.5)).arms
        ] == [(3, 2.5 / 3)] * 2
        for log in logs:
            with pytest.raises(
                DatasetError, match=r"sample 'q1', epoch 1: 'grade.*' is NaN, which"
            ):
                compare_files([log, log], Columns(score=key))


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e200"])
def test_numbers_of_options_are_finite(tmp_path, number):
    file = str(scores(tmp_path / "right.jsonl", RIGHT))
    for option in ("--missing", "--difference"):
        done = CliRunner().invoke(app, ["compare", file, file, option, number, "--json"])
        assert isinstance(done.exception, SettingsError)
        assert str(done.exception) == f"{option} {float(number):g}: must be a number up to 1e+100"


def test_a_log_that_another_version_has_compressed_otherwise_is_read_alike(tmp_path):
    path = tmp_path / "right.eval"
    with zipfile.ZipFile(LOGS / "right.eval") as packed, zipfile.ZipFile(path, "w") as archive:
        for name in ("header.json", "summaries.json"):
            assert packed.getinfo(name).compress_type == 93
            data = inspect_logs._decompress(LOGS / "right.eval", packed.getinfo(name))
            archive.writestr(name, data, zipfile.ZIP_DEFLATED)
    [log] = inspect_logs.read_log(path, Columns()).arms.values()
    [packed_log] = inspect_logs.read_log(LOGS / "right.eval", Columns()).arms.values()
    assert [row.score for row in log] == [row.score for row in packed_log] == list(RIGHT.values())


def spoil(path, change):
    """Write a log with other summaries."""
    with zipfile.ZipFile(LOGS / "better.eval") as packed, zipfile.ZipFile(path, "w") as archive:
        for name in ("header.json", "summaries.json"):
            data = inspect_logs._decompress(LOGS / "better.eval", packed.getinfo(name))
            if name == "summaries.json":
                samples = json.loads(data)
                change(samples)
                data = json.dumps(samples)
            if data != "null":
                archive.writestr(name, data)
    return path


def set_score(value, scorer="match"):
    def change(samples):
        samples[0]["scores"] = {scorer: {"value": value}}

    return change


def test_scores_of_inspect_in_letters_words_and_objects_are_read_as_inspect_reads_them(tmp_path):
    for value, score in (
        ("C", 1),
        ("I", 0),
        ("P", 0.5),
        ("N", 0),
        ("Yes", 1),
        ("0.25", 0.25),
        (True, 1),
    ):
        log = spoil(tmp_path / "x.eval", set_score(value))
        assert next(iter(inspect_logs.read_log(log, Columns()).arms.values()))[0].score == score
    log = spoil(tmp_path / "x.eval", set_score({"a": 1, "b": 0.25}))
    with pytest.raises(DatasetError, match=r"name one by --score: match\.a, match\.b"):
        inspect_logs.read_log(log, Columns())
    [rows] = inspect_logs.read_log(
        spoil(log, lambda s: [set_score({"b": 0.25})([x]) for x in s]), Columns(score="match.b")
    ).arms.values()
    assert {row.score for row in rows} == {0.25}


def test_a_scorer_is_named_whole_or_with_one_of_its_values(tmp_path):
    log = spoil(tmp_path / "x.eval", lambda samples: [set_score(1, "a.b")([x]) for x in samples])
    [rows] = inspect_logs.read_log(log, Columns(score="a.b")).arms.values()
    assert {row.score for row in rows} == {1.0}
    with pytest.raises(DatasetError, match="the score 'match' is one value, and has no 'f1'"):
        inspect_logs.read_log(LOGS / "right.eval", Columns(score="match.f1"))


def two_scorers(samples):
    samples[1]["scores"]["other"] = {"value": 1}


def lists_for_objects(samples):
    samples[0]["metadata"] = ["topic"]
    samples[1]["scores"] = ["match"]


def other_question(samples):
    samples[2]["input"] = "another question"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (two_scorers, "sample 'q1', epoch 1: has scores of match, other; name one by --score"),
        (set_score("X"), "sample 'q0', epoch 1: 'match' must be a number, true or false (got 'X')"),
        (set_score([1]), "must be a number, true or false (got [1])"),
        (lists_for_objects, "sample 'q1', epoch 1: has no score ('no error is on record')"),
        (lambda samples: samples.clear(), "the log has no samples"),
        (lambda samples: samples.insert(0, 7), "a sample has no id (got 7)"),
        (lambda samples: samples.pop(), "lacks 1 of 6 questions (such as q5)"),
        (other_question, "sample 'q2', epoch 1: asks something else than"),
    ],
)
def test_a_log_that_can_not_be_compared_is_named_with_its_sample(tmp_path, change, message):
    log = spoil(tmp_path / "log.eval", change)
    with pytest.raises(DatasetError) as error:
        compare_files([LOGS / "right.eval", log], Columns())
    assert message in str(error.value)
    assert str(error.value).startswith(str(log))
    if change is lists_for_objects:
        with pytest.raises(DatasetError, match=r"'q0', epoch 1: has no text.*got \['topic'\]"):
            compare_files([LOGS / "right.eval", log], Columns(cluster="topic"))


def test_what_is_no_log_says_so(tmp_path):
    with zipfile.ZipFile(tmp_path / "begun.eval", "w") as archive:
        archive.writestr("_journal/start.json", "{}")
    cut = (LOGS / "right.eval").read_bytes()
    (tmp_path / "cut.eval").write_bytes(cut[:3000])
    (tmp_path / "other.json").write_text("[1]")
    with zipfile.ZipFile(LOGS / "right.eval") as archive:
        place = archive.getinfo("summaries.json").header_offset
    (tmp_path / "damaged.eval").write_bytes(cut[: place + 50] + bytes(60) + cut[place + 110 :])
    for name, message in (
        (
            "begun.eval",
            "begun.eval: has no header.json, so it is no log of Inspect, or one that was not",
        ),
        ("cut.eval", "cut.eval: can't be read as a log of Inspect"),
        ("damaged.eval", "damaged.eval: can't be read as a log of Inspect"),
        ("other.json", "other.json: is no log of Inspect with samples; rows of other programs"),
        ("none.eval", "none.eval: can't be read as a log of Inspect"),
        ("none.jsonl", "none.jsonl: can't be read (No such file"),
    ):
        with pytest.raises(DatasetError) as error:
            compare_files([tmp_path / name, LOGS / "right.eval"], Columns())
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":3: not JSON ("),
        ("[1]", ":3: must be a JSON object (got [1])"),
        ({"score": 1}, ":3: has no 'id'; there are 'score'"),
        ({"id": 1.5, "score": 1}, ":3: 'id' must be a text or a whole number (got 1.5)"),
        (
            {"id": "x", "correct": 1},
            ":3: has no 'score'; there are 'id', 'correct', name one by --score",
        ),
        ({"id": "x", "score": "high"}, ":3: 'score' must be a number, true or false (got 'high')"),
        ({"id": "x", "score": None}, ":3: 'score' is null; --missing NUMBER"),
        ('{"id": "x", "score": NaN}', ":3: 'score' must be a number, true or false (got nan)"),
        ('{"id": "x", "score": 1e999}', ":3: 'score' must be a number, true or false (got inf)"),
        ({"id": "x", "score": 1e200}, ":3: 'score' must be a number, true or false (got 1e+200)"),
        ({"id": "x", "score": 1}, "lacks 1 of 7 questions (such as x), so scores can't be paired"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line_with_what_was_got(tmp_path, line, message):
    good = scores(tmp_path / "good.jsonl", RIGHT)
    rows = [{"id": name, "score": score} for name, score in RIGHT.items()]
    bad = write(tmp_path / "bad.jsonl", [rows[0], "", line, *rows[1:]])
    with pytest.raises(DatasetError) as error:
        compare_files([good, bad], Columns())
    assert message in str(error.value)
    if "lacks" in message:
        results = compare_files([good, bad], Columns(), only_common=True)
        assert results.left_out == 1
        assert results.arms[1].questions == 6


def test_arms_of_one_file_are_told_apart_by_a_key_and_keys_lead_into_objects(tmp_path):
    rows = [
        {"task": {"name": name}, "who": who, "ok": bool(score), "meta": {"topic": name[1] in "01"}}
        for who, values in (("old", RIGHT), ("new", BETTER))
        for name, score in values.items()
    ]
    for row in rows:
        row["meta"]["topic"] = str(row["meta"]["topic"])
    columns = Columns("task.name", "ok", "who", "meta.topic")
    results = compare_files([write(tmp_path / "all.jsonl", rows)], columns)
    assert [(arm.arm, arm.clusters) for arm in results.arms] == [("old", 2), ("new", 2)]
    with pytest.raises(SettingsError, match=r"all\.jsonl: one arm can't be compared.*--arm"):
        compare_files([tmp_path / "all.jsonl"], Columns("task.name", "ok"))
    rows[3]["meta"]["topic"] = "elsewhere"
    with pytest.raises(DatasetError, match="'q3' is in cluster 'False', and in 'elsewhere' at"):
        compare_files([write(tmp_path / "all.jsonl", rows)], columns)


def test_scores_that_are_no_rates_are_compared_without_a_p_value(tmp_path):
    a = scores(tmp_path / "a.jsonl", {f"q{k}": k * 1.5 for k in range(20)})
    b = scores(tmp_path / "b.jsonl", {f"q{k}": k * 1.5 + 2 + (k % 3) for k in range(20)})
    results = compare_files([a, b], Columns(), difference=0.5)
    against = results.arms[1].against
    assert not results.are_rates
    assert against.p is None
    assert 2 < against.ci95[0] < against.difference < against.ci95[1] < 4
    assert against.needed_for == 0.5
    assert (
        against.questions_needed
        > compare_files([a, b], Columns(), difference=1.0).arms[1].against.questions_needed
    )


def test_intervals_of_rates_do_not_go_beyond_them_and_those_of_other_scores_may(tmp_path):
    def answer_twice(name, values):
        rows = [{"id": f"q{k}", "score": v, "topic": k // 2} for k, v in enumerate(values)]
        return write(tmp_path / name, rows + rows)

    high = answer_twice("high.jsonl", [1, 1, 1, 1, 1, 0.6])
    low = answer_twice("low.jsonl", [0, 0, 0, 0, 0, 0.4])
    first, second = compare_files([high, low], Columns(cluster="topic")).arms
    assert 0 < first.score_ci95[0] < first.score_ci95[1] == 1
    assert 0 == second.score_ci95[0] < second.score_ci95[1] < 1
    assert second.against.ci95[0] == -1
    # With an arm whose scores are beyond 1, those of the others are no rates either.
    marks = answer_twice("marks.jsonl", [3, 2, 1, 3, 2, 1])
    first, second, _ = compare_files([high, low, marks], Columns(cluster="topic")).arms
    assert first.score_ci95[1] > 1
    assert second.score_ci95[0] < 0
    assert second.against.ci95[0] < -1


def test_the_command_takes_files_and_refuses_what_is_for_runs_or_mixed(tmp_path):
    run = CliRunner().invoke
    shutil.copy(LOGS / "right.eval", tmp_path / "log.eval")
    good = scores(tmp_path / "better.jsonl", BETTER)
    done = run(app, ["compare", str(tmp_path / "log.eval"), str(good), "--difference", "0.1"])
    assert done.exit_code == 0, done.output
    assert "+16.7" in done.output
    assert "show a difference of 0.1 in 80 % of the cases" in done.output
    as_json = run(app, ["compare", str(tmp_path / "log.eval"), str(good), "--json"])
    assert json.loads(as_json.stdout)["arms"][1]["against"]["difference"] == pytest.approx(1 / 6)
    mixed = run(app, ["compare", "quickstart", str(good)])
    assert isinstance(mixed.exception, SettingsError)
    assert "quickstart: runs and files can't be compared" in str(mixed.exception)
    wrong = run(app, ["compare", "a", "b", "--cluster", "topic"])
    assert "--cluster: for files of scores, and these are runs" in str(wrong.exception)
    out = run(app, ["compare", str(good), str(good), "--out", "x"])
    assert "--out is for runs" in str(out.exception)
    assert not are_files(["a", "store/b"])


def test_as_many_questions_as_are_said_to_be_needed_show_the_difference_in_four_of_five_cases():
    # Paired differences of right and wrong answers, 3 questions a cluster that are alike.
    random = np.random.default_rng(0)

    def draw(clusters, difference):
        side = random.random(clusters) < 0.5
        change = np.where(random.random((clusters, 3)) < 0.3, np.where(side, 1, -1)[:, None], 0)
        shift = random.random((clusters, 3)) < difference
        return (change + shift).astype(float).ravel(), np.repeat(np.arange(clusters), 3)

    seen = clustered_mean(*draw(2000, 0.1))
    needed = questions_needed(0.1, seen)
    assert 100 < needed < 400
    shown = 0
    for _ in range(600):
        mean = clustered_mean(*draw(needed, 0.1))
        shown += abs(mean.value) > t_quantile(0.975, mean.df) * mean.error
    assert 0.75 < shown / 600 < 0.85


def test_what_shows_a_difference_and_what_is_needed_for_it_agree_and_without_spread_nothing_is_said():
    mean = Mean(0.1, 0.02, 99, 100)
    shown = detectable_mean(mean)
    assert questions_needed(shown, mean) == questions_needed(-shown, mean) == 100
    assert questions_needed(shown * 1.001, mean) <= 100 < questions_needed(shown * 0.99, mean)
    assert questions_needed(10.0, mean) == 3
    assert questions_needed(0.0, mean) is None
    for flat in (Mean(0.1, None, 0, 1), Mean(0.0, 0.0, 9, 10)):
        assert detectable_mean(flat) is None
        assert questions_needed(0.1, flat) is None
