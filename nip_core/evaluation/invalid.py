"""How many answers were asked for again, and why: beside a test's accuracy."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nip_core.evaluation.figures_in_words import plain_percent
from nip_core.evaluation.split_metrics import InvalidAnswers, InvalidCounts
from nip_core.game.answers.reasons import KINDS, is_about_decision, sort_reason
from nip_core.progress.outlook import MANY_INVALID, propose_guide

if TYPE_CHECKING:  # Arrow counts, and the counts are put into words without it
    import pyarrow as pa

    from nip_core.parameters import HyperParameters

_COLUMNS = ("agent", "attempt", "invalid_reason", "finish_reason", "text")
_IN_WORDS: Mapping[str, str] = {str(kind): words for kind, words in KINDS.items()}
"""The kinds in words; documents of other versions may have others."""


@dataclass(frozen=True)
class Help:
    """The helps of agents to keep the form, by their settings."""

    hinted: frozenset[str] = frozenset()
    """They are told what was wrong, see `retry_hint`."""
    guidable: frozenset[str] = frozenset()
    """Their engine could hold them to the form, and is not told to, see `guided_decoding`."""


NO_HELP = Help()


def find_help(parameters: "HyperParameters") -> Help:
    """Read from a run's settings what its agents are helped with."""
    agents = parameters.model_agents
    return Help(
        frozenset(name for name in agents if parameters.gives_hint(name)),
        frozenset(name for name in agents if parameters.could_be_guided(name)),
    )


def invalid_answers(generations: "pa.Table") -> InvalidAnswers | None:
    """Count the answers without a valid form; None where all have one."""
    import pyarrow.compute as pc

    invalid = generations.filter(pc.is_valid(generations["invalid_reason"])).select(_COLUMNS)
    if not invalid.num_rows:
        return None
    first = generations.filter(pc.equal(generations["attempt"], 0))["agent"]
    answer_counts = {
        entry["values"]: entry["counts"] for entry in pc.value_counts(first).to_pylist()
    }
    rows = invalid.to_pylist()
    agents = sorted({row["agent"] for row in rows})
    by_agent = {
        agent: _counts([r for r in rows if r["agent"] == agent], answer_counts.get(agent, 0))
        for agent in agents
    }
    return InvalidAnswers(**dict(_counts(rows, sum(answer_counts.values()))), agents=by_agent)


def _counts(rows: list[dict[str, Any]], first_answers: int) -> InvalidCounts:
    kinds = Counter(
        sort_reason(row["invalid_reason"], row["finish_reason"], row["text"])
        for row in rows
        if row["attempt"] == 0
    )
    return InvalidCounts(
        first_answers=first_answers,
        invalid=kinds.total(),
        by_reason={kind: kinds[kind] for kind in KINDS if kinds[kind]},
        invalid_in_all=len(rows),
    )


def invalid_line(counts: InvalidAnswers | None) -> str | None:
    """Say in a line how many answers were invalid; None where all were valid."""
    if counts is None:
        return None
    agents = [
        f"{name} {count.invalid} of {count.first_answers} "
        f"({plain_percent(count.invalid / count.first_answers)}: {_reasons(count)})"
        for name, count in counts.agents.items()
        if count.invalid
    ]
    return (
        f"invalid first answers: {', '.join(agents) or 'none'}; {counts.invalid_in_all} "
        "invalid answers with retries"
    )


def _reasons(counts: InvalidCounts) -> str:
    by_number = sorted(counts.by_reason.items(), key=lambda item: -item[1])
    return ", ".join(f"{_IN_WORDS.get(kind, kind)} {count}" for kind, count in by_number)


def invalid_warning(counts: InvalidAnswers | None, helps: Help = NO_HELP) -> str | None:
    """Advise where a third of an agent's first answers or more were invalid; else None."""
    shares = {
        name: count.invalid / count.first_answers
        for name, count in (counts.agents if counts else {}).items()
        if count.first_answers and count.invalid >= MANY_INVALID * count.first_answers
    }
    if counts is None or not shares:
        return None
    worst = max(shares, key=lambda name: shares[name])
    by_reason = counts.agents[worst].by_reason
    kind = max(by_reason, key=lambda name: by_reason[name])
    advice = _advice(worst, kind, helps)
    return (
        f"{plain_percent(shares[worst])} of the first answers of {worst} "
        f"could not be used, most often: {_IN_WORDS.get(kind, kind)}. {advice}"
    )


def _advice(agent: str, kind: str, helps: Help) -> str:
    if agent in helps.guidable and kind != "empty":
        return (
            f"With {propose_guide(agent)} the engine holds its answers to their form, whatever the "
            "model would have written (in a new run, or --fork of this one); docs/answers.md says "
            "how."
        )
    if kind == "cut_off":
        return (
            f"Raise agents.{agent}.max_tokens_per_message, or lower "
            f"agents.{agent}.max_response_words."
        )
    if kind == "empty":
        return (
            f"Where the model thinks first, raise agents.{agent}.max_tokens_per_message or lower "
            "its reasoning_effort."
        )
    advice = f"With agents.{agent}.retry_hint: true it is told what was wrong"
    if agent in helps.hinted:
        advice = (
            "It is told what was wrong (retry_hint is on): set another model, by "
            f"agents.{agent}.model_name, or a prompt that shows the form, by "
            f"agents.{agent}.system_prompt_template_path"
        )
    if is_about_decision(kind):
        return f"{advice}; docs/answers.md says which verdicts are read."
    return f"{advice}; its prompt may not say the form clearly enough (nip prompt shows it)."
