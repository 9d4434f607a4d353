"""The grades of rows: each test in a process of its own, several rows at a time.

grade             rows -> grades, as they come
Grade, TestGrade  of a row, and of one of its tests
check_isolation   refuse to grade where code could read the expected outputs

Each row has a child interpreter of its own (`nip_sandbox`), so in the memory of one no code
finds the outputs of another. It is given the code's input, and never the expected output.
"""

import json
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Any

from nip_sandbox.grading.in_sandbox import Answer, Calls, Loaded, encode_task, write_call
from nip_sandbox.grading.judge import PROGRAM, Judge, Judgement, Task, Unjudged
from nip_sandbox.grading.outputs import explain_output, explain_value
from nip_sandbox.grading.rows import (
    OUTPUT_BYTES,
    AssertTest,
    CallTest,
    JsonValue,
    OutputTest,
    Row,
)
from nip_sandbox.sandbox import (
    Isolation,
    Limits,
    Program,
    SandboxError,
    SandboxResult,
    examine,
    run_python_each,
)

_NOT_RUN = "not run: an earlier test failed"


@dataclass(frozen=True)
class TestGrade:
    """The outcome of one test."""

    __test__ = False  # pytest would take it for a test class, by its name

    passed: bool | None
    """None: the test judges nothing, as `reason` says."""
    reason: str
    """Empty if it passed, else a kind, and behind a colon the details."""
    seconds: float


@dataclass(frozen=True)
class Grade:
    """The outcome of a row."""

    id: str | int
    passed: bool | None
    """Whether all tests passed; None: one of them judges nothing."""
    tests: tuple[TestGrade, ...]
    digest: str
    """Of the row's code, tests and limits."""
    meta: JsonValue = None
    place: str = ""
    """The file and the line of the row."""

    def as_line(self) -> str:
        """Write the grade as a line of JSON, in ASCII."""
        document: dict[str, Any] = {
            "id": self.id,
            "passed": self.passed,
            "tests": [vars(test) for test in self.tests],
            "digest": self.digest,
        }
        if self.meta is not None:
            document["meta"] = self.meta
        return json.dumps(document) + "\n"


def check_isolation(isolation: Isolation, lacking: str, allow_without_namespaces: bool) -> None:
    """Refuse to grade where code could read the expected outputs from a disk.

    Raises:
        SandboxError: there is no Landlock, and the caller does not allow to do without.
    """
    if not isolation.landlock and not allow_without_namespaces:
        also = f"; {lacking}" if lacking else ""
        raise SandboxError(
            "code is not graded here: this system has no Landlock, so code could read files with "
            f"the expected outputs{also}; use Linux 5.13 or newer with Landlock, or pass "
            "--allow-without-namespaces and keep such files unreadable for other users"
        )


def grade(
    rows: Iterable[Row],
    *,
    jobs: int = 1,
    stop_at_first_failure: bool = False,
    allow_without_namespaces: bool = False,
) -> Generator[Grade, None, None]:
    """Grade rows, `jobs` at a time, and give each grade when it is there, so not in their order.

    Rows are read when there is room for them, in a thread of their own: no grade waits for the
    rows after it. Where reading one fails, those before it are graded first. Who stops asking and
    closes the iterator waits for the tests that run, and for no row.

    Args:
        rows: see `rows.read_rows` and `rows.make_row`.
        jobs: rows at a time.
        stop_at_first_failure: run no further test of a row of which one has failed.
        allow_without_namespaces: see `nip_sandbox.sandbox.run_python`.

    Raises:
        SandboxError: this system can't keep code in.
    """
    check_isolation(*examine(), allow_without_namespaces)
    stop = Event()
    grader = _Grader(stop_at_first_failure, allow_without_namespaces, stop.is_set)
    reader = _Reader(rows, 2 * jobs)
    pool = ThreadPoolExecutor(max_workers=jobs)
    end, running = None, 0
    try:
        while end is None or running:
            event = reader.events.get()
            if isinstance(event, Row):
                pool.submit(grader.grade_row, event).add_done_callback(reader.events.put)
                running += 1
            elif isinstance(event, Future):
                running -= 1
                reader.room.release()
                yield event.result()
            else:
                end = event
        if end.failure is not None:
            raise end.failure
    finally:
        stop.set()
        reader.stop()
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _End:
    """All rows are read."""

    failure: BaseException | None


class _Reader:
    """Reads rows, so many ahead of their grades, in a thread that keeps no process from ending."""

    def __init__(self, rows: Iterable[Row], most: int) -> None:
        self.room = Semaphore(most)
        self.events: SimpleQueue[Row | Future[Grade] | _End] = SimpleQueue()
        """The rows, and among them whatever else who grades them waits for."""
        self._is_stopped = False
        Thread(target=self._read, args=[rows], name="rows", daemon=True).start()

    def stop(self) -> None:
        """Read no further row than the one that is being read."""
        self._is_stopped = True
        self.room.release()

    def _read(self, rows: Iterable[Row]) -> None:
        try:
            iterator = iter(rows)
            while self.room.acquire() and not self._is_stopped:
                self.events.put(next(iterator))
            return
        except StopIteration:
            failure = None
        except BaseException as error:
            failure = error
        self.events.put(_End(failure))


class _Grader:
    """Grades one row after the other, in any thread."""

    def __init__(
        self, stop_at_first_failure: bool, allow: bool, stopped: Callable[[], bool]
    ) -> None:
        self._stops_early, self._allow, self._stopped = stop_at_first_failure, allow, stopped
        self._judges: dict[Limits, Judge] = {}

    def grade_row(self, row: Row) -> Grade:
        limits = Limits(
            wall_s=row.seconds,
            cpu_s=row.seconds,
            memory_mb=row.memory_mb,
            output_bytes=OUTPUT_BYTES,
        )
        programs = [k for k, test in enumerate(row.tests) if not isinstance(test, AssertTest)]
        asserts = [k for k, test in enumerate(row.tests) if isinstance(test, AssertTest)]
        grades: dict[int, TestGrade] = {}
        for places, run in ((programs, self._run_programs), (asserts, self._judge_asserts)):
            if not places or (self._stops_early and _has_failed(grades)):
                continue
            for place, test_grade in zip(places, run(row, limits, places), strict=False):
                grades[place] = test_grade
                if self._stops_early and _has_failed(grades):
                    break
        tests = tuple(
            grades.get(place, TestGrade(False, _NOT_RUN, 0.0)) for place in range(len(row.tests))
        )
        has_passed: bool | None = all(test.passed for test in tests)
        if any(test.passed is None for test in tests):
            has_passed = None
        return Grade(row.id, has_passed, tests, row.digest, row.meta, row.place)

    def _run_programs(self, row: Row, limits: Limits, places: list[int]) -> Iterator[TestGrade]:
        programs = [_make_program(row, row.tests[place]) for place in places]
        results = run_python_each(programs, limits=limits, allow_without_namespaces=self._allow)
        with closing(results):
            for place, result in zip(places, results, strict=True):
                reason = _explain(row, row.tests[place], result)
                yield TestGrade(not reason, reason, round(result.wall_s, 4))
                if self._stopped():
                    raise SandboxError("stopped; finished grades are kept")

    def _judge_asserts(self, row: Row, limits: Limits, places: list[int]) -> Iterator[TestGrade]:
        judge = self._judges.setdefault(limits, Judge(limits, 0, self._allow))
        tests = [test for test in row.tests if isinstance(test, AssertTest)]
        tasks = [Task(row.code, test.call, test.source) for test in tests]
        batches = [[task] for task in tasks] if self._stops_early else [tasks]
        for batch in batches:
            for judgement in judge.judge(batch, self._stopped):
                yield _grade_judgement(judgement, row)


def _has_failed(grades: dict[int, TestGrade]) -> bool:
    return any(test.passed is False for test in grades.values())


def _make_program(row: Row, test: OutputTest | CallTest | AssertTest) -> Program:
    """Make the program of a test, with its input and without the expected output."""
    if isinstance(test, CallTest):
        call = write_call(test.args, test.kwargs)
        return Program(PROGRAM, encode_task(Calls(row.code, test.call, [call], 0)))
    assert isinstance(test, OutputTest)
    return Program(row.code, test.stdin)


def _explain(row: Row, test: OutputTest | CallTest | AssertTest, result: SandboxResult) -> str:
    """Say why a test failed, or return ""."""
    if result.status != "ok":
        return _explain_end(row, result)
    if isinstance(test, CallTest):
        return _explain_answer(test, result.stdout)
    assert isinstance(test, OutputTest)
    difference = explain_output(result.stdout, test.stdout, test.exact, test.tolerance)
    return difference and f"wrong output: {difference}"


def _explain_end(row: Row, result: SandboxResult) -> str:
    if result.status == "timeout":
        return f"timeout: more than {row.seconds:g} s"
    if result.status == "memory":
        return f"memory: more than {row.memory_mb} MB"
    if result.status == "output_limit":
        return f"output: more than {OUTPUT_BYTES:,} bytes"
    if result.exit_code < 0:
        try:
            name = signal.Signals(-result.exit_code).name
        except ValueError:
            name = str(-result.exit_code)
        return f"crash: ended by signal {name}"
    last = next(reversed(result.stderr.strip().splitlines()), "")
    return f"crash: exit code {result.exit_code}{f', {last[:200]}' if last else ''}"


def _explain_answer(test: CallTest, output: str) -> str:
    """Say why the output of a call's process is not the expected answer, or return ""."""
    first, *lines = output.split("\n")
    if first == Loaded.NO_FUNCTION:
        return f"no function: the code has no {test.call}"
    if first == Loaded.FAILED:
        return f"does not load: {lines[0][:200] if lines else ''}"
    if first != Loaded.DONE or len(lines) != 2 or lines[1]:
        return "crash: it ended without an answer, or with more than one"
    try:
        answer = Answer(*json.loads(lines[0]))
        exception, not_plain = answer.exception, answer.not_plain
        if exception is not None:
            name, message = exception
            return f"exception: {str(name)[:80]}: {str(message)[:200]}"
    except Exception:  # a text of the code's making
        return "crash: the answer is no answer"
    if not_plain is not None:
        return f"wrong answer: returned a {str(not_plain)[:80]}, which is no JSON value"
    difference = explain_value(answer.value, test.expected, test.tolerance)
    return difference and f"wrong answer: {difference}"


def _grade_judgement(judgement: Judgement | Unjudged, row: Row) -> TestGrade:
    if isinstance(judgement, Unjudged):
        return TestGrade(None, judgement.reason, 0.0)
    mistake = judgement.mistake
    if mistake is None:
        return TestGrade(True, "", judgement.seconds)
    words = {
        "wrong answer": "an assertion failed, or the test raised an exception",
        "no plain value": "it returned what is no plain value",
        "exception": "it raised an exception",
        "timeout": f"more than {row.seconds:g} s",
        "memory": f"more than {row.memory_mb} MB",
        "output": f"more than {OUTPUT_BYTES:,} bytes",
        "crash": "it ended without its answers",
        "no function": "the code has no such function",
    }
    return TestGrade(
        False, f"{mistake}: {judgement.detail or words.get(mistake, '')}", judgement.seconds
    )
