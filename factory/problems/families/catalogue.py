"""The families. Each is a few templates; `structure` explains the parts.

Numbers stay small and the wording plain: a model of a million parameters has to learn to read
all of it. Every loop ends for every test input by construction (it counts, or adds a positive
number towards a bound).
"""

from factory.problems.families.structure import (
    Family,
    Slot,
    choice,
    letters,
    numbers,
)

_COMPARISONS = {"greater than": ">", "less than": "<", "at least": ">=", "at most": "<="}


def _sign(name: str = "op") -> Slot:
    return choice(name, "operator", {"plus": "+", "minus": "-"})


def _compare() -> Slot:
    return choice("cmp", "comparison", _COMPARISONS)


def _low() -> Slot:
    return choice("low", "comparison", {"above": ">", "at least": ">="})


def _high() -> Slot:
    return choice("high", "comparison", {"below": "<", "at most": "<="})


def _end(code: dict[str, str]) -> Slot:
    return choice("end", "boundary", code)


def _ascending(words: dict[str, str]) -> bool:
    return int(words["a"]) < int(words["b"])


ARITHMETIC = (
    Family(
        "linear",
        "x",
        (numbers("a", 2, 12), _sign(), numbers("b", 1, 12)),
        ("Return x times {a} {op} {b}.", "Multiply x by {a}, then {op} {b}."),
        ("return x * {a} {op} {b}", "y = x * {a}\nreturn y {op} {b}"),
        "times {a} {op} {b}",
    ),
    Family(
        "shift_scale",
        "x",
        (_sign(), numbers("a", 1, 12), numbers("b", 2, 12)),
        ("Return x {op} {a}, all times {b}.", "Take x {op} {a} and multiply it by {b}."),
        ("return (x {op} {a}) * {b}", "y = x {op} {a}\nreturn y * {b}"),
        "{op} {a} all times {b}",
    ),
    Family(
        "floor_divide",
        "x",
        (_sign(), numbers("a", 1, 12), numbers("b", 2, 12)),
        ("Return x {op} {a}, all divided by {b}, rounded down.",),
        ("return (x {op} {a}) // {b}", "y = x {op} {a}\nreturn y // {b}"),
        "{op} {a} all divided by {b}",
    ),
    Family(
        "remainder",
        "x",
        (numbers("a", 2, 14), _sign(), numbers("b", 1, 12)),
        ("Return the remainder of x divided by {a}, {op} {b}.",),
        ("return x % {a} {op} {b}", "y = x % {a}\nreturn y {op} {b}"),
        "remainder {a} {op} {b}",
    ),
    Family(
        "quadratic",
        "x",
        (_sign(), numbers("a", 2, 12), numbers("b", 1, 12)),
        ("Return x squared {op} {a} times x, plus {b}.",),
        ("return x * x {op} {a} * x + {b}", "y = x * x\nreturn y {op} {a} * x + {b}"),
        "squared {op} {a} x plus {b}",
    ),
    Family(
        "distance",
        "x",
        (
            numbers("a", 1, 20),
            choice("op", "operator", {"times": "*", "plus": "+"}),
            numbers("b", 2, 12),
        ),
        ("Return the distance of x from {a}, {op} {b}.",),
        ("return abs(x - {a}) {op} {b}", "y = abs(x - {a})\nreturn y {op} {b}"),
        "distance from {a} {op} {b}",
    ),
    Family(
        "weighted_sum",
        "xy",
        (numbers("a", 2, 12), _sign(), numbers("b", 2, 12)),
        ("Return {a} times x {op} {b} times y.",),
        ("return {a} * x {op} {b} * y", "z = {b} * y\nreturn {a} * x {op} z"),
        "{a} x {op} {b} y",
    ),
    Family(
        "pick_of_two",
        "xy",
        (
            choice("pick", "reduction", {"larger": "max", "smaller": "min"}),
            numbers("a", 1, 12),
            numbers("b", 2, 12),
        ),
        ("Return the {pick} of x plus {a} and y times {b}.",),
        ("return {pick}(x + {a}, y * {b})", "z = y * {b}\nreturn {pick}(x + {a}, z)"),
        "{pick} of x plus {a} and y times {b}",
    ),
)

CONDITIONALS = (
    Family(
        "clamp",
        "x",
        (numbers("a", 0, 14), numbers("b", 15, 28)),
        ("Return x, but at least {a} and at most {b}.", "Limit x to between {a} and {b}."),
        ("return max({a}, min(x, {b}))", "if x < {a}:\n    return {a}\nreturn min(x, {b})"),
        "between {a} and {b}",
    ),
    Family(
        "threshold",
        "x",
        (numbers("a", 0, 5), _compare(), numbers("c", 8, 20), numbers("b", 0, 5)),
        ("Return {a} if x is {cmp} {c}, otherwise {b}.",),
        ("return {a} if x {cmp} {c} else {b}", "if x {cmp} {c}:\n    return {a}\nreturn {b}"),
        "{a} if {cmp} {c} otherwise {b}",
        lambda words: words["a"] != words["b"],
    ),
    Family(
        "in_range",
        "x",
        (_low(), numbers("a", 1, 15), _high(), numbers("b", 14, 28)),
        ("Return whether x is {low} {a} and {high} {b}.",),
        ("return x {low} {a} and x {high} {b}",),
        "{low} {a} and {high} {b}",
        lambda words: int(words["a"]) + 2 < int(words["b"]),
    ),
    Family(
        "divisible_branch",
        "x",
        (
            choice("is", "comparison", {"divisible": "==", "indivisible": "!="}),
            numbers("a", 3, 9),
            numbers("b", 1, 9),
            numbers("c", 2, 9),
        ),
        ("If x is {is} by {a}, return x plus {b}, otherwise x times {c}.",),
        ("if x % {a} {is} 0:\n    return x + {b}\nreturn x * {c}",),
        "{is} by {a} plus {b} otherwise times {c}",
    ),
)

LOOPS = (
    Family(
        "loop_sum",
        "x",
        (numbers("k", 2, 12), numbers("a", 0, 12), _end({"through": "x + 1", "before": "x"})),
        ("Add up i times {k} for i from {a} {end} x.",),
        ("t = 0\nfor i in range({a}, {end}):\n    t += i * {k}\nreturn t",),
        "sum i times {k} from {a} {end} x",
    ),
    Family(
        "range_list",
        "x",
        (numbers("a", 0, 12), _end({"through": "x + 1", "before": "x"}), numbers("k", 2, 12)),
        ("List the numbers from {a} {end} x in steps of {k}.",),
        ("return list(range({a}, {end}, {k}))", "r = range({a}, {end}, {k})\nreturn list(r)"),
        "numbers from {a} {end} x step {k}",
    ),
    Family(
        "add_until",
        "x",
        (numbers("a", 2, 12), _high(), numbers("c", 10, 25)),
        ("Add {a} to x again and again while x is {high} {c}.",),
        ("while x {high} {c}:\n    x += {a}\nreturn x",),
        "add {a} while {high} {c}",
    ),
    Family(
        "count_steps",
        "x",
        (numbers("a", 2, 12), _low(), numbers("c", 1, 16)),
        ("Count how often {a} can be taken from x while x is {low} {c}.",),
        ("n = 0\nwhile x {low} {c}:\n    x -= {a}\n    n += 1\nreturn n",),
        "steps of {a} while {low} {c}",
    ),
)

LISTS = (
    Family(
        "count_items",
        "xs",
        (_compare(), numbers("c", 5, 20), numbers("n", 6, 18, "boundary")),
        ("Count the items {cmp} {c} among the first {n} of xs.",),
        ("return sum(v {cmp} {c} for v in xs[:{n}])",),
        "count {cmp} {c} in first {n}",
    ),
    Family(
        "sum_multiples",
        "xs",
        (numbers("a", 2, 12), _sign(), numbers("b", 1, 14)),
        ("Return the sum of the items of xs divisible by {a}, {op} {b}.",),
        ("return sum(v for v in xs if v % {a} == 0) {op} {b}",),
        "sum multiples of {a} {op} {b}",
    ),
    Family(
        "keep_between",
        "xs",
        (_low(), numbers("a", 1, 12), _high(), numbers("b", 15, 28)),
        ("Keep the items of xs {low} {a} and {high} {b}.",),
        ("return [v for v in xs if v {low} {a} and v {high} {b}]",),
        "keep {low} {a} and {high} {b}",
    ),
    Family(
        "replace_items",
        "xs",
        (_compare(), numbers("c", 5, 20), numbers("d", 0, 12)),
        ("Put {d} in place of the items of xs {cmp} {c}.",),
        ("return [{d} if v {cmp} {c} else v for v in xs]",),
        "put {d} for {cmp} {c}",
    ),
    Family(
        "each_linear",
        "xs",
        (numbers("a", 2, 12), _sign(), numbers("b", 1, 12)),
        ("Return every item of xs times {a} {op} {b}.",),
        ("return [v * {a} {op} {b} for v in xs]",),
        "each times {a} {op} {b}",
    ),
    Family(
        "first_index",
        "xs",
        (_compare(), numbers("c", 8, 20), numbers("d", 1, 12)),
        ("Return the index of the first item of xs {cmp} {c}, or minus {d} without one.",),
        ("for i, v in enumerate(xs):\n    if v {cmp} {c}:\n        return i\nreturn -{d}",),
        "first {cmp} {c} or minus {d}",
    ),
    Family(
        "head_reduce",
        "xs",
        (
            choice("red", "reduction", {"sum": "sum", "largest": "max", "smallest": "min"}),
            numbers("n", 2, 16, "boundary"),
            numbers("c", 1, 12),
        ),
        ("Return the {red} of the first {n} items of xs, plus {c}.",),
        ("return {red}(xs[:{n}]) + {c}", "y = xs[:{n}]\nreturn {red}(y) + {c}"),
        "{red} of first {n} plus {c}",
    ),
)

SLICES = (
    Family(
        "slice",
        "xs",
        (
            numbers("a", 0, 14, "index"),
            _end({"through": " + 1", "before": ""}),
            numbers("b", 3, 18, "index"),
        ),
        ("Return xs from index {a} {end} index {b}.",),
        ("return xs[{a}:{b}{end}]", "y = xs[{a}:{b}{end}]\nreturn y"),
        "from {a} {end} {b}",
        _ascending,
    ),
    Family(
        "stride",
        "xs",
        (numbers("a", 0, 15, "index"), numbers("k", 2, 12, "step")),
        ("Take the items of xs from index {a} in steps of {k}.",),
        ("return xs[{a}::{k}]", "y = xs[{a}:]\nreturn y[::{k}]"),
        "from {a} step {k}",
    ),
    Family(
        "two_items",
        "xs",
        (
            numbers("a", 0, 14, "index"),
            choice("op", "operator", {"plus": "+", "minus": "-"}),
            numbers("b", 0, 14, "index"),
        ),
        ("Return item {a} of xs {op} item {b}.",),
        ("return xs[{a}] {op} xs[{b}]",),
        "item {a} {op} item {b}",
        lambda words: words["a"] != words["b"],
    ),
)

STRINGS = (
    Family(
        "replace_letter",
        "s",
        (letters("a"), letters("b")),
        ("Put the letter {b} for each {a} in s.",),
        ("return s.replace({a}, {b})", "return {b}.join(s.split({a}))"),
        "{a} becomes {b}",
        lambda words: words["a"] != words["b"],
    ),
    Family(
        "count_letter",
        "s",
        (letters("a"), _sign(), numbers("n", 1, 12)),
        ("Return how often the letter {a} is in s, {op} {n}.",),
        ("return s.count({a}) {op} {n}", "y = s.count({a})\nreturn y {op} {n}"),
        "count {a} {op} {n}",
    ),
    Family(
        "letter_at",
        "s",
        (
            numbers("n", 0, 12, "index"),
            choice("is", "comparison", {"equals": "==", "differs from": "!="}),
            letters("a"),
        ),
        ("Return whether the letter at index {n} of s {is} {a}.",),
        ("return s[{n}] {is} {a}", "y = s[{n}]\nreturn y {is} {a}"),
        "letter {n} {is} {a}",
    ),
    Family(
        "part_and_letter",
        "s",
        (
            choice("part", "index", {"first": "s[:{n}]", "last": "s[-{n}:]"}),
            numbers("n", 2, 12, "index"),
            letters("a"),
        ),
        ("Return the {part} {n} letters of s, then {a}.",),
        ("return {part} + {a}", "y = {part}\nreturn y + {a}"),
        "{part} {n} then {a}",
    ),
    Family(
        "cut_out",
        "s",
        (
            numbers("a", 1, 12, "index"),
            _end({"through": " + 1", "before": ""}),
            numbers("b", 3, 16, "index"),
        ),
        ("Remove the letters of s from index {a} {end} index {b}.",),
        ("return s[:{a}] + s[{b}{end}:]",),
        "remove from {a} {end} {b}",
        _ascending,
    ),
)

FAMILIES: tuple[Family, ...] = ARITHMETIC + CONDITIONALS + LOOPS + LISTS + SLICES + STRINGS
