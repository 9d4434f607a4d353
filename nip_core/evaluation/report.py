"""The report of a run: one HTML file that needs nothing but itself.

ReportData, IterationReport, GroupReport   the plain data it is built from
build_report                               the page
metrics_table                              the numbers by iteration as rows, for a table elsewhere

Its parts: `report_sections` and `report_training` turn the data into tables (`report_tables`),
`report_text` values into text; `report_template.html`, `report.css` and `report.js` are put
together here.

What is covered: text that models or data sets wrote can't run as script. It is embedded as JSON
in which no character can end the element, the page shows it as text only, and its content
security policy allows no request and no script but its own, named by its hash.
What is not covered: a reader who copies code out of the page and runs it.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Any

from nip_core.evaluation import report_sections as sections
from nip_core.evaluation import report_training as training
from nip_core.evaluation.plots import MetricsByIteration, learning_curve_svg
from nip_core.evaluation.report_tables import nothing
from nip_core.evaluation.report_text import percent, percent_range, promotion_words, signed
from nip_core.evaluation.transcripts import Transcript


@dataclass(frozen=True)
class GroupReport:
    """What one shared model group learned in one iteration; None where there is nothing to say."""

    episodes: int | None = None  # episodes that examples could be chosen from
    examples: int | None = None  # examples chosen
    job_id: str | None = None
    status: str | None = None
    loss: Sequence[tuple[int, float]] = ()  # (step, loss)
    trained_tokens: int | None = None
    model_before: str | None = None  # served while the iteration was played
    model_after: str | None = None
    proof: str | None = None  # how it was shown that the new weights answer
    note: str | None = None  # for example why nothing was trained
    method: str | None = None  # of the training: supervised, dpo or trajectories
    counts: Mapping[str, int] = field(default_factory=dict)  # what was left out, by reason
    tokens: int | None = None  # of the examples, before the job
    training_usd: float | None = None  # what training on them was expected to cost


@dataclass(frozen=True)
class IterationReport:
    """One iteration. `test` measures the models that play it, before its training."""

    iteration: int
    test: Mapping[str, Any] | None = None  # as `evaluate` returns it
    train: Mapping[str, Any] | None = None
    groups: Mapping[str, GroupReport] = field(default_factory=dict)
    stage_s: Mapping[str, float] = field(default_factory=dict)  # seconds by stage
    cost_usd: float | None = None
    promotion: Mapping[str, Any] | None = None  # what the gate decided after the training
    gate: Sequence[Mapping[str, Any]] = ()  # metrics of what both sides played for it


@dataclass(frozen=True)
class ReportData:
    """Everything the page shows."""

    run: str
    status: str
    iterations: Sequence[IterationReport]
    parameters: Mapping[str, Any] = field(default_factory=dict)  # resolved, JSON-encodable
    transcripts: Sequence[Transcript] = ()
    transcripts_left_out: Sequence[tuple[int, str, Mapping[str, int]]] = ()
    """Iteration, split, and how many episodes are not among the transcripts, by reason."""
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> metrics
    paired: Mapping[str, Any] | None = None  # `paired_difference` of first and last iteration
    created_at: str | None = None  # when the run was created
    code_version: str | None = None
    left_out: str | None = None  # how many problems were too long to be played, in words


def build_report(report: ReportData) -> str:
    """The page as HTML text, to be written as UTF-8. The same data gives the same text."""
    script = _asset("report.js")
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    curve = [(entry.iteration, entry.test) for entry in report.iterations if entry.test]
    parts = {
        "title": html.escape(report.run),
        "script_hash": script_hash,
        "style": _asset("report.css"),
        "script": script,
        "header": sections.header(report),
        "headline": sections.headline(report),
        "curve": learning_curve_svg(curve) if curve else nothing("Nothing was tested."),
        "verdicts": sections.verdict_table(report),
        "training": training.training_table(report),
        "promotion": training.promotion_part(report),
        "episodes": sections.episode_table(report),
        "agents": sections.agent_table(report),
        "difficulty": sections.breakdown_table(report, "by_difficulty", "Difficulty"),
        "mutation": sections.breakdown_table(report, "by_mutation", "Mutation"),
        "resources": sections.resource_table(report),
        "parameters": sections.parameter_tree(report.parameters),
        "transcripts_note": sections.transcripts_note(report),
        "transcripts": _embed(_transcripts(report.transcripts)),
    }
    # One pass, so that what is put in is never searched for places again.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("report_template.html"))


def metrics_table(
    rows: MetricsByIteration, promotions: Mapping[int, Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """One flat dict of short texts and counts per iteration, for a table artifact.

    `rows` are (iteration, metrics); `promotions` has the decisions of the gate by iteration, also
    of such as were not tested.
    """
    promotions = promotions or {}
    tested = dict(rows)
    rows = [(i, tested.get(i, {})) for i in sorted({*tested, *promotions})]
    scaled = sections.has_neither(metrics for _, metrics in rows)
    return [
        {
            "iteration": iteration,
            "episodes": metrics.get("episodes"),
            "accuracy": percent(metrics.get("accuracy")),
            "95 % interval": percent_range(metrics.get("accuracy_ci95")),
            "completeness": percent(metrics.get("completeness")),
            "soundness": percent(metrics.get("soundness")),
            "precision": percent(metrics.get("precision")),
            "no decision": percent(metrics.get("no_decision_rate")),
            **({"neither": percent(metrics.get("neither_rate"))} if scaled else {}),
            "failed": percent(metrics.get("failed_rate")),
            **{
                f"reward {name}": signed(values.get("mean_reward"))
                for name, values in (metrics.get("agents") or {}).items()
            },
            **({"new models": promotion_words(promotions.get(iteration))} if promotions else {}),
        }
        for iteration, metrics in rows
    ]


def _asset(name: str) -> str:
    return (resources.files("nip_core.evaluation") / name).read_text(encoding="utf-8")


def _transcripts(transcripts: Sequence[Transcript]) -> dict[str, Any]:
    """The transcripts, and apart from them their system prompts, which many of them share."""
    prompts: dict[str, int] = {}
    plain = [
        {
            **asdict(transcript),
            "right": transcript.right,
            "system_prompts": {
                agent: prompts.setdefault(prompt, len(prompts))
                for agent, prompt in transcript.system_prompts.items()
            },
        }
        for transcript in transcripts
    ]
    return {"prompts": list(prompts), "transcripts": plain}


def _embed(value: Any) -> str:
    """`value` as JSON that can stand in a script element: pure ASCII, without <, > and &.

    No text in it can then close the element, open a comment, or hold the two line separators
    (U+2028, U+2029) that JSON allows and JavaScript once did not.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
