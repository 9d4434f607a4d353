"""What the sandbox promises, tried with code that does not want to be held."""

import gzip
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from nip_sandbox.sandbox import Limits, Suite, run_python, run_tests, run_tests_batch

HUMANEVAL = Path(__file__).parents[4] / "shared" / "data" / "humaneval-even.jsonl.gz"
QUICK = Limits(wall_s=5.0, cpu_s=1.0, test_cpu_s=0.5)


def run(code: str, **options):
    limits = options.pop("limits", QUICK)
    # What a machine lacks is skipped or said below; that it is refused: tests/security.
    return run_python(
        textwrap.dedent(code), limits=limits, allow_without_namespaces=True, **options
    )


def run_suite(solution, tests, **options):
    return run_tests(solution, tests, allow_without_namespaces=True, **options)


def run_batch(suites, **options):
    return run_tests_batch(suites, allow_without_namespaces=True, **options)


def wait_until(condition, timeout_s=5.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def isolation():
    return run("pass").isolation


def test_output_exit_code_and_stdin_pass_through():
    result = run(
        """
        import sys
        print(sys.stdin.read().upper(), end="")
        print("careful", file=sys.stderr)
        raise SystemExit(3)
        """,
        stdin="größe\n" * 50_000,
    )
    assert (result.status, result.exit_code) == ("error", 3)
    assert result.stdout == "GRÖSSE\n" * 50_000
    assert result.stderr == "careful\n"


def test_a_program_that_ends_well_is_ok():
    result = run("print(6 * 7)")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == ("ok", 0, "42\n", "")


def test_an_uncaught_exception_is_an_error_with_its_traceback():
    result = run("[][1]")
    assert (result.status, result.exit_code) == ("error", 1)
    assert result.stderr.endswith("IndexError: list index out of range\n")


def test_a_busy_loop_ends_at_its_cpu_time():
    result = run("while True: pass")
    assert result.status == "timeout"
    assert 0.5 < result.wall_s < 5.0


def test_a_sleeper_ends_at_its_wall_time():
    result = run("import time; time.sleep(60)", limits=Limits(wall_s=0.5))
    assert (result.status, result.exit_code) == ("timeout", -9)
    assert 0.5 <= result.wall_s < 4.0


def test_code_that_ignores_signals_is_stopped_all_the_same():
    code = """
        import signal, time
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        time.sleep(60)
        """
    assert run(code, limits=Limits(wall_s=0.5)).status == "timeout"


def test_ten_gigabytes_are_refused():
    result = run("x = bytearray(10 * 1024 ** 3)")
    assert result.status == "memory"
    assert "MemoryError" not in result.stdout


def test_memory_below_the_limit_is_given():
    assert run("x = bytearray(100 * 1024 ** 2)").status == "ok"


def test_a_fork_bomb_is_bounded_and_leaves_nothing():
    name = process_name()
    code = f"""
        import ctypes, os, time
        ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)
        children = 0
        try:
            while children < 200:  # bounded, should the limit not hold
                if os.fork() == 0:
                    time.sleep(30)
                children += 1
        except OSError:
            print("refused after", children)
        """
    result = run(code, limits=Limits(wall_s=5.0, processes=8))
    if result.isolation.user:
        # Limited by the kernel: the program itself and 7 more.
        assert result.stdout == "refused after 7\n"
    elif result.isolation.processes:
        # Either limited or watched, see the docstring.
        assert result.status == "killed" or result.stdout == "refused after 7\n"
    else:
        assert "refused after" in result.stdout
    assert result.wall_s < 5.0
    assert processes_called(name) == []


def process_name():
    """A name for the processes of one sandbox, which its forks inherit; at most 15 characters."""
    return f"nip{time.monotonic_ns() % 10**12}"


def processes_called(name):
    return [p.pid for p in psutil.process_iter(["name"]) if p.info["name"] == name]


def test_endless_output_is_cut_off():
    result = run("while True: print('x' * 1000)", limits=Limits(output_bytes=10_000))
    assert result.status == "output_limit"
    assert len(result.stdout) == 10_000


def test_endless_output_on_stderr_is_cut_off():
    code = "import os\nwhile True: os.write(2, b'y' * 65536)"
    result = run(code, limits=Limits(output_bytes=10_000))
    assert (result.status, len(result.stderr)) == ("output_limit", 10_000)


def test_a_large_file_is_refused():
    code = """
        with open("big", "wb") as file:
            for _ in range(100):
                file.write(b"x" * 1024 * 1024)
        """
    result = run(code, limits=Limits(file_mb=2))
    assert result.status in ("error", "killed")


def test_many_files_fill_only_the_sandbox():
    code = """
        for k in range(100):
            with open(str(k), "wb") as file:
                file.write(b"x" * 1024 * 1024)
        """
    result = run(code, limits=Limits(disk_mb=8, file_mb=2))
    if not result.isolation.filesystem:
        pytest.skip("the working directory is not a file system of its own here")
    assert "No space left" in result.stderr


def test_no_connection_can_be_made(isolation):
    if not isolation.network:
        pytest.skip("this system gives no network namespace")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()  # it really listens
        server.accept()[0].close()
        result = run(f"import socket; socket.create_connection(('127.0.0.1', {port}), 3)")
        assert result.network_isolated
        assert result.status == "error"
        assert "OSError" in result.stderr
        with pytest.raises(TimeoutError):
            server.accept()


def test_without_network_isolation_the_result_says_so():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 3); print('in')"
        result = run(code, refuse=["network"])
        assert not result.network_isolated
        assert result.stdout == "in\n"


@pytest.mark.parametrize("refuse", [[], ["namespaces"]], ids=["namespaces", "plain"])
def test_a_grandchild_in_a_session_of_its_own_does_not_survive(refuse):
    name = process_name()
    code = f"""
        import ctypes, os, time
        ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                time.sleep(60)
            time.sleep(60)
        time.sleep(1)
        print("left")
        """
    results = []
    sandbox = threading.Thread(target=lambda: results.append(run(code, refuse=refuse)))
    sandbox.start()
    wait_until(lambda: len(processes_called(name)) == 3)
    sandbox.join(timeout=10)
    assert results[0].stdout == "left\n"
    assert processes_called(name) == []


def test_the_child_dies_with_its_caller():
    script = textwrap.dedent(
        """
        from nip_sandbox.sandbox import run_python
        run_python("import time; time.sleep(60)")
        """
    )
    caller = subprocess.Popen([sys.executable, "-c", script])
    try:
        parent = psutil.Process(caller.pid)
        wait_until(lambda: len(parent.children(recursive=True)) >= 2, timeout_s=20.0)
        family = parent.children(recursive=True)
    finally:
        caller.kill()
        caller.wait(timeout=10)
    wait_until(lambda: not any(_is_alive(process) for process in family))


def _is_alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_nothing_can_be_written_outside_the_working_directory(tmp_path, isolation):
    if not isolation.filesystem:
        pytest.skip("this system gives no mount namespace")
    tmp_path.chmod(0o777)
    code = f"""
        import os
        open("inside", "w").close()
        for path in ({str(tmp_path)!r}, "/var/tmp", "/", os.path.expanduser("~"), "/etc"):
            try:
                open(os.path.join(path, "nip-escaped"), "w").close()
                print("wrote to", path)
            except OSError:
                pass
        """
    result = run(code)
    assert (result.status, result.stdout) == ("ok", "")
    assert list(tmp_path.iterdir()) == []


def test_root_is_not_root_inside():
    result = run("import os; print(os.getuid(), os.getgroups())")
    if os.getuid() != 0 or not result.isolation.user:
        pytest.skip("only root can become another user")
    uid, _, groups = result.stdout.partition(" ")
    assert int(uid) != 0
    assert groups == "[]\n"


def test_privileges_are_gone_and_stay_gone():
    result = run("print(open('/proc/self/status').read())", limits=Limits())
    if "CapEff" not in result.stdout:
        pytest.skip("no /proc here")
    fields = dict(line.split(":\t") for line in result.stdout.splitlines() if ":\t" in line)
    assert [int(fields[name], 16) for name in ("CapEff", "CapPrm", "CapInh")] == [0, 0, 0]
    if result.isolation.processes:  # else nobody had the right to give that up
        assert int(fields["CapBnd"], 16) == 0
    assert fields["NoNewPrivs"] == "1"


def test_one_run_leaves_nothing_for_the_next():
    suites = [
        Suite("open('left', 'w').close()", ("import os; assert os.listdir() == ['left']",)),
        Suite("import os", ("assert os.listdir() == []",)),
        Suite("import builtins; builtins.len = None", ("assert len is None",)),
        Suite("", ("assert len('ab') == 2",)),
    ]
    assert [report.all_passed for report in run_batch(suites)] == [True] * 4


def test_the_order_of_sets_is_always_the_same():
    code = "print(list({str(k) for k in range(100)}))"
    assert run(code).stdout == run(code).stdout


def test_each_test_has_its_own_outcome():
    solution = "def f(x):\n    while x > 1:\n        pass\n    return 10 // (x + 1)"
    tests = ["assert f(0) == 10", "assert f(1) == 6", "f(-1)", "f(2)", "assert f(0) == 10"]
    report = run_suite(solution, tests, max_steps=1000)
    assert report.outcomes == ("passed", "failed", "error", "timeout", "not_run")
    assert (report.status, report.passed, report.failed, report.errors) == ("timeout", 1, 1, 3)
    assert report.details[2].startswith("ZeroDivisionError")
    assert not report.all_passed


def test_cpu_time_ends_a_test_that_catches_everything():
    solution = """
def f():
    while True:
        try:
            while True:
                pass
        except Exception:
            pass
"""
    report = run_suite(solution, ["assert 1 == 1", "f()", "assert 1 == 1"], limits=QUICK)
    assert report.outcomes == ("passed", "timeout", "not_run")


def test_what_even_an_alarm_can_not_end_is_killed():
    report = run_suite(
        "def f():\n    return pow(7, 10 ** 9)",
        ["assert f"] * 2 + ["f()"],
        limits=Limits(wall_s=1.0, test_cpu_s=0.5),
    )
    assert report.outcomes == ("passed", "passed", "timeout")
    assert report.status == "timeout"


def test_a_solution_that_does_not_load_says_why():
    report = run_suite("def f(:", ["assert f"])
    assert report.outcomes == ("not_run",)
    assert report.load_error is not None and report.load_error.startswith("SyntaxError")
    assert not report.all_passed


def test_leaving_early_does_not_pass():
    report = run_suite("import os", ["assert True", "os._exit(0)", "assert True"])
    assert report.outcomes == ("passed", "error", "not_run")
    assert not report.all_passed
    report = run_suite("import sys", ["sys.exit(0)", "assert True"])
    assert report.outcomes == ("error", "passed")


def test_a_suite_that_takes_everything_down_costs_itself_alone():
    hostile = "import os, signal\nfor n in (os.getppid(), 0, -1):\n    os.kill(n, signal.SIGKILL)"
    suites = [Suite("x = 1", ("assert x == 1",)), Suite(hostile, ("assert True",))] * 2
    for refuse in ([], ["namespaces"]):
        reports = run_batch(suites, refuse=refuse)
        assert [report.all_passed for report in reports] == [True, False, True, False]


def test_reports_come_in_the_order_of_the_suites():
    suites = [Suite(f"x = {k}", (f"assert x == {k}", "assert x % 3 == 0")) for k in range(60)]
    reports = run_batch(suites, workers=2)
    assert [report.passed for report in reports] == [2 if k % 3 == 0 else 1 for k in range(60)]


def test_sandboxes_in_threads_do_not_disturb_each_other():
    results = {}

    def work(k):
        results[k] = run(f"print({k})").stdout

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert results == {k: f"{k}\n" for k in range(6)}


def test_limits_must_be_positive():
    with pytest.raises(ValueError, match="memory_mb must be above 0"):
        Limits(memory_mb=0)


def test_the_working_directory_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run("import os; os.mkdir('d'); open('d/x', 'w').close(); os.chmod('d', 0)")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not HUMANEVAL.is_file(), reason=f"no {HUMANEVAL.name} beside the repository")
def test_real_problems_pass_with_their_solutions_and_fail_without():
    with gzip.open(HUMANEVAL, "rt") as file:
        problems = [json.loads(line) for line in file]
    assert len(problems) == 82
    suites = []
    for problem in problems:
        check = f"{problem['test']}\ncheck({problem['entry_point']})"
        suites.append(Suite(problem["prompt"] + problem["canonical_solution"], (check,)))
        suites.append(Suite(problem["prompt"] + "    return None\n", (check,)))
    reports = run_batch(suites, workers=2)
    assert all(report.all_passed for report in reports[0::2])
    assert not any(report.all_passed for report in reports[1::2])
