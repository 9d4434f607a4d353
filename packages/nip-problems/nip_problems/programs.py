"""Tests in APPS' form: a program that is given standard input, or a function that is called.

    PRELUDE     the imports that such solutions expect
    RUN, CALL   source that runs between a solution and its tests
    same_run    the source of a test: a program prints the expected text for an input
    same_call   the source of a test: a function gives the expected value for arguments

Printed texts are compared word by word; two numbers with a fraction may differ by a millionth.
A returned value may be a tuple for a list, or the only item of a list.
"""

from typing import Any

PRELUDE = """\
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict, defaultdict, deque
from functools import lru_cache, reduce
from heapq import heapify, heappop, heappush
from math import ceil, floor, gcd, inf, sqrt
from typing import *
"""

RUN = """\
import sys as _nip_sys
_nip_code = compile(_nip_program, "program.py", "exec")
_nip_files = _nip_sys.stdin, _nip_sys.stdout  # they close theirs when nobody has them

def _nip_run(given, expected):
    import io, os, sys
    with open("nip-stdin", "wb") as file:
        file.write(given.encode())
    file = os.open("nip-stdin", os.O_RDONLY)
    os.unlink("nip-stdin")
    os.dup2(file, 0)
    os.close(file)
    printed = io.BytesIO()
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = io.TextIOWrapper(printed, encoding="utf-8", write_through=True)
    try:
        exec(_nip_code, {"__name__": "__main__"})
    except SystemExit:
        pass
    finally:
        sys.stdout.flush()
    words, right = printed.getvalue().decode("utf-8", "replace").split(), expected.split()
    same = len(words) == len(right) and all(map(_nip_same, words, right))
    assert same, f"printed {' '.join(words)!r:.80}, expected {' '.join(right)!r:.80}"

def _nip_same(word, right):
    if word == right:
        return True
    try:
        return "." in right and abs(float(word) - float(right)) <= 1e-6 * max(1, abs(float(right)))
    except ValueError:
        return False
"""

CALL = """\
def _nip_call(name, arguments, expected):
    known = globals()
    function = getattr(known["Solution"](), name) if "Solution" in known else known[name]
    got = _nip_lists(function(*arguments))
    same = got == expected or (isinstance(expected, list) and [got] == expected)
    assert same, f"returned {got!r:.80}, expected {expected!r:.80}"

def _nip_lists(value):
    return [_nip_lists(item) for item in value] if isinstance(value, (list, tuple)) else value
"""


def same_run(input_text: Any, expected: Any) -> str:
    """The source of a test of a program; several lines may be a list."""
    return f"_nip_run({_lines(input_text)!r}, {_lines(expected)!r})"


def same_call(function: str, arguments: Any, expected: Any) -> str:
    """The source of a test of a function, or of a method of a class Solution."""
    return f"_nip_call({function!r}, {arguments!r}, {expected!r})"


def _lines(text: Any) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)
