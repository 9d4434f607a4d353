"""Names and tags of flow runs, by which a person finds those of a run in Prefect's UI.

name_flow_run   kind, run and number, and from the second attempt on which attempt it is
tag_flow_run    the tags of all flow runs of a run
with_tags       gives them to the flow runs that are called in a block, without_tags to none

A name is made of words with dashes, such as iteration-quickstart-0 or train-quickstart-attempt-2.
Task runs have no tags: Prefect takes a slot for each, see `limit_by_tag`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from prefect import tags
from prefect.context import TagsContext
from prefect.runtime import flow_run

NIP = "nip"
"""The tag of everything that nip has in Prefect, its deployments too."""


def name_flow_run(kind: str, run: str, *place: object) -> str:
    """Name a flow run of a run; the current flow run, itself or its parent, has the attempt."""
    attempt = flow_run.get_run_count() or 1
    name = "-".join([kind, run, *map(str, place)])
    return name if attempt == 1 else f"{name}-attempt-{attempt}"


def tag_run(run: str) -> str:
    """Give the tag of all flow runs of a run."""
    return f"run:{run}"


@contextmanager
def with_tags(*more: str) -> Iterator[None]:
    """Give the flow runs called here the tags of the current flow run, nip's own, and `more`."""
    with tags(NIP, *flow_run.get_tags(), *more):
        yield


def without_tags() -> AbstractContextManager[object]:
    """Give no tags to the task runs called here."""
    return TagsContext(current_tags=set())
