"""The hook through which the loop takes each of its steps.

Call      the hook, ``call(function, session, *arguments)``
After     among the arguments: the results of the steps that this one needs
separate  the arguments of the function, and the results that the hook waits for
directly  the hook that runs the function in this process
within    a hook for the steps of one iteration
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Call = Callable[..., Awaitable[Any]]


class After:
    """The results of the steps that a step needs, for the hook alone; None stands for no step."""

    def __init__(self, *results: object) -> None:
        """Keeps the objects themselves: Prefect knows a step by the object that it returned."""
        self.results = results


FIRST = After()
"""Of a step that needs none."""


def separate(arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Separate the arguments of a step's function from the results of the steps before it."""
    values = [value for value in arguments if not isinstance(value, After)]
    needs = [
        need for argument in arguments if isinstance(argument, After) for need in argument.results
    ]
    return values, [need for need in needs if need is not None]


async def directly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function of a stage in this process, once."""
    values, _ = separate(arguments)
    result = function(*values)
    return await result if inspect.isawaitable(result) else result


def within(session: Any, iteration: int, call: Call) -> Call:
    """Return the hook for steps with functions that take this session and iteration first."""

    def step(function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
        return call(function, session, iteration, *arguments)

    return step
