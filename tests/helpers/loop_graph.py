"""The loop's graph without Prefect: a hook that notes what each step comes after."""

from collections.abc import Callable, Iterable
from typing import Any

from nip_core import loop
from nip_core.hook import directly, separate
from nip_core.stages.playing import play_shards


class Noted:
    """A hook of the loop; `graphs` has those of the run (as "") and of each iteration.

    A graph is, by the names of steps, the names of those that they come after, in the order in
    which they began. A result counts as what the step returned if it is the same object.
    """

    def __init__(self) -> None:
        self.graphs: dict[str, list[tuple[str, set[str]]]] = {}

    async def train(self, parameters: Any) -> dict[str, Any]:
        """Train with this hook."""
        return await loop.train(parameters, call=self._hook(""))

    @property
    def roots(self) -> dict[str, list[str]]:
        """By graph, the steps that come after none, but for the first one."""
        return {
            name: [step for step, before in graph[1:] if not before]
            for name, graph in self.graphs.items()
        }

    def _hook(self, name: str) -> Callable[..., Any]:
        graph = self.graphs.setdefault(name, [])
        results: list[tuple[Any, str]] = []  # kept, so that addresses stay theirs

        def find(needs: Iterable[Any]) -> set[str]:
            return {step for result, step in results for need in needs if result is need}

        async def run(before: set[str], step: str, function: Any, *values: Any) -> Any:
            graph.append((step, before))
            result = await directly(function, *values)
            results.append((result, step))
            return result

        async def call(function: Callable[..., Any], session: Any, *arguments: Any) -> Any:
            values, needs = separate(arguments)
            if function is play_shards:
                *place, shards, _ = values

                async def play(one: Any, session: Any, *values: Any) -> Any:
                    step = "-".join(["play", *map(str, values)])
                    return await run(find([shards]), step, one, session, *values)

                return await play_shards(session, *place, shards, play)
            if function in (loop.iterate, loop.retest):
                step = f"{function.__name__}-{values[0]}"
                values[-1] = self._hook(step)
            else:
                step = "-".join([function.__name__, *map(str, values[:2])])
            return await run(find(needs), step, function, session, *values)

        return call
