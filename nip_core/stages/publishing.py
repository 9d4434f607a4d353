"""Publishing the state of a run where others can read it, and comparing its store with that.

publish       bring the report up to date
state_of      the run's state as a document: its manifests, models and where they are
spent         tokens and money so far by stage
check_store   refuse a store that lacks what was published: going on would play and pay it again
"""

from collections.abc import Mapping
from typing import Any

from nip_core.errors import CorruptionError
from nip_core.parameters import HyperParameters
from nip_core.parameters.prices import calls_usd, training_usd
from nip_core.rollouts.plan import ATTACK, CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.run_store.manifest import MANIFEST, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError, walk
from nip_core.stages.prepare import code_version
from nip_core.stages.session import Session
from nip_core.stages.showing import iterations_of, report_location, summary, write_report

_SHOWN = 5


def publish(
    session: Session, after: str, iterations_done: float, report: bool, samples: bool
) -> None:
    """Write the report of everything that is committed so far, where `report`.

    It takes longer than the rest, which is for whoever shows more: `after` is the stage that was
    done last, `iterations_done` counts the last test as one, and with `samples` episodes were
    played since the last time.
    """
    session.lease.check()
    if report:
        is_finished = iterations_done > session.parameters.rl.num_iterations
        write_report(session.run, "finished" if is_finished else "running")


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
    # 1. A state of another run, or of before a rewind, says nothing of this store.
    artifact = f"nip-{run.name}-state"
    try:
        if state.get("created_at") != run.open().created_at:
            return
    except MissingFileError:
        return  # begun anew
    if _rewinds(run) > state.get("rewinds", 0):
        return
    # 2. What was published must be there; there may be more.
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


# By split, in the order of an iteration.
_STAGES = {
    TEST: "test",
    ATTACK: "attack",
    TRAIN: "play",
    VALIDATION: "gate, old",
    CANDIDATE: "gate, new",
}
_COUNTED = ("calls", "prompt tokens", "generated tokens", "trained tokens")


def spent(run: RunStore, parameters: HyperParameters) -> list[dict[str, Any]]:
    """One row per stage that is committed, and a last one with the sums.

    Tokens are counts, ``USD`` a text: "0.00" on hardware of one's own, "unknown" where
    `parameters.prices` lacks the price of a model that somebody sends a bill for. Answers that
    were thrown away by a crash before they were recorded are not in it.
    """
    stages: list[tuple[int | str, str, list[int], float | None]] = []
    for iteration in iterations_of(run, parameters.rl.num_iterations):
        for split, stage in _STAGES.items():
            metrics = run.read_json_or_none(run.metrics(iteration, split))
            if metrics is not None and "generations" in metrics:  # else a summary of tests
                names = ("generations", "prompt_tokens", "completion_tokens")
                counts = [*(metrics.get(name) or 0 for name in names), 0]
                stages.append((iteration, stage, counts, _calls_usd(parameters, metrics)))
        for group in parameters.trainable_groups:
            job = run.read_json_or_none(run.job(iteration, group))
            if job is not None:
                tokens = job.get("trained_tokens") or 0
                usd = training_usd(parameters, group, tokens)
                stages.append((iteration, f"train {group}", [0, 0, 0, tokens], usd))
    sums = [sum(counts[k] for _, _, counts, _ in stages) for k in range(len(_COUNTED))]
    known = [usd for *_, usd in stages if usd is not None]
    stages.append(("all", "sum", sums, sum(known) if len(known) == len(stages) else None))
    return [
        {
            "iteration": place,
            "stage": stage,
            **dict(zip(_COUNTED, counts, strict=True)),
            "USD": "unknown" if usd is None else f"{usd:.2f}",
        }
        for place, stage, counts, usd in stages
    ]


def _calls_usd(parameters: HyperParameters, metrics: Mapping[str, Any]) -> float | None:
    tokens = {
        name: (used.get("prompt_tokens") or 0, used.get("completion_tokens") or 0)
        for name, used in (metrics.get("agents") or {}).items()
    }
    return calls_usd(parameters, tokens)
