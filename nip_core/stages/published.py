"""What a run says of itself where others can read it, and whether its store still has that.

publish       bring the report up to date
state_of      the run's state as a document: its manifests, models and where they are
check_store   refuse a store that lacks what was published: going on would play and pay it again
"""

from collections.abc import Mapping
from typing import Any

from nip_core.errors import CorruptionError
from nip_core.run_store.manifest import MANIFEST, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError, walk
from nip_core.stages.evaluation import report_location, summary, write_report
from nip_core.stages.identity import code_version
from nip_core.stages.session import Session

_SHOWN = 5


def publish(
    session: Session, after: str, iterations_done: float, report: bool, samples: bool
) -> str | None:
    """Write the report of everything that is committed so far, where `report`; its place.

    It takes longer than the rest, which is for whoever shows more: `after` is the stage that was
    done last, `iterations_done` counts the last test as one, and with `samples` episodes were
    played since the last time.
    """
    session.lease.check()
    if report:
        is_finished = iterations_done > session.parameters.rl.num_iterations
        write_report(session.run, "finished" if is_finished else "running")
    return report_location(session.run)


def state_of(run: RunStore, after: str) -> dict[str, Any]:
    """JSON-encodable. `after` is the stage that was done last."""
    manifests = _manifests(run)
    return {
        "run": run.name,
        "store": run.store.url,
        "created_at": run.open().created_at,
        "stage": after,
        "finished_iterations": run.finished_iterations(),
        "rewinds": _rewinds(run),
        "manifests": manifests,
        "models": summary(run)["iterations"][-1]["models"] if manifests else {},
        "swaps": _swaps(run),
        "report": report_location(run),
        "code_version": code_version(),
    }


def check_store(run: RunStore, state: Mapping[str, Any]) -> None:
    """Raise CorruptionError if the run's store lacks what `state` says it had.

    A store that is ahead of what was published is right. One that was rewound since then is not
    compared, nor is another run of the same name (a state without a time is that of an earlier
    version, and may be one).
    """
    artifact = f"nip-{run.name}-state"
    try:
        if state.get("created_at") != run.open().created_at:
            return
    except MissingFileError:
        return  # begun anew
    if _rewinds(run) > state.get("rewinds", 0):
        return
    lacking = _lacking("", state.get("manifests", {}), _manifests(run))
    lacking += _lacking("models after iteration ", state.get("swaps", {}), _swaps(run))
    if lacking:
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise CorruptionError(
            f"run {run.name!r}: {run.store.url} is behind the artifact {artifact} (after "
            f"{state.get('stage')}): {', '.join(lacking[:_SHOWN])}{more}; going on would play and "
            "train them again. Bring the files back; if they are gone for good, `prefect artifact "
            f"delete {artifact}` lets the run go on without them"
        )


def _lacking(kind: str, published: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    return [
        f"{kind}{name} {'is missing' if name not in stored else 'is another'}"
        for name, value in sorted(published.items())
        if stored.get(name) != value
    ]


def _rewinds(run: RunStore) -> int:
    return len(run.store.list(f"{run.root}/superseded"))


def _manifests(run: RunStore) -> dict[str, str]:
    """By path, their digests."""
    return {
        path.removeprefix(f"{run.root}/"): read_manifest(
            run.store, path.rpartition("/")[0], path.rpartition("/")[2]
        ).digest
        for path in walk(run.store, f"{run.root}/iterations")
        if path.endswith(f"/{MANIFEST}")
    }


def _swaps(run: RunStore) -> dict[str, dict[str, str]]:
    """By iteration, the model that each group serves from there on."""
    return {
        str(iteration): {
            group: str(model["model"])
            for group, model in run.read_json(run.models(iteration))["groups"].items()
        }
        for iteration in range(run.finished_iterations())
    }
