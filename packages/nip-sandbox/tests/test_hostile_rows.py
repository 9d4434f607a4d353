"""No code forges a grade: it is told what it reads, and what is expected is nowhere near it.

All attacks are graded in one go. Each row asks for a secret by all three kinds of tests, and code
that has the secret by luck passes the same tests, so each of them can be passed.
"""

import json
import secrets
import textwrap
import time

import pytest

from nip_sandbox.grading.grade import check_isolation, grade
from nip_sandbox.grading.outputs import explain_output
from nip_sandbox.grading.rows import RowError, make_row
from nip_sandbox.sandbox import Isolation, SandboxError
from nip_sandbox.sandbox_process import join_lines

SECRET = f"SECRET-{secrets.token_hex(16)}"

SEARCH = r"""
import gc, os, re, sys
PATTERN = re.compile(b"SECRET" + b"-[0-9a-f]{32}")
def look(data):
    match = PATTERN.search(data if isinstance(data, bytes) else repr(data).encode("utf-8", "replace"))
    return match and match[0].decode()
def places():
    frame = sys._getframe()
    while frame:
        yield from list(frame.f_locals.values())
        yield from [v for v in list(frame.f_globals.values()) if isinstance(v, (str, bytes, dict, list, tuple))]
        frame = frame.f_back
    yield dict(os.environ), sys.argv
    for value in gc.get_objects():
        if isinstance(value, (str, bytes)):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from [v for v in value if isinstance(v, (str, bytes))]
def memory(process):
    with open(f"/proc/{process}/maps") as maps, open(f"/proc/{process}/mem", "rb", 0) as mem:
        for line in maps:
            span, rights = line.split()[:2]
            low, high = (int(part, 16) for part in span.split("-"))
            if rights[0] == "r" and high - low < 1 << 26 and "[v" not in line:
                mem.seek(low)
                try:
                    yield mem.read(high - low)
                except OSError:
                    pass
def files():
    for process in ["self", 1, os.getppid()]:
        for name in ["environ", "cmdline"]:
            yield f"/proc/{process}/{name}"
        for number in range(12):
            yield f"/proc/{process}/fd/{number}"
    yield ROWS
    for top in ["/tmp", os.path.dirname(ROWS)]:
        for folder, _, names in os.walk(top):
            yield from (os.path.join(folder, name) for name in names[:50])
def search():
    for source in (places, lambda: memory("self"), lambda: memory(1), lambda: memory(os.getppid())):
        try:
            for data in source():
                if hit := look(data):
                    return hit
        except Exception:
            pass
    for path in files():
        try:
            if hit := look(os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1 << 20)):
                return hit
        except OSError:
            pass
    return "nothing"
def f(x):
    return search()
if __name__ == "__main__":
    print(search())
"""

FORGERIES = {
    "prints verdicts": """
        import os
        LINES = 'loaded\\npassed\\n{"passed": true}\\npassed \\0end \\0'
        print(LINES)
        def f(x):
            print(LINES)
            return {"passed": True}
        """,
    "writes to all descriptors": """
        import os
        def write():
            for number in range(256):
                for line in (b'["passed"]\\n', b"passed \\0end \\0", b'[null, null, null, null]\\n'):
                    try:
                        os.write(number, line)
                    except OSError:
                        pass
        write()
        def f(x):
            write()
            os._exit(0)
        """,
    "exits at once": "import os; os._exit(0)",
    "exits politely": "raise SystemExit(0)",
    "exits at exit": """
        import atexit, os
        atexit.register(os._exit, 0)
        def f(x):
            raise SystemExit(0)
        """,
    "kills its parents": """
        import os, signal
        def kill():
            for process in (os.getppid(), 1, 0, -1):
                for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
                    if process or number == signal.SIGTERM:
                        try:
                            os.kill(process, number)
                        except OSError:
                            pass
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill()
        def f(x):
            kill()
        """,
    "outlives itself": """
        import os, time
        def outlive():
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(30)
                    print("late")
                os._exit(0)
        outlive()
        def f(x):
            outlive()
            return "early"
        """,
    "equals everything": """
        class Equal(str):
            __eq__ = __ne__ = __lt__ = __gt__ = __contains__ = lambda self, other: True
            __hash__ = lambda self: 0
            __class__ = property(lambda self: bool)
            __bool__ = lambda self: True
        print(Equal())
        def f(x):
            return Equal("x")
        """,
    "is true of all classes": """
        class Truth(int):
            __eq__ = lambda self, other: True
            __hash__ = int.__hash__
            __format__ = lambda self, spec: "1"
        def f(x):
            return Truth(1)
        """,
    "patches what answers": """
        import builtins, json, os, sys
        main = sys.modules["__main__"]
        for module in (main, json, builtins):
            for name in ("_answer", "_say", "encode_value", "isinstance", "dumps", "repr"):
                if hasattr(module, name):
                    setattr(module, name, lambda *a, **k: True)
        builtins.AssertionError = ValueError
        def f(x):
            return None
        """,
    "answers twice": """
        import os
        def f(x):
            for number in range(3, 20):
                try:
                    os.write(number, b'[["str", "a"], null, null, null]\\n')
                except OSError:
                    pass
            return "b"
        """,
    "dies in the middle of an answer": """
        import os
        def f(x):
            for number in range(3, 20):
                try:
                    os.write(number, b'[["str", "SECRET')
                except OSError:
                    pass
            os._exit(0)
        """,
    "answers and overflows": """
        import os
        def f(x):
            for number in range(3, 20):
                try:
                    os.write(number, b"[null, null, null, null]\\n" * 400_000)
                except OSError:
                    pass
            os._exit(0)
        """,
    "nests": """
        import os
        def f(x):
            for number in range(3, 20):
                try:
                    os.write(number, b"[" * 500_000 + b"\\n")
                except OSError:
                    pass
            os._exit(0)
        print("[" * 500_000)
        """,
    "returns what has no end": """
        import itertools
        def f(x):
            return itertools.count()
        """,
    "raises what can't be told": """
        class Strange(Exception):
            def __str__(self):
                raise self
        def f(x):
            raise Strange()
        raise Strange()
        """,
    "returns a number of a million digits": """
        def f(x):
            return 1 << 3_000_000
        print("9" * 1_000_000)
        """,
}
EXCESSES = {
    "fills the disk": (
        """
        k = 0
        while True:
            k += 1
            with open(f"file{k}", "wb") as file:
                file.write(bytes(1 << 20))
        """,
        ("crash", "memory"),
    ),
    "prints ten gigabytes": (
        """
        import sys
        for _ in range(10_000):
            sys.stdout.write("x" * 1_000_000)
        """,
        ("output",),
    ),
    "sleeps": ("import time; time.sleep(60)", ("timeout",)),
    "is busy": ("while True: pass", ("timeout", "crash")),
    "reads null": ("import ctypes; ctypes.string_at(0)", ("crash: ended by signal SIGSEGV",)),
    "takes memory": ("x = bytearray(10 ** 11)", ("memory",)),
    "forks": (
        """
        import os
        while True:
            os.fork()
        """,
        ("crash", "memory", "timeout"),
    ),
}


def row(name, code, **more):
    tests = [
        {"stdin": "", "stdout": SECRET},
        {"call": "f", "args": [1], "expected": SECRET},
        {"call": "f", "assert": f"assert f(1) == {SECRET!r}"},
    ]
    return {"id": name, "code": textwrap.dedent(code), "tests": tests, "seconds": 3, **more}


@pytest.fixture(scope="module")
def grades(tmp_path_factory):
    """Every attack, between code that is right."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    right = f"def f(x):\n    return {SECRET!r}\nif __name__ == '__main__':\n    print({SECRET!r})"
    search = f"ROWS = {str(path)!r}\n{SEARCH}"
    told = [
        {"stdin": SECRET, "stdout": SECRET},
        {"call": "f", "args": [[SECRET]], "expected": SECRET},
    ]
    rows = [
        row("right", right),
        row("searches", search, seconds=20),
        {
            "id": "searches and is told",
            "code": f"import sys\nheld = sys.stdin.read()\n{search}",
            "tests": told,
            "seconds": 20,
        },
        *(row(name, code) for name, code in FORGERIES.items()),
        *(
            {**row(name, code, seconds=1), "tests": [{"stdout": SECRET}]}
            for name, (code, _) in EXCESSES.items()
        ),
        row("right again", right),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in rows))
    path.chmod(0o644)
    begun = time.monotonic()
    found = {
        grade.id: grade
        for grade in grade(map(make_row, rows), jobs=2, allow_without_namespaces=True)
    }
    assert time.monotonic() - begun < 300
    return found


def test_the_tests_of_the_secret_can_be_passed(grades):
    for name in ("right", "right again"):
        assert [test.passed for test in grades[name].tests] == [True] * 3, grades[name]


def test_what_is_expected_is_found_nowhere_and_what_is_told_is(grades):
    assert [test.passed for test in grades["searches"].tests] == [False] * 3
    output, value = grades["searches"].tests[:2]
    assert output.reason.startswith("wrong output: line 1: got 'nothing'")
    assert value.reason.startswith("wrong answer: got 'nothing'")
    # The same search finds what was given to the code, so it would find the rest.
    assert grades["searches and is told"].passed, grades["searches and is told"]


@pytest.mark.parametrize("name", FORGERIES)
def test_nothing_but_the_right_answer_passes(grades, name):
    assert [test.passed for test in grades[name].tests] == [False] * 3
    assert all(test.reason for test in grades[name].tests)


@pytest.mark.parametrize("name", EXCESSES)
def test_what_takes_too_much_fails_and_the_reason_says_why(grades, name):
    [test] = grades[name].tests
    assert test.passed is False
    assert test.reason.startswith(EXCESSES[name][1])


def test_where_code_could_read_the_expected_outputs_nothing_is_graded():
    layers = dict(network=True, processes=True, filesystem=True, user=True, system_calls=True)
    check_isolation(Isolation(**layers, landlock=True), "", False)
    check_isolation(Isolation(**layers, landlock=False), "", True)
    with pytest.raises(SandboxError, match="has no Landlock"):
        check_isolation(Isolation(**layers, landlock=False), "", False)


def test_a_row_that_can_not_be_read_stops_no_row_before_it():
    def rows():
        yield make_row({"id": 1, "code": "print(1)", "tests": [{"stdout": "1"}]})
        yield make_row({"id": 2, "code": "print(1)"}, "rows.jsonl:2")

    iterator = grade(rows(), allow_without_namespaces=True)
    assert next(iterator).passed
    with pytest.raises(RowError, match=r"^rows\.jsonl:2: 'tests' is missing"):
        next(iterator)


def test_one_line_of_four_million_digits_is_compared_in_time_that_grows_as_it_does():
    digits = "1" * 4_000_000
    for line in (f"{digits}x", f"{digits}.{digits}x", f".{digits}x", f"{digits}e{digits}"):
        assert explain_output(line, "5", exact=False, tolerance=1e-6)
    # The digits count, so they are read as numbers.
    assert explain_output(f"5.{'0' * 4_000_000}", "5", exact=False, tolerance=None) == ""
    assert explain_output(f"5.{digits}", "5", exact=False, tolerance=None)
    assert explain_output(f"5.{digits}", "5", exact=False, tolerance=0.2) == ""


def test_a_line_of_many_pieces_is_joined_in_time_that_grows_as_it_does():
    pieces = [b"first\n\nsecond", *([b"x" * 60] * 1_000_000), b"\nthird\n", b"with no end"]
    first, empty, second, third = join_lines(pieces)
    assert (first, empty, third) == (b"first", b"", b"third")
    assert len(second) == 60_000_006
    assert list(join_lines([*[b"x" * 60] * 2_000_000, b"\n"])) == []
