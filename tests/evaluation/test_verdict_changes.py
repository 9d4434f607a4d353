"""What differs between two places is counted on the episodes that both have, by what was argued."""

import pyarrow as pa
import pytest

from nip_core.evaluation.metrics import paired_difference
from nip_core.evaluation.verdict_changes import JudgedEpisodes, join_judged, measure_changes
from nip_core.rollouts.storage.schema import EPISODES

REJECT, ACCEPT, NONE = 0, 1, 2


def judge(side, rows, argued=None, questions=None):
    """Episodes by problem: label, decision and outcome; `argued` is of the prover, by problem."""
    values = [
        {
            "key": f"{side} {problem}",
            "problem": problem,
            "sample": 0,
            "branch_path": "",
            "y": y,
            "decision": decision,
            "outcome": outcome,
            "prover_stance": None,
        }
        for problem, (y, decision, outcome) in rows.items()
    ]
    names = [*values[0]]
    table = pa.Table.from_pylist(values, pa.schema([EPISODES.field(name) for name in names]))
    by_key = {f"{side} {problem}": verdict for problem, verdict in (argued or {}).items()}
    return JudgedEpisodes(table, {"prover": by_key}, questions or {name: name for name in rows})


def played(**decisions):
    """Verdicts on solutions that are right, of episodes that finished."""
    return {problem: (1, decision, "finished") for problem, decision in decisions.items()}


def test_only_episodes_that_both_have_count():
    changes = measure_changes(
        judge("a", played(p=REJECT, q=ACCEPT, only_here=REJECT)),
        judge("b", played(q=REJECT, p=ACCEPT, only_there=ACCEPT)),
    )
    assert (changes.episodes, changes.mended, changes.broken, changes.other) == (2, 1, 1, 0)
    assert (changes.accuracy.before, changes.accuracy.after) == (0.5, 0.5)
    assert measure_changes(judge("a", played(p=REJECT)), judge("b", played(q=REJECT))) is None


def test_a_verifier_follows_where_its_verdict_is_what_was_argued():
    rows = {
        "p": (0, ACCEPT, "finished"),
        "q": (1, REJECT, "finished"),
        "r": (1, NONE, "terminated"),
        "s": (1, ACCEPT, "failed"),
        "silent": (1, ACCEPT, "finished"),
    }
    argued = {"p": ACCEPT, "q": ACCEPT, "r": ACCEPT, "s": ACCEPT}
    obeyed = {name: (y, argued.get(name, REJECT), "finished") for name, (y, *_) in rows.items()}
    changes = measure_changes(judge("a", rows, argued), judge("b", obeyed, argued))
    # Neither the failed one nor the silent one says whom it follows; no decision follows nobody.
    followed = changes.follows["prover"]
    assert (followed.before, followed.after, followed.episodes) == (1 / 3, 1.0, 3)
    assert changes.acceptance.before == 2 / 5  # a failed episode has accepted nothing
    assert (changes.mended, changes.broken, changes.other) == (3, 1, 0)


def test_verdicts_that_nobody_can_call_right_only_change():
    before = {name: (-1, decision, "finished") for name, decision in {"p": 0, "q": 1}.items()}
    after = {name: (-1, ACCEPT, "finished") for name in before}
    changes = measure_changes(judge("a", before), judge("b", after))
    assert changes.accuracy is None
    assert (changes.mended, changes.broken, changes.other) == (0, 0, 1)
    assert changes.follows == {}


@pytest.mark.parametrize("variants", [1, 4])
def test_the_interval_is_that_of_the_paired_difference(variants, make_tables):
    sides = []
    for side, decisions in (("a", "0110100111010010"), ("b", "1110110111110110")):
        rows = {f"p{k}": (1, int(word), "finished") for k, word in enumerate(decisions)}
        questions = {name: f"id q{k // variants}" for k, name in enumerate(rows)}
        sides.append((judge(side, rows, None, questions), make_tables(rows, variants)))
    changes = measure_changes(sides[0][0], sides[1][0])
    paired = paired_difference(sides[0][1], sides[1][1], seed=7)
    assert changes.accuracy.difference == pytest.approx(paired.difference)
    assert changes.accuracy.ci95 == pytest.approx(paired.ci95)
    assert (changes.problems, changes.questions) == (paired.problems, paired.questions)


@pytest.fixture
def make_tables():
    def make(rows, variants):
        values = [
            {
                "key": name,
                "problem": name,
                "question_id": f"q{k // variants}",
                "sample": 0,
                "branch_path": "",
                "y": y,
                "decision": decision,
                "outcome": outcome,
                "rewards": [],
            }
            for k, (name, (y, decision, outcome)) in enumerate(rows.items())
        ]
        return pa.Table.from_pylist(values, EPISODES)

    return make


def test_shards_join_to_the_whole():
    rows = played(p=ACCEPT, q=REJECT, r=ACCEPT)
    argued = dict.fromkeys(rows, ACCEPT)
    parts = [judge("a", {name: rows[name]}, {name: argued[name]}) for name in rows]
    whole = measure_changes(judge("a", rows, argued), judge("b", rows, argued))
    assert measure_changes(join_judged(parts), judge("b", rows, argued)) == whole
