"""The graph of a flow run, as a Prefect server draws it from the inputs of its task runs."""

import asyncio
from dataclasses import dataclass
from typing import Any

from prefect import get_client

# Of a flow run that is tried again Prefect may call a task run of the earlier attempt crashed, one
# that ended while its flow run did.
ENDED = {"COMPLETED", "CRASHED"}


@dataclass(frozen=True)
class FlowGraph:
    """The task runs of a flow run, and the flow runs that it called, by their names."""

    first: str
    """It began before all others."""
    roots: list[str]
    """They come after nothing."""
    before: dict[str, set[str]]
    """By name, the names of those that it comes after; of two with one name those of both."""


async def draw(flow_run_id: str) -> dict[str, FlowGraph]:
    """The graphs of a flow run (as "") and of those that it called, however deep, by their names.

    Waits until the server has written all down: by then the newest task run, which publishes or, on
    a cluster, plays, is completed.
    """
    async with get_client() as client:
        graphs: dict[str, FlowGraph] = {}
        left = [("", flow_run_id)]
        while left:
            name, identifier = left.pop()
            # On a cluster a flow run plays the shards of a split, and is named after it.
            nodes = await _read(client, identifier, "play-" if "play-" in name else "publish-")
            graphs[name] = _graph(nodes)
            left += [(_name(node), node["id"]) for node in nodes if node["kind"] == "flow-run"]
    return graphs


async def _read(client: Any, identifier: str, newest: str) -> list[dict[str, Any]]:
    for _ in range(600):
        path = {"id": identifier}
        answer = await client.request("GET", "/flow_runs/{id}/graph-v2", path_params=path)
        nodes = [node for _, node in answer.json()["nodes"]]
        nodes.sort(key=lambda node: node["start_time"])
        is_over = all(node["state_type"] in ENDED for node in nodes)
        if nodes and is_over and nodes[-1]["label"].startswith(newest):
            return nodes
        await asyncio.sleep(0.1)
    raise AssertionError([(node["label"], node["state_type"]) for node in nodes])


def _graph(nodes: list[dict[str, Any]]) -> FlowGraph:
    names = {node["id"]: _name(node) for node in nodes}
    before: dict[str, set[str]] = {}
    for node in nodes:
        before.setdefault(_name(node), set()).update(names[p["id"]] for p in node["parents"])
    roots = [_name(node) for node in nodes if not node["parents"]]
    return FlowGraph(_name(nodes[0]), roots, before)


def _name(node: dict[str, Any]) -> str:
    return str(node["label"]).rpartition(" / ")[2]  # of a flow run its flow's name stands before
