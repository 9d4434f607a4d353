"""What mutants and rewrites promise: one change each, in a fixed order, in one style."""

import ast
import os
import subprocess
import sys

import pytest

from factory.problems.sources import SOURCES
from nip_core.problems.mutate import KINDS, mutants, normalise
from nip_core.problems.rewrite import REWRITES, apply, rewrites
from nip_core.problems.sandbox import Suite, run_tests_batch


def changes(source, kind):
    """The mutants of one kind, without their common first line."""
    return {
        m.source.removeprefix("def f(a, b):\n    ").strip()
        for m in mutants(source)
        if m.kind == kind
    }


def body(text):
    return "def f(a, b):\n    " + text.replace("\n", "\n    ")


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("boundary", "return a < b", {"return a <= b"}),
        ("boundary", "return 0 <= a < b", {"return 0 < a < b", "return 0 <= a <= b"}),
        ("comparison", "return a < b", {"return a > b"}),
        ("comparison", "return a in b", {"return a not in b"}),
        ("operator", "a += b", {"a -= b"}),
        ("operator", "return a % b", {"return a // b", "return b % a"}),
        ("constant", "a = 7", {"a = 8", "a = 6"}),
        ("constant", "a = True", {"a = False"}),
        ("string", "a = ', '", {"a = ','", "a = ' '"}),
        ("return", "return True", {"return False"}),
        ("return", "return (a, b)", {"return (b, a)"}),
        ("index", "return a[0]", {"return a[-1]", "return a[1]"}),
        ("index", "return a[b - 1]", {"return a[b - 2]", "return a[b]"}),
        ("slice", "return a[::2]", {"return a[:]"}),
        (
            "slice",
            "return a[1:]",
            {"return a[2:]", "return a[0:]", "return a[:]", "return a[1:-1]"},
        ),
        ("loop_bound", "range(b)", {"range(b - 1)", "range(b + 1)", "range(1, b)"}),
        ("boolean", "return a and b", {"return a or b", "return b", "return a"}),
        ("boolean", "return not a", {"return a"}),
        ("call", "return min(a, b)", {"return max(a, b)"}),
        ("call", "a.append(b)", {"a.extend(b)", "a.insert(0, b)"}),
        ("argument", "return sorted(a, reverse=True)", {"return sorted(a)"}),
        ("argument", "return max(a, b)", {"return a", "return b"}),
        ("statement", "a += b", {"pass", "a = b"}),
        ("variable", "return a", {"return b"}),
    ],
)
def test_each_kind_makes_its_changes(kind, before, after):
    assert changes(body(before), kind) == after


def test_branches_are_negated_removed_and_exchanged():
    found = changes(body("if a < 1:\n    b = 2\nelse:\n    b = 3"), "branch")
    assert "if a >= 1:\n        b = 2\n    else:\n        b = 3" in found
    assert {"b = 2", "b = 3", "if a < 1:\n        b = 2"} <= found


def test_a_loop_may_return_too_early():
    found = changes(body("for x in a:\n    b += x\nreturn b"), "return")
    assert found == {"for x in a:\n        b += x\n        return b\n    return b"}


def test_break_and_continue_are_exchanged_or_dropped():
    found = changes(body("for x in a:\n    if x:\n        break"), "jump")
    assert {text.split()[-1] for text in found} == {"pass", "continue"}


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


def test_comments_and_formatting_do_not_count():
    plain = "def f(a):\n    return a + 1\n"
    assert normalise("def f( a ) :\n    # why\n    return (a+1)") == plain
    assert mutants("def f( a ):\n\n    return (a+1)  # why") == mutants(plain)


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
from nip_core.problems.mutate import mutants
from factory.problems.sources import SOURCES
from nip_core.problems.rewrite import rewrites
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


def test_what_is_not_python_is_refused():
    with pytest.raises(SyntaxError):
        mutants("def f(:")


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("mirror_comparison", "return a < b", "return b > a"),
        ("expand_assignment", "a += b", "a = a + b"),
        ("contract_assignment", "a = a + b", "a += b"),
        ("split_chain", "return 0 < a < b", "return 0 < a and a < b"),
        ("invert_if", "return 1 if a < b else 2", "return 2 if a >= b else 1"),
        ("conditional_statement", "return 1 if a else 2", "if a:\n    return 1\nreturn 2"),
        ("drop_else", "if a:\n    return 1\nelse:\n    return 2", "if a:\n    return 1\nreturn 2"),
        ("add_else", "if a:\n    return 1\nreturn 2", "if a:\n    return 1\nelse:\n    return 2"),
        ("name_result", "return a + b", "outcome = a + b\nreturn outcome"),
        ("rename_locals", "c = a\nreturn c + b", "d = a\nreturn d + b"),
        (
            "while_loop",
            "for i in range(b):\n    a += i\nreturn a",
            "i = 0\nwhile i < b:\n    a += i\n    i += 1\nreturn a",
        ),
        (
            "index_loop",
            "for i, x in enumerate(a):\n    b += i * x\nreturn b",
            "for i in range(len(a)):\n    x = a[i]\n    b += i * x\nreturn b",
        ),
        (
            "unroll_comprehension",
            "return [x for x in a if x]",
            "collected = []\nfor x in a:\n    if x:\n        collected.append(x)\nreturn collected",
        ),
    ],
)
def test_each_rewrite_writes_it_differently(kind, before, after):
    assert apply(body(before), kind) == body(after) + "\n"


def test_a_loop_with_continue_stays_a_for_loop():
    source = body("for i in range(b):\n    if i:\n        continue\n    a += i\nreturn a") + "\n"
    assert apply(source, "while_loop") == source


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
