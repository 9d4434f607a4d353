"""The program that runs in the sandbox, never in this process: on stdin what to do, as JSON.

    answers   load a solution and answer calls of its function, one line each
    tests     run tests on answers that were given elsewhere, without the solution

A solution and what is expected of it never meet in one process. The solution is told the arguments
of calls alone, and what it says comes to the tests as plain data: numbers, texts, lists and the
like, made anew. So it can neither read what would be right, nor give an object that claims to equal
everything, nor report for the tests; whatever it writes is an answer, right or wrong.

Runs without site-packages: nothing is imported but the standard library.
"""

import builtins
import json
import os
import sys
from itertools import islice
from typing import Any

_MOST_ITEMS = 100_000  # of an iterator
_RAISES = (Exception, RecursionError)


class _Steps(BaseException):
    """A solution used up its steps. Not an Exception, so `except Exception` passes."""


class _Unknown(BaseException):
    """A test has asked for a call to which no answer is known."""


class _NotPlain(Exception):
    """A value is none of those that can be told."""


# Plain data as JSON, and back.


def encode(value: Any) -> Any:
    """A plain value as JSON; subclasses count as what they are made of. Raises _NotPlain."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return ["int", format(int(value), "x")]  # in decimal, Python limits the digits
    if isinstance(value, float):
        return ["float", float(value).hex()]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if isinstance(value, str):
        return ["str", str(value)]
    if isinstance(value, bytes | bytearray):
        return ["bytes" if isinstance(value, bytes) else "bytearray", bytes(value).hex()]
    if isinstance(value, range):
        return ["range", value.start, value.stop, value.step]
    if isinstance(value, dict):
        return ["dict", [[encode(key), encode(item)] for key, item in value.items()]]
    if isinstance(value, list | tuple):
        return ["list" if isinstance(value, list) else "tuple", [encode(item) for item in value]]
    if isinstance(value, set | frozenset):
        items = sorted((encode(item) for item in value), key=json.dumps)
        return ["set" if isinstance(value, set) else "frozenset", items]
    if hasattr(value, "__next__") or type(value).__name__ in ("dict_keys", "dict_values"):
        return ["iterator", [encode(item) for item in islice(value, _MOST_ITEMS)]]
    raise _NotPlain(type(value).__name__)


def decode(data: Any) -> Any:
    """The value in what `encode` made. Raises an Exception for anything else."""
    if data is None or isinstance(data, bool):
        return data
    kind, *content = data
    if kind == "int":
        return int(content[0], 16)
    if kind == "float":
        return float.fromhex(content[0])
    if kind == "complex":
        return complex(float.fromhex(content[0]), float.fromhex(content[1]))
    if kind == "str":
        return str(content[0])
    if kind in ("bytes", "bytearray"):
        raw = bytes.fromhex(content[0])
        return raw if kind == "bytes" else bytearray(raw)
    if kind == "range":
        return range(*map(int, content))
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content[0]}
    items = [decode(item) for item in content[0]]
    made: dict[str, Any] = {
        "list": list,
        "tuple": tuple,
        "set": set,
        "frozenset": frozenset,
        "iterator": iter,
    }
    return made[kind](items)


def call_text(arguments: Any, named: Any) -> str:
    """A call as a line of text, equal for equal calls."""
    keywords = [[name, encode(value)] for name, value in sorted(named.items())]
    return json.dumps([[encode(value) for value in arguments], keywords])


# A solution answers.


def answers(job: dict[str, Any], out: int) -> None:
    """Say "loaded", then answer each call on a line of its own."""
    steps = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != "solution.py":
            return None
        steps += 1
        if steps > job["max_steps"]:
            raise _Steps
        return count

    namespace: dict[str, Any] = {"__name__": "solution"}
    # 1. Load it.
    try:
        code = compile(job["solution"], "solution.py", "exec")
        sys.settrace(count)
        exec(code, namespace)  # noqa: S102
        function = namespace[job["entry_point"]]
    except _Steps:
        return _say(out, "steps")
    except KeyError as error:
        missing = error.args == (job["entry_point"],)
        return _say(out, "no function" if missing else "does not load")
    except MemoryError:
        raise  # the sandbox tells of it
    except (*_RAISES, SystemExit):
        return _say(out, "does not load")
    _say(out, "loaded")
    # 2. Answer.
    for call in job["calls"]:
        try:
            _say(out, json.dumps(_answer(function, call)))
        except _Steps:
            return _say(out, "steps")
    sys.settrace(None)
    return None


def _answer(function: Any, call: str) -> dict[str, Any]:
    arguments, keywords = json.loads(call)
    values = [decode(value) for value in arguments]
    named = {name: decode(value) for name, value in keywords}
    try:
        value = function(*values, **named)
        answer: dict[str, Any] = {"value": encode(value)}
    except _NotPlain as kind:
        return {"not_plain": str(kind)}
    except MemoryError:
        raise
    except (*_RAISES, SystemExit) as error:
        answer = {"raised": [type(error).__name__, str(error)[:200]]}
    try:
        after = [encode(value) for value in values]
    except (_NotPlain, *_RAISES):
        return answer
    return answer if after == arguments else {**answer, "after": after}


def _say(out: int, line: str) -> None:
    data = line.encode("ascii", "backslashreplace") + b"\n"
    while data:
        data = data[os.write(out, data) :]


# Tests on answers.


class _Anything:
    """Stands for an answer that is not known yet, so that tests go on to what they ask next."""

    def __call__(self, *arguments: Any, **named: Any) -> "_Anything":
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __index__(self) -> int:
        return 0

    def __hash__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda self, other: True
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        lambda self, other: self
    )
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __pow__ = __getitem__ = __and__ = __or__ = (
        lambda self, other: self
    )
    __abs__ = __neg__ = __next__ = lambda self: self
    __float__ = lambda self: 0.0  # noqa: E731

    def __round__(self, digits: int = 0) -> "_Anything":
        return self

    def __getattr__(self, name: str) -> "_Anything":
        return self


class _Asked:
    """The function, as tests see it: it has the answers that a solution gave elsewhere."""

    def __init__(self, answers: dict[str, str], only_asks: bool) -> None:
        self.answers, self.only_asks = answers, only_asks
        self.calls: dict[str, None] = {}  # in their order, each once
        self.trouble = ""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        call = call_text(arguments, named)
        self.calls[call] = None
        if self.only_asks:
            return _Anything()
        if call not in self.answers:
            raise _Unknown
        answer = json.loads(self.answers[call])
        if "not_plain" in answer:
            self.trouble = "no plain value"
            raise TypeError("the answer is no plain value")
        # 1. What it has done to its arguments.
        after = [decode(value) for value in answer.get("after", ())]
        for argument, value in zip(arguments, after, strict=False):
            if isinstance(argument, list | bytearray):
                argument[:] = value
            elif isinstance(argument, dict | set):
                argument.clear()
                argument.update(value)
        # 2. What it has raised or returned.
        if "raised" in answer:
            name, message = answer["raised"]
            self.trouble = "exception"
            kind: Any = getattr(builtins, str(name), None)
            is_error = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if is_error else Exception)(str(message))
        return decode(answer["value"])


def tests(job: dict[str, Any], out: int) -> None:
    """Say how the tests ended, then each call that they made, on a line of its own."""
    source = job["tests"]
    if "random" in source:
        import random

        random.seed(0)
    asked = _Asked(job["answers"], job["only_asks"])
    namespace: dict[str, Any] = {
        "__name__": "tests",
        job["entry_point"]: asked,
        "candidate": asked,
    }
    ended = "passed"
    try:
        if job["only_asks"]:
            _run_each(source, namespace)
        else:
            exec(compile(source, "tests.py", "exec"), namespace)  # noqa: S102
        if not asked.calls and "check" in namespace:  # tests in the form of HumanEval
            namespace["check"](asked)
    except _Unknown:
        ended = "asks"
    except BaseException:  # of an assertion, or for an answer that tests can do nothing with
        ended = asked.trouble or "wrong answer"
    _say(out, ended)
    for call in asked.calls:
        _say(out, call)


def _run_each(source: str, namespace: dict[str, Any]) -> None:
    """Run statement by statement, so that one that fails without an answer stops no other one."""
    import ast

    tree = ast.parse(source, "tests.py")
    for node in ast.walk(tree):
        for _, body in ast.iter_fields(node):
            if isinstance(body, list):
                body[:] = [
                    ast.copy_location(ast.Expr(part.test), part)
                    if isinstance(part, ast.Assert)
                    else part
                    for part in body
                ]
    for statement in tree.body:
        try:
            exec(compile(ast.Module([statement], []), "tests.py", "exec"), namespace)  # noqa: S102
        except Exception:  # noqa: S112
            continue


def main() -> None:
    """Do what stdin says. What the code itself prints is lost."""
    job = json.loads(sys.stdin.read())
    out = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    {"answers": answers, "tests": tests}[job["kind"]](job, out)


if __name__ == "__main__":
    main()
