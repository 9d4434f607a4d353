"""The verdicts that a verifier sampled in training on what attackers said of wrong problems.

Expert iteration and policy gradient reward only what was sampled: a kind of verdict that never was
is never learned.
"""

from typing import NamedTuple

import pyarrow.compute as pc

from nip_core.evaluation.split_metrics import Figures
from nip_core.parameters import HyperParameters
from nip_core.protocols import NO_DECISION, REJECT
from nip_core.rollouts.plan import TRAIN
from nip_core.rollouts.storage.table_rows import read_rows
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore
from nip_core.scenarios import make_scenario
from nip_core.scenarios.base import RULE_MODEL
from nip_core.scenarios.checked import call_scenario


class _Answer(NamedTuple):
    """The parts of a verifier's answer that are looked at; the fields are columns."""

    episode: str
    agent: str
    decision: int
    invalid_reason: str | None
    model_served: str
    text: str


class SampledVerdicts(Figures):
    """The verdicts on attackers' messages in the training of one run."""

    verdicts: int
    rejected: int
    unchecked: int | None = None
    """Of the rejected those without a comparison; None: the scenario can't tell."""

    @property
    def in_words(self) -> str:
        """Say how many rejected, as "of 40: 3 rejected, 1 without a comparison"."""
        unchecked = "" if self.unchecked is None else f", {self.unchecked} without a comparison"
        return f"of {self.verdicts:,}: {self.rejected:,} rejected{unchecked}"

    @property
    def missing(self) -> str | None:
        """Name the kind of verdict that was never sampled; None where each was."""
        if self.unchecked is None:
            return None if self.rejected else "rejected"
        return None if self.unchecked else "rejected without a comparison"


def count_sampled_verdicts(run: RunStore, parameters: HyperParameters) -> SampledVerdicts | None:
    """Count the verdicts in committed training episodes with attackers on wrong problems.

    None where there are no such episodes yet.
    """
    places = [run.rollouts(i, TRAIN) for i in range(parameters.rl.num_iterations)]
    rollouts = StoredRollouts(run.store, [p for p in places if is_committed(run.store, p)])
    episodes = rollouts.episodes(["key", "y", "opponent_run"])
    is_wrong = pc.equal(episodes["y"], 0)
    met_others = pc.and_(pc.is_valid(episodes["opponent_run"]), is_wrong)
    keys = {*episodes.filter(met_others)["key"].to_pylist()}
    # The last answer, where the verifier was asked again. Verdicts by a rule are no model's.
    answers = {
        answer.episode: answer
        for answer in read_rows(rollouts.generations(_Answer._fields), _Answer)
        if answer.agent == "verifier"
        and answer.episode in keys
        and answer.decision != NO_DECISION
        and answer.invalid_reason is None
        and answer.model_served != RULE_MODEL
    }
    if not answers:
        return None
    scenario = make_scenario(parameters)
    rejected = [answer.text for answer in answers.values() if answer.decision == REJECT]
    checked = [call_scenario(scenario, "checks_answers", text) for text in (*rejected, "")]
    return SampledVerdicts(
        verdicts=len(answers),
        rejected=len(rejected),
        unchecked=None if None in checked else checked[:-1].count(False),
    )


def sampled_section(by_round: dict[int, SampledVerdicts], *, shows: bool) -> str:
    """Explain the column of a hardening's page, and name the rounds that lack a kind of verdict."""
    text = (
        "\nSampled verdicts: on what attackers said of wrong problems, in the training episodes of "
        "the round.\n"
    )
    for number, sampled in by_round.items():
        if sampled.missing is not None:
            advice = "" if shows else "; `--show` gives some"
            text += (
                f"\nRound {number}: no sampled verdict {sampled.missing}, so training on sampled "
                f"verdicts can't teach it{advice}.\n"
            )
    return text
