"""A solution on an input of a verifier's choice, in the sandbox: the tool `run`.

RUN            the tool
run_solution   the value that a function returns, or the text that a program writes
check_sandbox  whether untrusted code is run on this machine

Not covered: the solution is from an unknown hand and runs in the same process as its own call, so
it may know that it is watched. The tool tells what it does, not what it would do.
"""

import ast
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from nip_core.concurrency import in_thread
from nip_core.errors import StageError
from nip_core.tools import Tool

if TYPE_CHECKING:
    # Whoever plays without the tool needs no sandbox.
    from nip_sandbox.sandbox import Limits

RUN = Tool(
    name="run",
    argument="an input of the solution, as a call of its function or as the text that it reads",
    result="what the solution makes of this input",
    example="solve([3, 1], 2)",
    has_lines=True,
)
_CALL = """

def _show():
    try:
        value = {call}
    except BaseException as error:
        text = f"{{type(error).__name__}}: {{error}}"
    else:
        text = repr(value)
    print(text)

_show()
"""


async def run_solution(
    solution: str,
    argument: str,
    limits: "Limits | None" = None,
    *,
    allow_without_namespaces: bool = False,
) -> str:
    """Run the solution on an input and return its result, or its end, as a text.

    Without `limits` it may take five seconds and 256 MB.

    Raises ValueError for an argument that is no input, and StageError where nothing can run.
    """
    from nip_sandbox.sandbox import Limits, SandboxError, run_python

    code, stdin = _make_program(solution, argument)
    if limits is None:
        limits = Limits(wall_s=5.0, cpu_s=5.0, memory_mb=256, processes=1, output_bytes=100_000)
    run = partial(
        run_python,
        code,
        stdin=stdin,
        limits=limits,
        allow_without_namespaces=allow_without_namespaces,
    )
    try:
        result = await in_thread(run)
    except SandboxError as error:
        raise StageError(f"the tool run can't run a solution: {error}") from error
    if result.status == "ok":
        return result.stdout.strip() or "(no output)"
    last_line = (result.stderr.strip().splitlines() or [""])[-1]
    ends = {"timeout": f"it did not end within {limits.wall_s:g} s", "memory": "out of memory"}
    return ends.get(result.status, last_line or f"it ended with {result.status}")


def check_sandbox(*, allow_without_namespaces: bool = False) -> None:
    """Raise ValueError where untrusted code is not run on this machine."""
    from nip_sandbox.sandbox import examine

    _, reason = examine()
    if reason and not allow_without_namespaces:
        raise ValueError(
            f"{reason}, so the tool run can run no solution here; allow user namespaces, or leave "
            "the block tool out"
        )


def _make_program(solution: str, argument: str) -> tuple[str, str]:
    """Make the source of a run, and its standard input."""
    if not argument:
        raise ValueError("no input; write it behind the label")
    try:
        tree = ast.parse(solution)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the solution is no Python: {type(error).__name__}") from None
    functions = [*_list_functions(tree)]
    if _reads(tree):
        return solution, argument
    if not functions:
        raise ValueError("the solution has no function to call, and reads no input")
    return solution + _CALL.format(call=_read_call(argument, functions)), ""


def _list_functions(tree: ast.Module) -> Iterator[str]:
    """List the names of a module that can be called with values."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            yield from (name.id for name in node.targets if isinstance(name, ast.Name))


def _reads(tree: ast.Module) -> bool:
    """Tell whether the program reads its input itself."""
    nodes = [*ast.walk(tree)]
    defined = {node.arg for node in nodes if isinstance(node, ast.arg)}
    defined |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    if "stdin" in (names | attributes) - defined:
        return True
    calls = (n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))
    written = [ast.unparse(call) for call in calls]
    reads = any(call.startswith(("open(0", "open('/dev/stdin'")) for call in written)
    return reads or ("input" not in defined and any(call.startswith("input(") for call in written))


def _read_call(argument: str, functions: list[str]) -> str:
    """Read a call with values alone; without a name it is one of the last function."""
    words = f"write a call of {functions[-1]} with values, such as {functions[-1]}(1, [2], 'a')"
    try:
        node = ast.parse(argument, mode="eval").body
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            node = ast.parse(f"{functions[-1]}({argument})", mode="eval").body
            assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        name = node.func.id
        values = [ast.literal_eval(value) for value in node.args]
        if any(keyword.arg is None for keyword in node.keywords):
            raise ValueError("**")
        named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ValueError(f"{argument[:80]!r} is no input; {words}") from None
    if name not in functions:
        raise ValueError(f"the solution has no function {name[:40]!r}; {words}")
    arguments = [*map(repr, values), *(f"{key}={value!r}" for key, value in named.items())]
    return f"{name}({', '.join(arguments)})"
