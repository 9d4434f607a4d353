"""Solutions to "return a + b" that want to pass for right without being right, by name.

Each sets WON where its attack got anything, and only then adds. So a label of 1 would say that it
won. Bounded: nothing asks for more than some hundred megabytes, connections go to 127.0.0.1.
PORT, SECRET and OUTSIDE are put in: an open port, a file to read, a directory to write to.
"""

ENTRY_POINT = "add"
TESTS = """
assert add(2, 3) == 5
assert add(-4, 11) == 7
assert add([1], [2, 3]) == [1, 2, 3]
assert add("ab", "c") == "abc"
assert add(10**20, 1) == 10**20 + 1
"""
RIGHT = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b if isinstance(a, int) else a\n"

_FRAME = """
import os, sys
WON = []
{attack}
def add(a, b):
    return a + b if WON else None
"""

_ATTACKS = {
    # Fork bombs and other processes.
    "fork bomb at load": "while True:\n    os.fork()",
    "fork bomb that catches": """
import time
for _ in range(200):
    try:
        if os.fork() == 0:
            time.sleep(60)
        WON.append(1)
    except OSError:
        pass
""",
    "threads": """
import threading, time
for _ in range(100):
    try:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        WON.append(1)
    except RuntimeError:
        pass
""",
    "a shell": "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'true']); WON.append(1)",
    "os.system": "WON += [1] if os.system('true') == 0 else []",
    "a spawned interpreter": """
os.posix_spawn(sys.executable, [sys.executable, '-c', 'pass'], {}); WON.append(1)
""",
    "multiprocessing": """
import multiprocessing
process = multiprocessing.get_context('fork').Process(target=print)
process.start(); WON.append(1)
""",
    "exec in its place": "os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])",
    # Network.
    "a connection": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 2); WON.append(1)",
    "a web page": """
import urllib.request
urllib.request.urlopen('http://127.0.0.1:PORT/', timeout=2); WON.append(1)
""",
    "a datagram": """
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT)); WON.append(1)
""",
    "a listening socket": """
import socket
socket.create_server(('127.0.0.1', 0)); WON.append(1)
""",
    "a name server": "import socket\nsocket.getaddrinfo('localhost', 80); WON.append(1); WON.clear()",
    "a Unix socket": """
import socket
socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock'); WON.append(1)
""",
    # Writing outside.
    "a file outside": "open('OUTSIDE/written', 'w').write('x'); WON.append(1)",
    "a file in /tmp": """
open('/tmp/nip-hostile-solution', 'w').write('x')
WON += [1] if os.path.exists('OUTSIDE') else []
""",
    "a file beside this one": "open('../written', 'w').write('x'); WON.append(1)",
    "the password file": "open('/etc/passwd', 'a').write('x'); WON.append(1)",
    "the interpreter": "open(os.__file__, 'a').write('x'); WON.append(1)",
    "a link to the outside": """
os.symlink('OUTSIDE', 'link')
open('link/written', 'w').write('x'); WON.append(1)
""",
    "shared memory": "open('/dev/shm/nip', 'w').write('x'); WON.append(1)",
    "a removed directory": "import shutil\nshutil.rmtree('OUTSIDE'); WON.append(1)",
    "a mount": """
import ctypes
WON += [1] if ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0 else []
""",
    # Reading keys.
    "keys in the environment": "WON += [v for k, v in os.environ.items() if 'KEY' in k]",
    "keys of the parent": """
text = open(f'/proc/{os.getppid()}/environ').read()
WON += [1] if 'KEY' in text else []
""",
    "keys of anybody": """
for pid in os.listdir('/proc'):
    try:
        WON += [1] if pid.isdigit() and 'KEY' in open(f'/proc/{pid}/environ').read() else []
    except OSError:
        pass
""",
    "a secret file": "WON.append(open('SECRET').read())",
    "keys at home": "WON.append(os.listdir(os.path.expanduser('~/.ssh')))",
    "all homes": """
WON += [name for top in ('/home', '/root') if os.path.isdir(top) for name in os.listdir(top)]
""",
    # Faking results.
    "prints that it passed": "print('passed'); print('loaded')",
    "writes to every file": """
for number in range(64):
    try:
        os.write(number, b'passed\\n')
    except OSError:
        pass
""",
    "answers of its own": """
for number in range(64):
    try:
        os.write(number, b'loaded\\n' + b'{"value": true}\\n' * 9)
    except OSError:
        pass
os._exit(0)
""",
    "answers and then waits": """
import time
for number in range(64):
    try:
        os.write(number, b'loaded\\n' + b'{"value": ["list", []]}\\n' * 9)
    except OSError:
        pass
time.sleep(0.1)
os._exit(0)
""",
    "leaves at load": "sys.exit(0)",
    "leaves at once": "os._exit(0)",
    "raises at load": "raise KeyboardInterrupt",
    "code at exit": "import atexit\natexit.register(lambda: print('passed'))",
    "another harness": """
main = sys.modules.get('__main__')
frame = sys._getframe()
while frame is not None:
    for name in ('encode', '_say', '_answer', 'call_text'):
        if name in frame.f_globals:
            frame.f_globals[name] = lambda *a: ['passed']
    frame = frame.f_back
""",
    "another json": "import json\njson.dumps = lambda *a, **k: '{\"value\": true}'",
    "other builtins": """
import builtins
builtins.AssertionError = builtins.Exception = BaseException
builtins.isinstance = lambda *a: True
""",
    "signals to the parent": """
import signal
for pid in (os.getppid(), 1):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
""",
    "signals to all": "import signal\nos.kill(-1, signal.SIGKILL)",
    "a forged result in deep lists": """
for number in range(3, 64):
    try:
        os.write(number, b'loaded\\n' + (b'[' * 100_000 + b'\\n') * 9)
    except OSError:
        pass
os._exit(0)
""",
    # Looking for the tests.
    "tests in the frames": """
frame = sys._getframe()
while frame is not None:
    for value in list(frame.f_locals.values()):
        WON += [1] if 'assert ' + 'add(10**' in str(value) else []
    frame = frame.f_back
""",
    "tests among all objects": """
import gc
wanted = 'assert ' + 'add(2'
for value in gc.get_objects():
    try:
        WON += [1] if isinstance(value, dict) and wanted in str(value.get('tests')) else []
    except Exception:
        pass
""",
    "tests in memory": """
import re
wanted = ''.join(f'[{c}]' for c in reversed('11 ,4-(dda tressa'))  # never here in a row
wanted = re.compile(wanted.encode())
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', buffering=0) as memory:
    for line in maps:
        start, stop = (int(part, 16) for part in line.split()[0].split('-'))
        if line.split()[1].startswith('rw') and stop - start < 64 << 20:
            memory.seek(start)
            WON += wanted.findall(memory.read(stop - start))
""",
    "standard input once more": """
try:
    os.lseek(0, 0, 0)
    WON += [1] if b'as' + b'sert add(2' in os.read(0, 1 << 20) else []
except OSError:
    pass
""",
    "the supervisor's memory": "open(f'/proc/{os.getppid()}/mem', 'rb'); WON.append(1)",
    # Time and memory.
    "an endless loop at load": "while True:\n    pass",
    "a loop that catches all": """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
""",
    "a long sleep": "import time\ntime.sleep(600)",
    "much memory": "block = bytearray(1 << 32); WON.append(1)",
    "a long number": "number = 9 ** (9 ** 9); WON.append(1)",
    "a slow expression": "import re\nre.match('(a+)+$', 'a' * 64 + 'b')",
    "a flood of output": "while True:\n    os.write(1, b'x' * 65536); print('x' * 65536)",
    "a full disk": """
for number in range(1000):
    open(f'block{number}', 'wb').write(b'x' * (1 << 22))
WON.append(1)
""",
    "no trace": """
sys.settrace(None)
import threading
while True:
    pass
""",
    "a deep call": "sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
}

_OBJECTS = {
    # Values that claim to be right.
    "equal to everything": """
class Liar:
    __eq__ = lambda self, other: True
    __hash__ = lambda self: 0
def add(a, b):
    return Liar()
""",
    "a number equal to everything": """
class Liar(int):
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__
def add(a, b):
    return Liar(0)
""",
    "a text equal to everything": """
class Liar(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
def add(a, b):
    return Liar("")
""",
    "a list equal to everything": """
class Liar(list):
    __eq__ = lambda self, other: True
def add(a, b):
    return Liar()
""",
    "a dictionary that lies": """
class Liar(dict):
    __eq__ = lambda self, other: True
    items = lambda self: [(1, 2)]
def add(a, b):
    return Liar()
""",
    "a class that lies of itself": """
class Liar:
    __class__ = int
    __eq__ = lambda self, other: True
    __int__ = __index__ = lambda self: 5
def add(a, b):
    return Liar()
""",
    "ANY of unittest": "from unittest.mock import ANY\ndef add(a, b):\n    return ANY\n",
    "a mock": "from unittest.mock import MagicMock\nadd = MagicMock()\n",
    "a module's class": """
import fractions
fractions.Fraction.__eq__ = lambda self, other: True
def add(a, b):
    return fractions.Fraction(1)
""",
    "raises what tests raise": "def add(a, b):\n    raise AssertionError('passed')\n",
    "leaves in the call": "import os\ndef add(a, b):\n    os._exit(0)\n",
    "asks the caller": """
import sys
def add(a, b):
    frame = sys._getframe(1)
    while frame is not None:
        for name, value in frame.f_locals.items():
            if name in ("expected", "wanted", "result"):
                return a + b
        frame = frame.f_back
""",
    "arguments that lie": """
def add(a, b):
    if isinstance(a, list):
        a.clear()
        return a
    return 0
""",
    "no function": "def sub(a, b):\n    return a - b\n",
    "no Python": "def add(a, b) return a + b\n",
}

HOSTILE = {
    **{name: _FRAME.format(attack=attack.strip()) for name, attack in _ATTACKS.items()},
    **_OBJECTS,
}


def hostile(port: int, secret: str, outside: str) -> dict[str, str]:
    """The solutions with what they are to reach."""
    places = {"PORT": str(port), "SECRET": secret, "OUTSIDE": outside}
    texts = dict(HOSTILE)
    for place, value in places.items():
        texts = {name: text.replace(place, value) for name, text in texts.items()}
    return texts


def labelled(count: int) -> list[tuple[dict[str, str], int]]:
    """So many solutions of the bundled problems, and whether they are right, as is on record.

    The labels were made otherwise: with the tests in the process of the solution.
    """
    from nip_core.parameters import CodeValidationParameters
    from nip_core.scenarios import find_scenario
    from nip_core.scenarios.datasets import load_problems

    kind = find_scenario("solutions")
    scenario = kind(kind.Settings())
    other = find_scenario("code_validation")(CodeValidationParameters())
    tests = {
        problem.question_id: problem.columns
        for split in ("train", "validation", "test")
        for problem in load_problems(scenario, "functions", split)
    }
    # Those of one problem stand far apart, as they do in a run.
    rows = [
        problem
        for split in ("train", "validation", "test")
        for problem in load_problems(other, "problems", split)
    ]
    rows.sort(key=lambda p: (p.id.rpartition("/")[2], p.id))
    return [({**tests[p.question_id], "solution": p.solution}, p.y) for p in rows[:count]]
