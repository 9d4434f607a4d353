"""Code of an unknown hand that wants out, or more than it may have: one list for all that runs code.

SEARCH     looks for a text like `SECRET-` and 32 digits everywhere that it can read; ROWS is a path
FORGERIES  code that pretends, kills and outlives, by name
EXCESSES   code that takes too much, and the beginnings of the reasons why it fails
"""

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
