"""The report: self-contained, safe against what models write, and with the right numbers."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from nip_core.evaluation import metrics
from nip_core.evaluation.episode_transcripts import DECISION_WORDS, Message, Text, Transcript
from nip_core.evaluation.split_metrics import (
    BelievedMetrics,
    PairedDifference,
    RateBound,
    SplitMetrics,
)
from nip_core.evaluation.spread import find_questions
from nip_core.evaluation.statistics.differences import at_most
from nip_core.records.models import Decision, ServedModel
from nip_core.report.report import (
    Comparison,
    GroupReport,
    IterationReport,
    ReportData,
    build_report,
    metrics_table,
)


def evaluate(*tables, **more) -> SplitMetrics:
    """The metrics of a split that has nothing else to say."""
    return SplitMetrics(**dict(metrics.evaluate(*tables, **more)))


HOSTILE = [
    "</script><script>alert(1)</script>",
    '<img src="x" onerror="alert(1)">',
    "<!-- <script>",
    "\u2028\u2029 &lt; ]]> {{script}} \\u003c",
    "half a pair \ud800",
]


class Page(HTMLParser):
    """Collects the elements of a page, with the text of scripts kept apart."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._raw: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self._raw = tag
            if tag == "script":
                self.scripts.append("")

    def handle_endtag(self, tag):
        if tag == self._raw:
            self._raw = None

    def handle_data(self, data):
        if self._raw == "script":
            self.scripts[-1] += data
        elif self._raw is None:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def _transcript(text: str, key: str = "k") -> Transcript:
    return Transcript(
        key=key,
        split="test",
        iteration=0,
        problem=text,
        question=text,
        solution=text,
        texts=(Text(text, text), Text(text, text, "python")),
        thing=text,
        label=text,
        y=1,
        decision=1,
        outcome="finished",
        rewards={"prover": 1.0},
        messages=(Message(0, "prover", text, text, 2, 0, text, told=text),),
        system_prompts={"prover": text},
        difficulty=text,
        mutation=text,
        error=text,
    )


@pytest.fixture(scope="module")
def report(episodes_of) -> ReportData:
    def test_of(right: int) -> dict:
        rows = [
            {"y": i % 2, "decision": i % 2 if i < right else 1 - i % 2, "difficulty": f"d{i % 3}",
             "mutation": None if i % 2 else "constant", "rewards": {"verifier": 1.0}}
            for i in range(100)
        ]  # fmt: skip
        return evaluate(episodes_of(*rows), None)

    group = GroupReport(
        episodes=300,
        examples=123,
        job_id="ftjob-1",
        status="succeeded",
        loss=[(1, 2.5), (2, float("nan")), (3, 0.75)],
        trained_tokens=4_321,
        model_before="tiny",
        model_after="tiny-players-0",
        proof="probe differs",
    )
    skipped = GroupReport(examples=7, note="skipped: 7 examples, 10 needed")
    return ReportData(
        run="a-run",
        status="completed",
        iterations=[
            IterationReport(
                0, test_of(50), None, {"players": group, "idle": skipped}, {"play": 61.0}
            ),
            IterationReport(1, test_of(81), None, {}, {"play": 3_725.0}),
        ],
        parameters={"seed": 0, "training": {"learning_rate": 1.23e-5, "layers": ("q", "v")}},
        transcripts=[_transcript("plain")],
        transcripts_left_out=[(0, "test", {"wrong": 1, "sample": 2}), (1, "test", {})],
        baselines={"believe the prover": test_of(70)},
        comparisons=[
            Comparison(1, PairedDifference(difference=0.31, ci95=(0.22, 0.4), problems=100))
        ],
        created_at="2026-01-02T03:04:05Z",
        code_version="0.1.0",
    )


def test_the_page_shows_the_numbers(report) -> None:
    text = Page(build_report(report)).text.replace("\u202f", " ")
    for expected in (
        "81.0 %",
        "from 50.0 % in iteration 0",
        "72.2 – 87.5 %",  # Wilson's interval of 81 in 100
        "Accuracy changed by +31.0 points",
        "+22.0 to +40.0, paired over 100 problems",
        "123 of 300",
        "2.5 → 0.75",
        "4,321",
        "tiny-players-0",
        "skipped: 7 examples, 10 needed",
        "believe the prover",
        "61.0 s",
        "1 h 02 min",
        "1.23e-05",
        "3 more episodes are not shown here",
        "iteration 0, test: 1 wrong, 2 right",
        "No decision counts as wrong",
    ):
        assert expected in text, expected


def test_the_page_asks_for_nothing_outside_itself(report) -> None:
    text = build_report(report)
    page = Page(text)
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action", "srcset"):
                assert value.startswith("#"), (tag, name, value)
            assert not name.startswith("on")
    assert "@import" not in text
    assert all(part.startswith("#") for part in text.split("url(")[1:])


def test_the_policy_allows_the_page_s_script_and_no_other(report) -> None:
    page = Page(build_report(report))
    [policy] = [a["content"] for _, a in page.elements if "http-equiv" in a]
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert len(page.scripts) == 2
    assert "innerHTML" not in page.scripts[1]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_models_write_stays_text(report, hostile) -> None:
    calm, wild = Page(build_report(report)), None
    page = build_report(replace(report, transcripts=[_transcript(hostile)]))
    page.encode("utf-8")
    wild = Page(page)
    assert [tag for tag, _ in wild.elements] == [tag for tag, _ in calm.elements]
    assert wild.scripts[1] == calm.scripts[1]
    assert not {"<", ">", "&", "\u2028", "\u2029"} & set(wild.scripts[0])
    embedded = json.loads(wild.scripts[0])
    [found] = embedded["transcripts"]
    assert found["messages"][0]["text"] == found["problem"] == found["label"] == hostile
    assert found["texts"][1] == {"heading": hostile, "text": hostile, "language": "python"}
    assert embedded["prompts"][found["system_prompts"]["prover"]] == hostile
    assert found["messages"][0]["told"] == hostile


def test_what_names_and_settings_hold_stays_text(report) -> None:
    bad = '<b onload="x">"\'& {{script}}'
    calm = Page(build_report(replace(report, baselines={}, parameters={"a": {"b": 1}})))
    group = GroupReport(job_id=bad, status=bad, note=bad, model_before=bad, proof=bad)
    dressed = replace(
        report,
        run=bad,
        status=bad,
        code_version=bad,
        created_at=bad,
        baselines={bad: report.baselines["believe the prover"]},
        parameters={bad: {bad: bad}},
        iterations=[replace(report.iterations[0], groups={bad: group}, stage_s={bad: 1.0})],
    )
    page = Page(build_report(dressed))
    assert not any(tag == "b" or "onload" in attributes for tag, attributes in page.elements)
    assert page.scripts[1] == calm.scripts[1]
    assert page.text.count(bad) >= 10


def test_the_same_data_gives_the_same_page(report) -> None:
    assert build_report(report) == build_report(report)


def test_a_run_that_has_done_nothing_yet_has_a_report() -> None:
    text = Page(build_report(ReportData(run="new", status="running", iterations=[]))).text
    assert "No iteration has been tested yet." in text
    assert "Nothing was trained." in text
    unplayed = ReportData(run="new", status="running", iterations=[IterationReport(0)])
    assert "Nothing was tested." in Page(build_report(unplayed)).text


def test_metrics_without_values_show_dashes(episodes_of, report) -> None:
    buggy_only = evaluate(episodes_of({"y": 0, "decision": 2, "outcome": "terminated"}), None)
    data = replace(report, iterations=[IterationReport(0, buggy_only)], comparisons=())
    assert "nan" not in Page(build_report(data)).text.lower()
    [row] = metrics_table([(0, buggy_only)])
    assert (row["completeness"], row["precision"], row["accuracy"]) == ("–", "–", "0.0\u202f%")


def _decision(promoted: bool, metric: str = "accuracy") -> Decision:
    return Decision(
        promoted=promoted, metric=metric, validation=0.65, candidate=0.61,
        difference=-0.04, ci95=(-0.1, 0.02), problems=60, margin=0.05 * promoted,
        candidates={"verifier": ServedModel("ft:tiny:a-0000-verifier", "tiny")},
    )  # fmt: skip


def test_precision_is_a_dash_where_all_solutions_have_one_label(report) -> None:
    (table,) = re.findall(r'aria-label="Accuracy by mutation".*?</table>', build_report(report))
    (row,) = re.findall(r"<tr><td[^>]*>constant</td>.*?</tr>", table)
    completeness, soundness, precision, _ = re.findall(r"<td.*?</td>", row)[5:]
    assert "–</td>" in precision and "–" in completeness and "%" in soundness
    verdicts = re.findall(r'aria-label="Verdicts by iteration".*?</table>', build_report(report))
    assert "–</td>" not in verdicts[0]


def test_an_iteration_without_times_is_said_to_be_missing_in_the_totals(report) -> None:
    assert "not on record" not in Page(build_report(report)).text
    first, second = report.iterations
    untimed = replace(report, iterations=[first, replace(second, stage_s={})])
    text = Page(build_report(untimed)).text
    assert "Those of iteration 1 are not on record and not in the totals; its tokens are." in text


def test_what_believing_the_prover_gave_before_stands_beside_the_change(report) -> None:
    assert "would have given" not in Page(build_report(report)).text
    first, second = report.iterations
    test = first.test.model_copy(update={"believe_the_prover": BelievedMetrics(accuracy=0.99)})
    believed = replace(report, iterations=[replace(first, test=test), second])
    text = Page(build_report(believed)).text.replace("\u202f", " ")
    assert "In iteration 0, believing the prover would have given 99.0 %." in text


def test_the_decision_of_the_gate_is_shown(report) -> None:
    assert "Promotion" not in Page(build_report(report)).text
    first, second = report.iterations
    decided = replace(
        report,
        iterations=[
            replace(first, promotion=_decision(False)),
            replace(second, promotion=_decision(True, "verifier_reward")),
        ],
    )
    text = Page(build_report(decided)).text.replace(" ", " ")
    for expected in (
        "0 accuracy 65.0 % 61.0 % −4.0 pts −10.0 pts to +2.0 pts 60 problems 0.0 pts refused",
        "1 verifier reward +0.65 +0.61 −0.04 −0.10 to +0.02 60 problems 0.05 taken",
        "verifier: ft:tiny:a-0000-verifier",
    ):
        assert expected in text, expected


def test_the_table_shows_what_the_gate_decided_of_untested_iterations_too(report) -> None:
    tested = [(0, report.iterations[0].test)]
    assert "new models" not in metrics_table(tested)[0]
    first, second = metrics_table(tested, {1: _decision(False)})
    assert (first["iteration"], first["new models"]) == (0, "–")
    assert (second["iteration"], second["accuracy"]) == (1, "–")
    assert second["new models"] == "refused: accuracy 61.0 % after 65.0 %"
    json.dumps([first, second])


def test_what_the_trainer_left_out_is_shown_with_the_method_and_the_price(report) -> None:
    group = replace(
        report.iterations[0].groups["players"],
        method="dpo",
        counts={"candidates": 300, "too_close": 177},
        tokens=5_000,
        trained_tokens=None,
        training_usd=0.125,
    )
    data = replace(report, iterations=[replace(report.iterations[0], groups={"players": group})])
    text = Page(build_report(data)).text.replace(" ", " ")
    for expected in ("candidates 300 too close 177", "method dpo", "about 5,000", "about $0.12"):
        assert expected in text, expected


def test_a_skipped_job_has_trained_on_no_tokens_and_cost_nothing(report) -> None:
    group = replace(
        report.iterations[0].groups["players"],
        status="skipped",
        note="7 examples, 10 needed",
        tokens=5_000,
        trained_tokens=None,
        training_usd=0.125,
    )
    data = replace(report, iterations=[replace(report.iterations[0], groups={"players": group})])
    text = Page(build_report(data)).text
    assert "skipped: 7 examples, 10 needed" in text
    assert "about" not in text[text.index("7 examples, 10 needed") :][:80]


def test_metrics_of_an_older_version_are_shown_without_their_intervals(report) -> None:
    """They had intervals of four rates only, and few numbers in the breakdowns."""
    old = report.iterations[0].test.as_json()
    kept = {f"{name}_ci95" for name in ("accuracy", "completeness", "soundness", "precision")}
    old = {key: value for key, value in old.items() if not key.endswith("_ci95") or key in kept}
    old["agents"] = {"verifier": {"mean_reward": 0.5, "std_reward": 0.1}}
    few = ("episodes", "distinct_problems", "accuracy", "accuracy_ci95", "completeness")
    for name in ("by_difficulty", "by_mutation"):
        old[name] = {key: {k: part[k] for k in few} for key, part in old[name].items()}
    old = SplitMetrics.model_validate(old)
    text = Page(build_report(replace(report, iterations=[IterationReport(0, old)]))).text
    assert "verifier +0.50 – –" in text and "50.0" in text
    assert metrics_table([(0, old)])[0]["reward verifier"] == "+0.50"


def test_neither_has_a_column_where_a_verdict_was_neither(episodes_of, report) -> None:
    assert "Neither" not in Page(build_report(report)).text
    middle = evaluate(
        episodes_of({"decision": 3, "decision_value": 0.0}, {"y": 1, "decision_value": 0.5}), None
    )
    scaled = replace(report, iterations=[*report.iterations, IterationReport(2, middle)])
    shown = Page(build_report(scaled)).text.replace("\u202f", " ")
    assert "Neither" in shown and "50.0 % 9.5 – 90.5 % +0.25 +0.00 – +0.50" in shown
    assert [row["neither"] for row in metrics_table([(2, middle), (3, report.iterations[0].test)])]


def test_a_verdict_in_the_middle_of_the_scale_has_a_word_in_the_transcripts(report) -> None:
    """The page's script has a word for each decision that a table can hold."""
    script = Page(build_report(report)).scripts[1]
    [words] = re.findall(r"const DECISIONS = (\[.*?\]);", script)
    assert json.loads(words) == [DECISION_WORDS[i] for i in range(4)]


def test_the_table_has_one_flat_row_per_iteration(report) -> None:
    rows = metrics_table([(entry.iteration, entry.test) for entry in report.iterations])
    assert [row["iteration"] for row in rows] == [0, 1]
    assert rows[1]["accuracy"] == "81.0\u202f%"
    assert rows[1]["reward verifier"] == "+1.00"
    json.dumps(rows)


def test_what_nothing_shows_the_spread_of_is_said_in_words(episodes_of, report) -> None:
    rows = [{"problem": f"p{k}", "question_id": f"q{k // 8}", "y": k % 2, "decision": k % 2}
            for k in range(264)]  # fmt: skip
    table = episodes_of(*rows)
    sure = evaluate(table, None, questions=find_questions(table))
    bounds = {"soundness": RateBound(questions=33, at_most=at_most(0, 33))}
    test = sure.model_copy(update={"questions": 33, "bounds": bounds})
    asked = {"problems": 264, "questions": 33}
    same = PairedDifference(difference=0.0, ci95=(0.0, 0.0), p=1.0, **asked)
    better = PairedDifference(difference=0.1, ci95=(0.05, 0.15), p=1e-6, **asked)
    pairs = [Comparison(1, same, 1.0), Comparison(2, better, 2e-6)]
    iterations = [IterationReport(k, test) for k in range(3)]
    data = replace(report, iterations=iterations, comparisons=pairs)
    text = Page(build_report(data)).text.replace("\u202f", " ")
    for expected in (
        "no error in 33 questions: at most 8.7 % (95 %, one-sided)",
        "264 problems of 33 questions in iteration 2",
        "+5.0 to +15.0, paired over 264 problems of 33 questions; p < 0.0001",
        "Against the first test",
        "all equal",
    ):
        assert expected in text
    for pair, words in (
        (same, "+0.0 points (the same on each of 264 problems of 33 questions; p = 1"),
        (
            same.model_copy(update={"ci95": None, "p": None}),
            "(no interval, as there are 264 problems of 33",
        ),
    ):
        once = replace(data, comparisons=[Comparison(2, pair)])
        assert words in Page(build_report(once)).text.replace("\u202f", " ")
