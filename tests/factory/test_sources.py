"""What mutants and rewrites do to the sources of every bundled problem."""

import ast
import os
import subprocess
import sys

import pytest

from factory.problems.sources import SOURCES
from nip_problems import mutants, normalise, rewrites
from nip_problems.mutation.mutators import KINDS
from nip_problems.mutation.rewrite import REWRITES
from nip_sandbox.sandbox import Suite, run_tests_batch


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.slug)
def test_every_mutant_is_other_code_in_the_same_style(source):
    original = normalise(source.solutions[0])
    found = mutants(original)
    texts = [mutant.source for mutant in found]
    assert len(set(texts)) == len(texts) >= 8
    assert original not in texts
    for mutant in found:
        assert mutant.kind in KINDS
        assert normalise(mutant.source) == mutant.source
        assert 1 <= mutant.line <= original.count("\n")
        assert " -> " in mutant.description


def test_a_number_of_mutants_are_some_of_all():
    source = SOURCES[0].solutions[0]
    everything = {m.source for m in mutants(source)}
    some = mutants(source, at_most=7)
    assert len(some) == 7
    assert {m.source for m in some} < everything
    assert some[:3] == mutants(source, at_most=3)
    assert len(mutants(source, at_most=10**6)) == len(everything)


def test_every_process_makes_the_same_mutants_and_rewrites():
    script = """
from nip_problems.mutation.mutate import mutants
from factory.problems.sources import SOURCES
from nip_problems.mutation.rewrite import rewrites
text = SOURCES[5].solutions[0]
print([m.source for m in mutants(text, at_most=20)], [r.source for r in rewrites(text)])
"""
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_almost_every_rewrite_of_every_problem_keeps_what_the_code_does():
    found = [(s, r) for s in SOURCES for r in rewrites(s.solutions[0]) if len(r.kinds) == 1]
    suites = [Suite(r.source, s.tests) for s, r in found]
    reports = run_tests_batch(suites, max_steps=20_000, workers=2, allow_without_namespaces=True)
    wrong = [(s.slug, r.kinds) for (s, r), report in zip(found, reports) if not report.all_passed]
    # A loop over a list that grows meanwhile can't become a loop over its first length.
    assert len(wrong) <= len(found) / 100, wrong
    assert len({r.kinds[0] for _, r in found}) >= len(REWRITES) - 2


def test_rewrites_keep_the_names_that_the_question_gives():
    for source in SOURCES:
        before = ast.parse(source.solutions[0]).body[-1]
        for rewrite in rewrites(source.solutions[0]):
            after = ast.parse(rewrite.source).body[-1]
            assert (after.name, ast.dump(after.args)) == (before.name, ast.dump(before.args))
