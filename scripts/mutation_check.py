"""Plant small mistakes in the heart of the loop, one at a time, and count those that tests notice.

    python scripts/mutation_check.py [--commit HEAD] [--out docs/results/mutants.json]

The first call draws 30 mutants from the modules of `MODULES`; a later one, with the file that the
first has written, plants the same in another commit. A mutant is known by its function and the
text of its line, so that it is found again where files were moved. One whose line is there no more
is replaced by another of the same module, and stands in the file as such. Each is planted in a
copy of the commit, where the module's tests run until one fails. A mutant that survives is a
mistake that these tests let through, or one that changes nothing.
"""

import argparse
import ast
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SEED = 6198
DEADLINE_S = 900.0
"""Of the tests of one mutant; one that hangs is noticed."""
PACKAGES = ("nip_core", "nip_lm_server")


@dataclass(frozen=True)
class Module:
    """Where a module is, or was, what tests it by file name, and how many mutants it gets."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    mutants: int


MODULES = {
    "ledger": Module(
        ("nip_core/jobs/ledger.py", "packages/nip-by-hand/nip_by_hand/fine_tuning/ledger.py"),
        ("test_ledger.py", "test_submissions.py", "test_openai_backend.py"),
        5,
    ),
    "journal": Module(
        ("nip_core/rollouts/storage/journal.py", "nip_core/rollouts/storage/journal_segments.py"),
        ("test_journal.py",),
        4,
    ),
    "engine": Module(
        ("nip_core/rollouts/engine.py", "nip_core/rollouts/episode.py"),
        ("test_engine.py", "test_engine_agents.py", "test_trees.py", "test_scripted_protocols.py"),
        5,
    ),
    "lease": Module(("nip_core/run_store/lease.py",), ("test_lease.py", "test_run.py"), 4),
    "manifest": Module(
        ("nip_core/run_store/manifest.py",), ("test_manifest.py", "test_damage.py"), 4
    ),
    "protocols": Module(
        ("nip_core/protocols/*.py",),
        (
            *("test_protocols.py", "test_scales.py", "test_similarity.py"),
            *("test_zero_knowledge.py", "test_scripted_protocols.py"),
        ),
        4,
    ),
    "wire": Module(
        ("packages/nip-base/nip_base/wire.py", "lm_server/wire.py", "nip_core/lm_server/wire.py"),
        ("test_job_settings.py", "test_api.py", "test_files.py"),
        4,
    ),
}


@dataclass(frozen=True)
class Mutant:
    """One mistake. `nth` of those that its operator makes in such a line of such a function."""

    module: str
    function: str
    line: str
    operator: str
    nth: int
    change: str  # the text before and after, for people


@dataclass(frozen=True)
class Place:
    """Where a mutant is planted: bytes of a file, and what comes there."""

    file: Path
    begin: int
    end: int
    text: str


# Which mutants there are

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt},
    **{ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}


def changes_of(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """(operator, the node that is replaced, its new text) of the mistakes that a node allows."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right):
            yield "comparison", node, ast.unparse(ast.Compare(left, [_COMPARED[type(op)]()], right))
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and, or", node, ast.unparse(ast.BoolOp(other, values))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "negated", test, f"not ({ast.unparse(test)})"
        case ast.Constant(value=bool(value)):
            yield "constant", node, str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", node, repr(value + 1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            minus = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
            yield "plus, minus", node, ast.unparse(ast.BinOp(left, minus, right))
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield "returns None", value, "None"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise():
            yield "deleted", node, "pass"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def mutants_in(module: str, file: Path) -> Iterator[tuple[Mutant, Place]]:
    """All mutants of a file, in order."""
    source = file.read_bytes()
    lines = source.splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))
    seen: dict[tuple[str, str, str], int] = {}
    for function, node in _nodes(ast.parse(source), ""):
        for operator, replaced, text in changes_of(node):
            first = begins[replaced.lineno - 1] + replaced.col_offset
            last = begins[replaced.end_lineno - 1] + replaced.end_col_offset
            line = lines[replaced.lineno - 1].decode().strip()
            key = (function, line, operator)
            seen[key] = nth = seen.get(key, -1) + 1
            before = " ".join(source[first:last].decode().split())
            mutant = Mutant(module, function, line, operator, nth, f"{before} -> {text}")
            yield mutant, Place(file, first, last, text)


def _nodes(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node that may be changed, with the name of the function or class around it."""
    match node:
        case ast.JoinedStr():  # Python 3.11 does not know where its parts stand
            return
        case ast.Call(func=ast.Attribute(value=ast.Name(id="_log"))):
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.arg():
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            function = f"{function}.{node.name}".lstrip(".")
    yield function, node
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child, function)


def all_of(module: str, root: Path) -> list[tuple[Mutant, Place]]:
    """All mutants of a module."""
    files = [file for pattern in MODULES[module].files for file in sorted(root.glob(pattern))]
    return [found for file in files for found in mutants_in(module, file)]


def drawn(root: Path) -> list[Mutant]:
    """As many of each module as it says, by a fixed seed."""
    mutants = []
    for name, module in MODULES.items():
        choices = [mutant for mutant, _ in all_of(name, root)]
        mutants += random.Random(f"{SEED} {name}").sample(choices, module.mutants)
    return mutants


def find(mutant: Mutant, root: Path) -> Place | None:
    """Where the mutant goes: the same line of the same function, in its module or wherever that is
    now, else one of that function which differs by names and texts alone, else the line by
    itself."""
    near = all_of(mutant.module, root)
    far = [
        found
        for package in PACKAGES
        for file in sorted((root / package).rglob("*.py"))
        for found in mutants_in(mutant.module, file)
    ]
    steps = (
        ([*near, *far], lambda m: (_short(m.function), m.line, m.operator, m.nth)),
        (near, lambda m: (_short(m.function), _shape(m.line), m.operator, m.nth)),
        (near, lambda m: (_with_fields(m.line), m.operator, m.nth)),
    )
    for candidates, looks in steps:
        for other, place in candidates:
            if looks(other) == looks(mutant):
                return place
    return None


def _short(function: str) -> str:
    """The name without those of the class and function around it."""
    return function.rpartition(".")[2]


def _shape(line: str) -> str:
    """The line with the same name for everything and no texts."""
    line = re.sub(r"""f?(["']).*?\1""", '""', _with_fields(line))
    return re.sub(r"[A-Za-z_]\w*", "x", line)


def _with_fields(line: str) -> str:
    """The line with fields in the place of keys: what was a dict may have become a type."""
    return re.sub(r"""\[(["'])(\w+)\1\]""", r".\2", line)


# Running them


def copy_of(commit: str, folder: Path) -> Path:
    """The files of a commit in a folder of their own."""
    git = ["git", "-C", str(ROOT), "archive", commit]
    with tarfile.open(
        fileobj=io.BytesIO(subprocess.run(git, capture_output=True, check=True).stdout)
    ) as archive:
        archive.extractall(folder, filter="data")
    return folder


def tested(module: str, root: Path) -> str | None:
    """What fails first of the module's tests, None if nothing does."""
    files = []
    for name in MODULES[module].tests:
        paths = sorted(map(str, (root / "tests").rglob(name)))
        if not paths:
            raise SystemExit(
                f"{module}: there is no {name} any more, name in MODULES what tests it"
            )
        files += paths
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"nothing ended in {DEADLINE_S:g} s"
    if process.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    if failed is None:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{said[-3000:]}")
    return failed[1]


def planted(place: Place, module: str, root: Path) -> str | None:
    """What of the module's tests notices the mistake."""
    source = place.file.read_bytes()
    place.file.write_bytes(source[: place.begin] + place.text.encode() + source[place.end :])
    try:
        return tested(module, root)
    finally:
        place.file.write_bytes(source)


def replacement(mutant: Mutant, root: Path, taken: Sequence[Mutant], rng: random.Random) -> Mutant:
    """Another mutant of the same module."""
    return rng.choice([m for m, _ in all_of(mutant.module, root) if m not in taken])


def check(mutants: list[Mutant], root: Path) -> Iterator[dict[str, Any]]:
    """What came of each mutant, as it stands in the file."""
    rng = random.Random(SEED)
    for module in dict.fromkeys(mutant.module for mutant in mutants):
        if (failed := tested(module, root)) is not None:
            raise SystemExit(f"{module}: {failed} fails without a mistake")
    for mutant in mutants:
        place, instead = find(mutant, root), None
        if place is None:
            instead = replacement(mutant, root, mutants, rng)
            place = find(instead, root)
        assert place is not None
        began = time.monotonic()
        noticed = planted(place, mutant.module, root)
        print(
            f"{'survived' if noticed is None else 'caught':9}{time.monotonic() - began:4.0f} s  "
            f"{mutant.module:10}{'instead, ' if instead else ''}{(instead or mutant).change}",
            flush=True,
        )
        yield {"caught_by": noticed} | ({"instead": asdict(instead)} if instead else {})


def main() -> None:
    """Draw or read the mutants, plant each, write what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "mutants.json")
    options = parser.parse_args()
    git = ["git", "-C", str(ROOT), "rev-parse", "--short=12", options.commit]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        root = copy_of(commit, Path(folder))
        if options.out.exists():
            result = json.loads(options.out.read_text())
        else:
            result = {"seed": SEED, "mutants": [asdict(m) for m in drawn(root)], "commits": {}}
        mutants = [Mutant(**mutant) for mutant in result["mutants"]]
        outcomes = list(check(mutants, root))
    caught = sum(outcome["caught_by"] is not None for outcome in outcomes)
    result["commits"][commit] = {
        "caught": caught,
        "replaced": sum("instead" in outcome for outcome in outcomes),
        "outcomes": outcomes,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{commit}: {caught} of {len(mutants)} caught")


if __name__ == "__main__":
    main()
