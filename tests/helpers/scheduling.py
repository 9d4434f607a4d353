"""Which process of a test run takes which file next.

A Prefect server, the processes that others are forked from, and torch cost seconds for each process
of the run that needs them. So what needs the same is played by as few processes as there is time for.
"""

from pytest import Config
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

WITH_PREFECT = ("tests/flows/", "tests/durability/")
WITH_TORCH = (
    "tests/flows/test_tiny.py",
    "tests/flows/test_doctor.py",
    "tests/stages/test_checks.py",
    "tests/rollouts/test_recorded_tokens.py",
    "packages/nip-lm-server/tests/",
)
TOGETHER = ("tests/durability/", "tests/house/")
"""Folders that are played by one process: they share what they fork from, or have parsed."""


def needs_of(scope: str) -> str:
    """What a file or a folder of tests needs: "torch", "prefect" or ""."""
    if scope.startswith(WITH_TORCH):
        return "torch"
    return "prefect" if scope.startswith(WITH_PREFECT) else ""


def choose_scope(scopes: list[str], place: int, places: int) -> str:
    """The next of the files and folders `scopes` for the process number `place` of `places`.

    The last process has torch, the others have the Prefect server. Each takes what needs that first,
    then what needs nothing; what is for another one only where nothing else is left.
    """
    own = "torch" if place == places - 1 else "prefect"
    order = {own: 0, "": 1}
    return min(scopes, key=lambda scope: order.get(needs_of(scope), 2))


class SharedNeeds(LoadFileScheduling):
    """As ``--dist loadfile``, but by `choose_scope`."""

    def _split_scope(self, nodeid: str) -> str:
        folder = next((folder for folder in TOGETHER if nodeid.startswith(folder)), None)
        return folder or super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = choose_scope([*self.workqueue], self.nodes.index(node), len(self.nodes))
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def make_scheduler(config: Config, log: object) -> SharedNeeds | None:
    """A scheduler for ``--dist loadfile``; another way of distributing is left alone."""
    is_ours = config.getoption("dist") == "loadfile"
    return SharedNeeds(config, log) if is_ours else None  # type: ignore[arg-type]
