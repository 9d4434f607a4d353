"""Problems with tests, from any source, and the running of solutions on them.

Tested                  a question, its right solutions, and the tests that say so
LeftOut                 a problem that is left out of a dataset, and why
TestRunner              runs solutions on the tests of their problems, in the sandbox
is_settled              whether running them again would say the same
describe_first_failure  the first test that a solution did not pass
write_plainly           a solution without comments, docstrings and formatting of its own
"""

import ast
import platform
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from nip_core.distribution import __version__
from nip_core.hashing import digest
from nip_sandbox.sandbox import Limits, Suite, TestReport, run_tests_batch

LIMITS = Limits(wall_s=60.0, cpu_s=60.0, test_cpu_s=20.0, memory_mb=512, processes=1)
"""Generous in seconds, so that a busy machine changes nothing: a limit of steps ends loops."""
_AT_ONCE = 400
_TEST_CHARACTERS = 150  # shown of a test that failed

Reports = Mapping[tuple[str, str], TestReport]
"""By the name of a problem and the text of a solution."""


@dataclass(frozen=True)
class Tested:
    """A problem with tests."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    name: str
    question: str
    solutions: tuple[str, ...]
    """The solutions that the author says are right."""
    tests: tuple[str, ...]
    """Source that runs after the solution, in its namespace, and raises unless it passes."""
    prelude: str = ""
    """Source that runs before the solution."""
    suffix: str = ""
    """Source that runs between the solution and the tests."""
    is_program: bool = False
    """It reads standard input and prints: `suffix` runs it, from its text in `_nip_program`."""
    names: tuple[str, ...] = ()
    """The name that a solution has to define."""
    difficulty: str | None = None
    split: str | None = None

    def suite(self, solution: str) -> Suite:
        """Put the solution and the tests together, for the sandbox."""
        if self.is_program:
            solution = f"_nip_program = {solution!r}"
        parts = (self.prelude, solution, self.suffix)
        return Suite("\n".join(part for part in parts if part), self.tests)


@dataclass(frozen=True)
class LeftOut:
    """A problem, or one of its solutions, that is not in the dataset."""

    problem: str
    reason: str
    """A word for tables."""
    detail: str


@dataclass(frozen=True)
class TestRunner:
    """Runs solutions in the sandbox, `workers` at a time."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    workers: int
    max_steps: int
    """Lines and calls that a test may execute."""
    allow_without_namespaces: bool = False
    limits: Limits = LIMITS
    steps_of: Mapping[str, int] = field(default_factory=dict)
    """By problem, another limit than `max_steps`."""
    say: Callable[[str], None] = lambda line: None
    """Is told how far a long run is."""
    known: MutableMapping[str, TestReport] = field(default_factory=dict)
    """Reports by `key_of` of the runs so far, and of earlier ones."""
    keep: Callable[[Mapping[str, TestReport]], None] = lambda reports: None
    """Receives the new ones among them, some at a time."""

    def run(self, pairs: Iterable[tuple[Tested, str]]) -> dict[tuple[str, str], TestReport]:
        """Run solutions on the tests of their problems; returns the reports.

        A program with a known report is not run again.

        Raises:
            SandboxError: code can't be run here.
        """
        by_steps: dict[int, dict[tuple[str, str], Suite]] = {}
        for problem, text in pairs:
            steps = self.steps_of.get(problem.name, self.max_steps)
            by_steps.setdefault(steps, {})[problem.name, text] = problem.suite(text)
        reports: dict[tuple[str, str], TestReport] = {}
        size = sum(map(len, by_steps.values()))
        for steps, suites in by_steps.items():
            keys = {name: self.key_of(suite, steps) for name, suite in suites.items()}
            reports |= {name: self.known[key] for name, key in keys.items() if key in self.known}
            names = [name for name in suites if name not in reports]
            # Not all at once: an interrupt waits for the tests under way.
            for first in range(0, len(names), _AT_ONCE):
                part = names[first : first + _AT_ONCE]
                new_reports = run_tests_batch(
                    [suites[name] for name in part],
                    limits=self.limits,
                    max_steps=steps,
                    workers=self.workers,
                    allow_without_namespaces=self.allow_without_namespaces,
                )
                reports.update(zip(part, new_reports, strict=True))
                new = {keys[name]: reports[name] for name in part if is_settled(reports[name])}
                self.known.update(new)
                self.keep(new)
                if size > _AT_ONCE:
                    self.say(f"{len(reports)} of {size} variants run")
        return {name: reports[name] for suites in by_steps.values() for name in suites}

    def key_of(self, suite: Suite, steps: int) -> str:
        """Digest all that decides about a report, as long as only steps end it."""
        made_with = (__version__, platform.python_version())
        return digest([*made_with, asdict(self.limits), steps, suite.solution, list(suite.tests)])

    def with_steps(self, steps_of: Mapping[str, int]) -> "TestRunner":
        """Return the same with limits of their own for some problems."""
        return replace(self, steps_of=dict(steps_of))


def is_settled(report: TestReport) -> bool:
    """Tell whether the report would be the same again: no clock and no busy machine ended it."""
    endings = (*report.details, report.load_error)
    return report.status == "ok" or (report.status == "timeout" and "_Stop: steps" in endings)


def describe_first_failure(tests: Sequence[str], report: TestReport) -> str:
    """Say how the first test without a pass ended, and name it."""
    if report.load_error:
        return report.load_error
    for test, outcome, detail in zip(tests, report.outcomes, report.details, strict=True):
        if outcome != "passed":
            message = detail if outcome == "error" and detail else f"{outcome} {detail}".strip()
            # The subject of a test stands at its end, after its preparations.
            place = test if len(test) <= _TEST_CHARACTERS else f"...{test[-_TEST_CHARACTERS:]}"
            return f"{message} in {place}"
    return report.status


def find_defined_names(source: str) -> set[str]:
    """List the functions, classes and variables at the top of `source`.

    Raises:
        SyntaxError: `source` is not Python.
    """
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def write_plainly(source: str) -> str:
    """Return the text of `source` without comments, docstrings and formatting of its own.

    Raises:
        SyntaxError: `source` is not Python.
    """
    tree = ast.parse(source)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
    return ast.unparse(tree) + "\n"
