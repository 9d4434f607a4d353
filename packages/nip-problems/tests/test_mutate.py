"""What mutants and rewrites promise: one change each, in a fixed order, in one style."""

import pytest

from nip_core.hashing import derive_key, numbered_keys
from nip_problems import mutants, normalise
from nip_problems.mutation.rewrite import apply_rewrite
from nip_problems.variants import report_progress


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


def test_comments_and_formatting_do_not_count():
    plain = "def f(a):\n    return a + 1\n"
    assert normalise("def f( a ) :\n    # why\n    return (a+1)") == plain
    assert mutants("def f( a ):\n\n    return (a+1)  # why") == mutants(plain)


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
    assert apply_rewrite(body(before), kind) == body(after) + "\n"


def test_a_loop_with_continue_stays_a_for_loop():
    source = body("for i in range(b):\n    if i:\n        continue\n    a += i\nreturn a") + "\n"
    assert apply_rewrite(source, "while_loop") == source


def test_the_order_of_mutants_is_that_of_keys_hashed_from_the_whole_text():
    keys = numbered_keys(12, "mutants", 'a "text"\n\u00e9')
    assert keys == [derive_key("mutants", 'a "text"\n\u00e9', number) for number in range(12)]


def test_whoever_waits_for_many_problems_is_told_how_far_they_are():
    lines = []
    assert list(report_progress("abc", lines.append, "problems have mutants", every_s=0)) == [
        "a",
        "b",
        "c",
    ]
    assert lines[-1] == "2 of 3 problems have mutants"
