"""The argument of the tool `run` is an input, and the solution that it runs stays in the sandbox."""

import secrets
import textwrap
from dataclasses import replace

import pytest
from unknown_code import EXCESSES, FORGERIES, SEARCH

from nip_core.tools import find_call
from nip_games.running import RUN, run_solution
from nip_sandbox.sandbox import Limits

pytestmark = pytest.mark.long

FUNCTION = "def f(x, y=None):\n    return x\n"
PROGRAM = "import sys\nprint(len(sys.stdin.read()))\n"
SECRET = f"SECRET-{secrets.token_hex(16)}"
LIMITS = Limits(wall_s=2.0, cpu_s=2.0, memory_mb=256, processes=1, output_bytes=100_000)
CODE = {
    "searches": f"ROWS = '/etc/passwd'\n{SEARCH}",
    **{name: textwrap.dedent(code) for name, code in FORGERIES.items()},
    **{name: textwrap.dedent(code) for name, (code, _) in EXCESSES.items()},
}
ENDS = {
    "fills the disk": ("OSError", "out of memory"),
    "prints ten gigabytes": ("it ended with output_limit",),
    "sleeps": ("it did not end",),
    "is busy": ("it did not end", "it ended with killed"),
    "reads null": ("it ended with killed",),
    "takes memory": ("MemoryError", "out of memory"),
    "forks": ("BlockingIOError", "out of memory", "it did not end"),
}
"""The beginnings of the words for what takes too much."""
INJECTIONS = [
    "f(1)\nimport os",
    "f(1); import os",
    "f(1) or __import__('os')",
    "f(x := 1)",
    "f(*[1])",
    "f(**{'x': 1})",
    "f([a for a in (1,)])",
    "f(f'{__import__(\"os\")}')",
    "f(lambda: 1)",
    "f(f(1))",
    "f((yield))",
    "f.__globals__",
    "f(1).__class__",
    "f(1)(2)",
    "f(1 if 1 else 2)",
    "exec('import os')",
    "eval(1)",
    "_show()",
    "f(__builtins__)",
    "f(1,\n",
    "1)\nimport os\nprint(1",
    "f(9" + "9" * 5000 + ")",
    "f(0x" + "f" * 5000 + ")",
    "f(" + "[" * 3000 + "]" * 3000 + ")",
]
"""Arguments that are no call with values."""
STRINGS = ["{call}", "{0.__class__}", "'\"\n#", "\\", "\0", "\ud800", "'''\nimport os\n'''", "%s"]
"""Values that would be code if they were pasted."""


@pytest.fixture(autouse=True)
def _secret(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_RUN", SECRET)


def read_argument(text):
    """Read the argument as an answer has it: behind the label, or as a listing behind it."""
    behind = find_call(f"I look.\nRun: {text}", RUN)
    listed = find_call(f"I look.\nRun:\n```\n{text}\n```", RUN)
    assert behind.argument.split() == listed.argument.split() == text.split()
    return behind.argument


@pytest.mark.parametrize("name", CODE)
async def test_code_as_an_input_is_not_run(name):
    argument = read_argument(CODE[name])
    with pytest.raises(ValueError, match="write a call of f with values"):
        await run_solution(FUNCTION, argument, LIMITS)
    assert await run_solution(PROGRAM, argument, LIMITS) == str(len(argument))


@pytest.mark.parametrize("argument", INJECTIONS, ids=range(len(INJECTIONS)))
async def test_an_argument_that_is_no_call_with_values_is_not_run(argument):
    with pytest.raises(ValueError, match=r"write a call of f|no function|limit"):
        await run_solution(FUNCTION, read_argument(argument), LIMITS)


@pytest.mark.parametrize("value", STRINGS, ids=range(len(STRINGS)))
async def test_a_text_that_looks_like_code_is_a_value(value):
    argument = read_argument(f"f({value!r})")
    assert await run_solution(FUNCTION, argument, LIMITS) == repr(value)


@pytest.mark.parametrize("name", CODE)
async def test_the_deeds_of_a_solution_stay_inside_and_its_end_is_told(name):
    solution = CODE[name] if "def f" in CODE[name] else f"{FUNCTION}{CODE[name]}"
    limits = replace(LIMITS, wall_s=20.0, cpu_s=20.0) if name == "searches" else LIMITS
    text = await run_solution(solution, "f(1)", limits)
    assert text and SECRET not in text
    if name == "searches":
        assert text == "nothing\n'nothing'"
        shown = await run_solution(solution, f"f({SECRET!r})", limits)
        assert SECRET in shown  # so the search would find it
    if name in EXCESSES:
        assert text.startswith(ENDS[name])
