"""The program that runs in the sandbox, never in this process: on stdin what to do, as JSON.

    answer_calls            load a solution and answer calls of its function, one line each
    run_tests_on_answers    run tests on answers that were given elsewhere, without the solution
    Calls, Answers          what the two are given; `encode_task` writes it
    Loaded, Verdict         the words that their first lines are

A solution and the expected values never meet in one process. The solution is told the arguments of
calls alone, and its answers come to the tests as plain data: numbers, texts, lists and the
like, made anew. So it can neither read what would be right, nor give an object that claims to equal
everything, nor report for the tests; all that it writes is an answer, right or wrong.

Runs without site-packages: nothing is imported but the standard library.
"""

import builtins
import json
import os
import sys
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

LATER = "later "
_MOST_ITEMS = 100_000  # of an iterator
_RAISES = (Exception, RecursionError)


class Loaded(StrEnum):
    """Outcomes of loading a solution, and of its answers."""

    DONE = "loaded"
    OUT_OF_STEPS = "steps"  # also in the place of an answer, which is then the last line
    NO_FUNCTION = "no function"
    FAILED = "does not load"


class Verdict(StrEnum):
    """Verdicts of tests on answers: passed, asks, kinds of mistakes, and what judges nothing."""

    PASSED = "passed"
    ASKS = "asks"  # for calls to which there is no answer yet: they follow, line by line
    WRONG = "wrong answer"
    NOT_PLAIN = "no plain value"
    RAISED = "exception"
    # No mistakes of the code; the next line has the name that tests lack, or the type they give.
    LACKS = "name"
    UNTOLD = "argument"


class Calls(NamedTuple):
    """A solution, and the calls that it is to answer."""

    solution: str
    entry_point: str
    calls: list[str]
    """As `write_call` writes them."""
    max_steps: int
    """0: no limit."""


class Answers(NamedTuple):
    """Tests, and the answers that a solution gave elsewhere."""

    entry_point: str
    tests: str
    answers: dict[str, str]
    """By call, each an `Answer` as JSON."""
    only_asks: bool
    """Whether the tests run to learn which calls they make, without any answer."""


class Answer(NamedTuple):
    """The outcome of a call of a solution; plain values as `encode_value` writes them."""

    value: Any = None
    not_plain: str | None = None
    """The type of a value that can't be told."""
    exception: tuple[str, str] | None = None
    """The class of an exception, and its message."""
    arguments_after: list[Any] | None = None
    """The arguments after the call, if it has changed them."""


def encode_task(task: Calls | Answers) -> str:
    """Write what this program reads from stdin: the name of the kind, and the fields in order."""
    return json.dumps([type(task).__name__, task])


class _Steps(BaseException):
    """A solution used up its steps. Not an Exception, so `except Exception` passes."""


class _Unknown(BaseException):
    """A test asks for a call whose answer is not known."""


class _Untold(BaseException):
    """A test gives the function an argument that can't be told to a solution."""


class _NotPlain(Exception):
    """A value is none of those that can be told."""


# Plain data as JSON, and back.


def encode_value(value: Any) -> Any:
    """A plain value as JSON; subclasses count as their base classes. Raises _NotPlain."""
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
        return ["dict", [[encode_value(key), encode_value(item)] for key, item in value.items()]]
    if isinstance(value, list | tuple):
        return [
            "list" if isinstance(value, list) else "tuple",
            [encode_value(item) for item in value],
        ]
    if isinstance(value, set | frozenset):
        items = sorted((encode_value(item) for item in value), key=json.dumps)
        return ["set" if isinstance(value, set) else "frozenset", items]
    if isinstance(value, _Anything):
        raise _NotPlain("answer that is not known yet")
    if hasattr(value, "__next__") or type(value).__name__ in ("dict_keys", "dict_values"):
        return ["iterator", [encode_value(item) for item in islice(value, _MOST_ITEMS)]]
    raise _NotPlain(type(value).__name__)


def decode_value(data: Any) -> Any:
    """Read a value that `encode_value` wrote. Raises an Exception for anything else."""
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
        return {decode_value(key): decode_value(item) for key, item in content[0]}
    items = [decode_value(item) for item in content[0]]
    constructors: dict[str, Any] = {
        "list": list,
        "tuple": tuple,
        "set": set,
        "frozenset": frozenset,
        "iterator": iter,
    }
    return constructors[kind](items)


def write_call(arguments: Any, keywords: Any) -> str:
    """A call as a line of text, equal for equal calls."""
    keywords = [[name, encode_value(value)] for name, value in sorted(keywords.items())]
    return json.dumps([[encode_value(value) for value in arguments], keywords])


# A solution answers.


def answer_calls(job: Calls, out: int) -> None:
    """Say how loading went, then answer each call on a line of its own.

    Where it does not load, the second line says why.
    """
    steps = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != "solution.py":
            return None
        steps += 1
        if steps > job.max_steps:
            raise _Steps
        return count

    namespace: dict[str, Any] = {"__name__": "solution"}
    # 1. Load it.
    try:
        code = compile(job.solution, "solution.py", "exec")
        if job.max_steps:
            sys.settrace(count)
        exec(code, namespace)  # noqa: S102
        function = _find_function(namespace, job.entry_point)
    except _Steps:
        return _say(out, Loaded.OUT_OF_STEPS)
    except KeyError as error:
        is_missing = error.args == (job.entry_point,)
        return _say(
            out, Loaded.NO_FUNCTION if is_missing else f"{Loaded.FAILED}\n{_describe(error)}"
        )
    except MemoryError:
        raise  # the sandbox tells of it
    except (*_RAISES, SystemExit) as error:
        return _say(out, f"{Loaded.FAILED}\n{_describe(error)}")
    _say(out, Loaded.DONE)
    # 2. Answer.
    for call in job.calls:
        try:
            _say(out, json.dumps(_answer(function, call)))
        except _Steps:
            return _say(out, Loaded.OUT_OF_STEPS)
    sys.settrace(None)
    return None


def _find_function(namespace: dict[str, Any], entry_point: str) -> Any:
    """Return a function by its name, or the method of an object by `Class.method`."""
    name, dot, method = entry_point.partition(".")
    if name not in namespace or (dot and not hasattr(namespace[name], method)):
        raise KeyError(entry_point)
    return getattr(namespace[name](), method) if dot else namespace[name]


def _describe(error: BaseException) -> str:
    """Say in one line which exception it was."""
    try:
        return f"{type(error).__name__}: {error}"[:200].replace("\n", " ")
    except Exception:
        return type(error).__name__


def _answer(function: Any, call: str) -> Answer:
    arguments, keywords = json.loads(call)
    values = [decode_value(value) for value in arguments]
    keywords = {name: decode_value(value) for name, value in keywords}
    try:
        value = function(*values, **keywords)
        answer = Answer(value=encode_value(value))
    except _NotPlain as kind:
        return Answer(not_plain=str(kind))
    except MemoryError:
        raise
    except (*_RAISES, SystemExit) as error:
        answer = Answer(exception=(type(error).__name__, str(error)[:200]))
    try:
        encoded_values = [encode_value(value) for value in values]
    except (_NotPlain, *_RAISES):
        return answer
    return (
        answer if encoded_values == arguments else answer._replace(arguments_after=encoded_values)
    )


def _say(out: int, line: str) -> None:
    data = line.encode("ascii", "backslashreplace") + b"\n"
    while data:
        data = data[os.write(out, data) :]


# Tests on answers.


class _Anything:
    """Stands for an answer that is not known yet, so that tests go on to their next call."""

    _is_used = False  # of the class: whether one became a number, a text or an iteration

    @staticmethod
    def _use(value: Any) -> Any:
        _Anything._is_used = True
        return value

    def __call__(self, *arguments: Any, **keywords: Any) -> "_Anything":
        return self

    __iter__ = lambda self: _Anything._use(iter(()))  # noqa: E731
    __len__ = __index__ = lambda self: _Anything._use(0)
    __float__ = lambda self: _Anything._use(0.0)  # noqa: E731
    __repr__ = lambda self: _Anything._use("")  # noqa: E731

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

    def __round__(self, digits: int = 0) -> "_Anything":
        return self

    def __getattr__(self, name: str) -> "_Anything":
        return self


class _Asked:
    """The function, as tests see it: it has the answers that a solution gave elsewhere."""

    def __init__(self, answers: dict[str, str], only_asks: bool, out: int) -> None:
        self.answers, self.only_asks, self.out = answers, only_asks, out
        self.calls: dict[str, None] = {}  # in their order, each once
        self.trouble: Verdict | None = None  # of the last answer
        self.has_raised = False
        # Tests that catch everything go on, but neither is forgotten:
        self.is_unknown = False
        self.untold: str | None = None  # the type of an argument

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        try:
            call = write_call(arguments, keywords)
        except _NotPlain as kind:
            if self.only_asks:
                return _Anything()
            self.untold = self.untold or str(kind)
            raise _Untold from None
        if self.only_asks and call not in self.calls:  # said at once, as tests perhaps don't end
            _say(self.out, f"{LATER if _Anything._is_used else ''}{call}")
        self.calls[call] = None
        if self.only_asks:
            return _Anything()
        if call not in self.answers:
            self.is_unknown = True
            raise _Unknown
        try:
            return self._give(Answer(*json.loads(self.answers[call])), arguments)
        except Exception as error:
            self.has_raised = vars(error)[_IS_ANSWER] = True
            raise

    def _give(self, answer: Answer, arguments: tuple[Any, ...]) -> Any:
        """Do to the tests as the solution did: change arguments, raise, or return."""
        if answer.not_plain is not None:
            self.trouble = Verdict.NOT_PLAIN
            raise TypeError("the answer is no plain value")
        # 1. Changes of its arguments.
        decoded_values = [decode_value(value) for value in answer.arguments_after or ()]
        for argument, value in zip(arguments, decoded_values, strict=False):
            if isinstance(argument, list | bytearray):
                argument[:] = value
            elif isinstance(argument, dict | set):
                argument.clear()
                argument.update(value)
        # 2. Its exception, or its value.
        if answer.exception is not None:
            name, message = answer.exception
            self.trouble = Verdict.RAISED
            kind: Any = getattr(builtins, str(name), None)
            is_error = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if is_error else Exception)(str(message))
        self.trouble = None
        return decode_value(answer.value)

    def find_verdict(self, tests: str, error: BaseException | None) -> str:
        """Say how the tests ended, which raised `error`; perhaps with a second line."""
        if self.is_unknown:
            return Verdict.ASKS
        if self.untold is not None:
            return f"{Verdict.UNTOLD}\n{self.untold}"
        if error is None:
            return Verdict.PASSED
        # A local name may be undefined for a wrong answer, so not each NameError counts.
        if type(error) is NameError and not (
            self.has_raised and (_follows_answer(error) or _binds(tests, error.name))
        ):
            return f"{Verdict.LACKS}\n{error.name}"
        return self.trouble or Verdict.WRONG


_IS_ANSWER = "is_answer"  # the mark of an exception that a solution raised


def _follows_answer(error: BaseException | None) -> bool:
    """Say whether an exception is the solution's, or was raised while one of those was handled."""
    while error is not None and _IS_ANSWER not in vars(error):
        error = error.__context__
    return error is not None


def _binds(tests: str, name: str | None) -> bool:
    """Say whether tests give a value to a name anywhere, though perhaps not each time."""
    import ast

    return any(
        name in (getattr(node, "name", None), getattr(node, "asname", None))
        or (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
        for node in ast.walk(ast.parse(tests))
    )


def run_tests_on_answers(job: Answers, out: int) -> None:
    """Say how the tests ended, then each call they made, on a line of its own.

    Without answers, LATER stands before calls that may follow from an answer, so tests perhaps
    make others, and the last line says that the tests have ended.
    """
    source = job.tests
    if "random" in source:
        import random

        random.seed(0)
    function = _Asked(job.answers, job.only_asks, out)
    namespace: dict[str, Any] = {
        "__name__": "tests",
        job.entry_point: function,
        "candidate": function,
    }
    error = None
    try:
        if job.only_asks:
            _run_each(source, namespace)
        else:
            exec(compile(source, "tests.py", "exec"), namespace)  # noqa: S102
        if not function.calls and "check" in namespace:  # tests in the form of HumanEval
            namespace["check"](function)
    except BaseException as raised:  # of an assertion, or for an answer of no use to tests
        error = raised
    if job.only_asks:
        return _say(out, Verdict.ASKS)
    _say(out, function.find_verdict(source, error))
    for call in function.calls:
        _say(out, call)
    return None


def _unpack(value: Any, count: int) -> Any:
    """Give an answer that is not known yet to each of so many names."""
    return [value] * count if isinstance(value, _Anything) else value


def _run_each(source: str, namespace: dict[str, Any]) -> None:
    """Run statement by statement, so one failing for lack of an answer stops no other."""
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
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            count = ast.Constant(len(node.targets[0].elts))
            node.value = ast.Call(ast.Name(_unpack.__name__, ast.Load()), [node.value, count], [])
            ast.fix_missing_locations(node)
    namespace[_unpack.__name__] = _unpack
    for statement in tree.body:
        try:
            exec(compile(ast.Module([statement], []), "tests.py", "exec"), namespace)  # noqa: S102
        except Exception:
            _Anything._is_used = True  # what this was to define is undefined, or as before


def do_task() -> None:
    """Do the task on stdin. Output of the code itself is lost."""
    kind, fields = json.loads(sys.stdin.read())
    out = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    if kind == Calls.__name__:
        answer_calls(Calls(*fields), out)
    else:
        run_tests_on_answers(Answers(*fields), out)


if __name__ == "__main__":
    do_task()
