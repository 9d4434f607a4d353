"""Code that wants out of the sandbox, as a program of its own: `hostile_code.py SECRET PORT`.

Each attack leaves in `got` what it won: nothing, if the sandbox holds. After each come a solution
that is wrong and one that is right, which must stay so. Bounded: nothing here asks for more than
some hundred megabytes, and connections go to 127.0.0.1.

It prints one JSON object: what the sandbox says of itself, and for each attack how it ended.
"""

import json
import sys

_START = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
got = []
pids = {os.getppid(), 1}
try:
    pids |= {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
except OSError:
    pids |= set(range(max(1, os.getpid() - 50), os.getpid()))
def attempt(action, *arguments):
    try:
        result = action(*arguments)
    except (OSError, MemoryError, ValueError) as error:
        return None
    if result not in (None, "", b"", [], -1):
        got.append(str(result)[:100])
    return result
"""

ATTACKS = {
    # Who called reads its keys from its environment.
    "environment of others": """
for pid in pids:
    text = attempt(lambda: open(f"/proc/{pid}/environ").read())
    if text is not None and "PATH=" not in text:
        got.clear()
""",
    "memory of others": """
for pid in pids:
    attempt(lambda: open(f"/proc/{pid}/mem", "r+b"))
    attempt(lambda: open(f"/proc/{pid}/maps").read())
    if libc.ptrace(16, pid, 0, 0) == 0:  # PTRACE_ATTACH
        libc.ptrace(17, pid, 0, 0)
        got.append("traced")
""",
    # The supervisor's files are the jobs that wait and the pipe on which results go home.
    "forged results": """
import json
for pid in pids:
    for number in range(10):
        try:
            with open(f"/proc/{pid}/fd/{number}", "wb", buffering=0) as file:
                passed = {"messages": [{"outcome": "passed"}, {"end": True}], "status": "ok",
                    "exit_code": 0, "wall_s": 0.0, "isolation":
                    dict.fromkeys(("network", "processes", "filesystem", "user"), True)}
                file.write((json.dumps(passed) + "\\n").encode() * 3)
                got.append(f"wrote to file {number} of {pid}")
        except OSError:
            pass
""",
    "jobs that wait, in memory": """
import re
def look():
    word = re.compile("".join(f"[{c}]" for c in reversed(NEXT)).encode())  # never here in a row
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, rights = line.split()[:2]
            start, stop = (int(part, 16) for part in place.split("-"))
            if rights.startswith("rw"):
                memory.seek(start)
                if word.search(memory.read(min(stop - start, 64 << 20))):
                    got.append(line)
attempt(look)
""",
    "signals to others": """
import signal
for pid in pids:
    if attempt(lambda: os.kill(pid, 0) or "signalled") and pid == os.getppid():
        os.kill(pid, signal.SIGKILL)
""",
    "limits of others": """
import resource
for pid in pids - {1}:
    attempt(lambda: resource.prlimit(pid, resource.RLIMIT_CORE))
""",
    "shared memory": """
size = 512 << 20
attempt(lambda: os.memfd_create("big"))
attempt(lambda: libc.shmget(0, ctypes.c_size_t(size), 0o1600))
attempt(lambda: libc.semget(0, 1000, 0o1600))
attempt(lambda: libc.msgget(0, 0o1600))
""",
    "memory of a mount": """
if libc.unshare(0x10000000 | 0x20000) == 0:
    got.append("a namespace")
    if libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b"size=8g") == 0:
        got.append("a mount")
child = libc.syscall(ctypes.c_long(56 if os.uname().machine == "x86_64" else 220),
    ctypes.c_long(0x10000000 | 17), None, None, None, None)
if child == 0:
    os._exit(0)
if child > 0:
    got.append("a child in a namespace")
if libc.syscall(ctypes.c_long(425), 8, ctypes.byref((ctypes.c_uint32 * 30)())) >= 0:
    got.append("io_uring")
""",
    "files elsewhere": """
for folder in ("/dev/shm", "/tmp", "/var/tmp", os.path.dirname(SECRET), "/"):
    path = os.path.join(folder, f"nip-hostile-{os.getpid()}")
    def leave():
        with open(path, "w"):
            return path
    if attempt(leave):
        os.unlink(path)
attempt(lambda: open(SECRET).read())
attempt(lambda: os.chmod(SECRET, 0o777) or "chmod")
attempt(lambda: os.utime(SECRET, (0, 0)) or "utime")
""",
    "the network": """
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    def connect():
        with socket.socket(socket.AF_INET, kind) as connection:
            connection.connect(("127.0.0.1", PORT))
            return "connected"
    attempt(connect)
""",
    "directories below each other": """
for _ in range(1200):  # more than calls can nest, and too long for a path
    os.mkdir("directory")
    os.chdir("directory")
open("x", "w").close()
attempt(os.chmod, ".", 0)
""",
    "many directories, one forbidden": """
for k in range(50):
    os.makedirs(f"{k}/a/b")
    os.symlink("/etc", f"{k}/a/link")
    attempt(os.chmod, f"{k}/a", 0)
""",
    "reports below each other": """
os.write(3, b"[" * 200_000 + b"]" * 200_000 + b"\\n")
os.write(3, b'{"load": ' + b'[' * 900 + b']' * 900 + b"}\\n")
""",
    "reports of any kind": """
for line in (b"\\xff\\xfe", b"null", b"1e999", b'{"load": {"load": 1}}', b'{"outcome": ["passed"]}',
        b"outcome passed", b"\\0" * 100, b"9" * 5000, b'"' + b"\\\\ud800" * 1000 + b'"'):
    os.write(3, line + b"\\n" + b"\\0")
""",
    "no report pipe": "os.closerange(3, 100)",
}
WON_BY_HARM = ("reports below each other", "reports of any kind", "no report pipe")
"""Attacks that may end as they like, so long as the others don't feel it."""

WRONG, RIGHT = "def f():\n    return 1", "def f():\n    return 2"
CHECK = "assert f() == 2"


def attack(secret, port, **options):
    """Run every attack between innocents, in one sandbox; what comes of it, to be printed."""
    from nip_sandbox.sandbox import Limits, Suite, run_tests_batch

    suites = []
    for number, source in enumerate(ATTACKS.values()):
        marker = f"waits as number {number}"
        start = f"SECRET, PORT, NEXT = {secret!r}, {port}, {marker[::-1]!r}\n{_START}"
        suites.append(Suite(start + source, ("assert not got, got",)))
        suites += [Suite(f"{WRONG}  # {marker}", (CHECK,)), Suite(RIGHT, (CHECK,))]
    limits = Limits(wall_s=60.0, cpu_s=60.0, test_cpu_s=30.0, memory_mb=512)
    reports = run_tests_batch(suites, limits=limits, **options)
    ends = {}
    for name, report, wrong, right in zip(
        ATTACKS, reports[::3], reports[1::3], reports[2::3], strict=True
    ):
        held = name in WON_BY_HARM or report.all_passed
        ends[name] = {
            "held": held,
            "innocents": not wrong.all_passed and wrong.failed == 1 and right.all_passed,
            "detail": [report.status, report.wall_s, report.load_error, *report.details],
        }
    return {"isolation": vars(reports[-1].isolation), "ends": ends}


if __name__ == "__main__":
    print(json.dumps(attack(sys.argv[1], int(sys.argv[2]), allow_without_namespaces=True)))
