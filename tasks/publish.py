"""The artifacts of a run in Prefect's UI, under stable keys, made from committed files.

nip-<run>-state           store, manifests and models: enough for another worker to go on
nip-<run>-metrics         the table of iterations
nip-<run>-learning-curve  accuracy by iteration as a picture in text
nip-<run>-samples         a few transcripts
nip-<run>-cost            tokens and money so far, by stage

How far the run is, which changes all the time, is shown by `progress`.
"""

import json
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import (
    Artifact,
    acreate_markdown_artifact,
    acreate_table_artifact,
)

from nip_core.evaluation.baseline_words import believed_line
from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.evaluation.transcripts_markdown import transcripts_markdown
from nip_core.progress.phases import describe_phases
from nip_core.report.embedding import thin_out
from nip_core.report.report import metrics_table
from nip_core.rollouts.plan import TEST
from nip_core.session.session import Session
from nip_core.showing.transcripts import choose_newest_sample
from nip_core.stages.publishing import (
    Milestone,
    describe_milestone,
    describe_state,
    list_spending,
)

_SAMPLES = 5
_BAR = 40
_ROWS = 60  # of iterations in a table; of a longer run some are left out


async def publish_artifacts(
    session: Session, milestone: Milestone, iteration: int, samples: bool
) -> None:
    """Write the artifacts of all committed data, after this milestone of the iteration.

    The `samples` are read from whole splits, and left out where nothing was played since they were
    published.
    """
    try:
        with session.progress.doing("publishing to Prefect"):
            await _publish_all(session, describe_milestone(milestone, iteration), samples)
    except Exception as error:
        # A view for people: the run goes on without it, and a later stage publishes it again.
        get_run_logger().warning("artifacts not published: %s: %s", type(error).__name__, error)


async def _publish_all(session: Session, milestone: str, with_samples: bool) -> None:
    run, records = session.run.name, session.records
    await acreate_markdown_artifact(
        key=f"nip-{run}-state",
        markdown=_state(session, milestone),
        description=f"State after {milestone}",
    )
    records_with_news = [
        r for r in records.all() if r.metrics(TEST) is not None or r.promotion is not None
    ]
    records_shown = thin_out(records_with_news, _ROWS)
    tests = [(record.iteration, record.metrics(TEST)) for record in records_shown]
    rows = [(iteration, metrics) for iteration, metrics in tests if metrics is not None]
    decisions = {r.iteration: r.promotion for r in records_shown if r.promotion is not None}
    if rows or decisions:
        await acreate_table_artifact(
            key=f"nip-{run}-metrics",
            table=metrics_table(rows, decisions),
            description="The verifier on test problems, before each iteration's training",
        )
    if rows:
        await acreate_markdown_artifact(
            key=f"nip-{run}-learning-curve",
            markdown=learning_curve_markdown(rows),
            description="Accuracy on test problems by iteration",
        )
    await acreate_table_artifact(
        key=f"nip-{run}-cost",
        table=list_spending(session.run, session.parameters, records),
        description="Tokens and US dollars so far, by stage, from what is committed",
    )
    if phases := describe_phases([record.stage_s for record in records.all()]):
        await acreate_table_artifact(
            key=f"nip-{run}-times",
            table=[
                {"phase": words, "seconds": round(spent_s, 1), "share": f"{share:.1%}"}
                for words, spent_s, share in phases
            ],
            description="The time of the iterations on record, by phase",
        )
    samples = choose_newest_sample(session.run, _SAMPLES, records) if with_samples else []
    if samples:
        await acreate_markdown_artifact(
            key=f"nip-{run}-samples",
            markdown=transcripts_markdown(samples, _SAMPLES),
            description="Transcripts of the newest episodes",
        )


def _state(session: Session, milestone: str) -> str:
    state = json.dumps(describe_state(session.run, milestone, session.records), indent=1)
    return f"Run `{session.run.name}` after {milestone}.\n\n```json\n{state}\n```\n"


def learning_curve_markdown(rows: list[tuple[int, SplitMetrics]]) -> str:
    """Draw accuracy by iteration as bars of text; every version of the UI shows those."""
    lines = ["Accuracy on test problems, with 95 % intervals", "", "```text"]
    for iteration, metrics in rows:
        accuracy, interval = metrics.accuracy, metrics.accuracy_ci95
        if accuracy is None or interval is None:
            continue
        bar = "█" * round(accuracy * _BAR)
        lines.append(
            # The bar last: its characters are not as wide as others in every font.
            f"{iteration:3d} {100 * accuracy:5.1f} % "
            f"[{100 * interval[0]:5.1f}, {100 * interval[1]:5.1f}] {bar}"
        )
    # An accuracy shows nothing by itself: the accuracy of obeying stands beside it.
    last = [line for _, metrics in rows[-1:] if (line := believed_line(metrics))]
    comparison = [f"In the last of them {last[0]}.", ""] if last else []
    return "\n".join([*lines, "```", "", *comparison])


async def published_state(run: str) -> dict[str, Any] | None:
    """The newest state artifact of a run as a document, or None if there is none."""
    artifact = await Artifact.aget(f"nip-{run}-state")
    if artifact is None or not isinstance(artifact.data, str):
        return None
    fenced = artifact.data.partition("```json\n")[2].rpartition("\n```")[0]
    return dict(json.loads(fenced))
