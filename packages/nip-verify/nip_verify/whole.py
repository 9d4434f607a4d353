"""A whole run verified: its files, and the models and jobs at their servers."""

from collections.abc import Mapping
from typing import Any

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import list_files
from nip_core.upkeep.file_checks import Check
from nip_core.upkeep.verify import verify_run

_SINCE_BEGUN = ("run.json", "left_out.json", "iterations/", "journals/", "openings/", "superseded/")
"""A run has no such file before it is created; before that come its lease and its server."""


def has_begun(run: RunStore) -> bool:
    """Tell whether the run was ever created, even if its run.json is lost by now."""
    inside = (path.removeprefix(f"{run.root}/") for path in list_files(run.store, run.root))
    return any(path.startswith(_SINCE_BEGUN) for path in inside)


async def verify_all(run: RunStore) -> Check:
    """Do `verify_run`, and check the models and jobs at their servers."""
    from nip_verify.servers import check_servers  # with the clients of servers

    check = verify_run(run)
    await check_servers(check)
    return check


def summarise_check(check: Check) -> Mapping[str, Any]:
    """Return the findings as a JSON document."""
    return {
        "run": check.run.name,
        "files": len(check.present),
        "bytes_read": check.bytes,
        "problems": [vars(problem) for problem in check.problems.values()],
        "unknown": check.unknown,
        "not_checked": check.notes,
    }
