"""Publishing the state of a run where others can read it, and comparing its store with that.

publish         bring the report up to date, and tell the trackers
Milestone       the newest finished part of an iteration; describe_milestone says it in words
describe_state  the run's state as a document: its manifests, models and where they are
list_spending   tokens and money so far by stage
check_store     refuse a store that lacks published results: going on would pay for them again
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from nip_core.errors import CorruptionError
from nip_core.hashing import digest
from nip_core.parameters import HyperParameters
from nip_core.records.blocks import BLOCK
from nip_core.records.iterations import IterationRecord, Records
from nip_core.records.spending import Spent, add_up
from nip_core.records.spent_in_all import add_up_set_aside
from nip_core.records.status import find_last
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError
from nip_core.session.contents import read_code_version
from nip_core.session.session import Session
from nip_core.showing.reports import write_report
from nip_core.showing.summary import find_report

_SHOWN = 5
_NEWEST = 20  # iterations whose stages a table of costs names one by one
Milestone = Literal["play", "park", "train", "test"]
"""The newest finished part of an iteration, as in names of task runs."""
_DONE: Mapping[Milestone, str] = {
    "play": "playing",
    "park": "parking",
    "train": "training",
    "test": "testing",
}


def describe_milestone(milestone: Milestone, iteration: int) -> str:
    """Describe the newest finished part in words, as "playing iteration 0"."""
    return f"{_DONE[milestone]} iteration {iteration}"


def publish(
    session: Session, iteration: int, milestone: Milestone, report: bool, samples: bool
) -> None:
    """Tell the trackers of new results, and write the report where `report`.

    Trackers are not waited for; the report takes its time. `samples` is for callers that show more,
    as Prefect's artifacts do: with it, episodes were played since the last time.
    """
    # A runner that was replaced must not put an older report in the place of a newer one.
    session.lease.check()
    if session.feeders is not None:
        session.feeders.look()
    if report:
        last = find_last(session.records, session.parameters)
        is_finished = milestone == "test" and iteration == last
        status = "finished" if is_finished else "running"
        with session.progress.doing("writing the report"):
            write_report(session.run, status, session.records)
            session.records.write_blocks(session.lease)


def describe_state(run: RunStore, stage: str, records: Records | None = None) -> dict[str, Any]:
    """Describe the run's state as JSON. `stage` is the newest finished stage.

    It names the manifests and swaps of the newest iterations, and of each `BLOCK` of them before,
    under the first of these, a digest over theirs.
    """
    records = (records or Records(run)).look_again()
    all_records = records.all()
    blocks = _blocks(records, records.finished() // BLOCK)
    newest = [record for record in all_records if record.iteration >= BLOCK * len(blocks)]
    manifests = _manifests(newest)
    return {
        "run": run.name,
        "store": run.store.url,
        "created_at": records.shown.record.created_at,
        "stage": stage,
        "finished_iterations": records.finished(),
        "rewinds": records.rewinds,
        "blocks": blocks,
        "manifests": manifests,
        "models": all_records[-1].served if blocks or manifests else {},
        "swaps": _swaps(newest),
        "report": find_report(run),
        "code_version": read_code_version(),
    }


def check_store(run: RunStore, state: Mapping[str, Any]) -> None:
    """Raise CorruptionError if the run's store lacks files that `state` names.

    A store that is ahead of the published state is right. One that was rewound since then is not
    compared, nor is another run of the same name (a state without a time comes from an earlier
    version, and may be one).
    """
    # 1. A state of another run, or of before a rewind, says nothing of this store.
    artifact = f"nip-{run.name}-state"
    records = Records(run)
    try:
        if state.get("created_at") != run.open().created_at:
            return
    except MissingFileError:
        return  # begun anew
    if records.rewinds > state.get("rewinds", 0):
        return
    # 2. Published results must be there; there may be more. Fewer iterations may be asked for now
    #    than were played: those beyond the last are not looked at.
    last = records.shown.last
    blocks = {
        i: digest_of
        for i, digest_of in state.get("blocks", {}).items()
        if int(i) + BLOCK <= last + 1
    }
    published = {
        p: digest_of for p, digest_of in state.get("manifests", {}).items() if _iteration(p) <= last
    }
    swaps = {i: digest_of for i, digest_of in state.get("swaps", {}).items() if int(i) <= last}
    since = BLOCK * len(blocks)
    newest = [record for record in records.all() if record.iteration >= since]
    finished = run.finished_iterations()  # of these files none is taken for granted
    lacking = _lacking("iterations from ", blocks, _blocks(records, finished // BLOCK))
    lacking += _lacking("", published, _manifests(newest))
    lacking += _lacking("models after iteration ", swaps, _swaps(newest))
    if lacking:
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise CorruptionError(
            f"run {run.name!r}: {run.store.url} is behind the artifact {artifact} (after "
            f"{state.get('stage')}): {', '.join(lacking[:_SHOWN])}{more}; going on would play and "
            "train them again. Bring the files back; if they are gone for good, `prefect artifact "
            f"delete {artifact}` lets the run go on without them"
        )


def _iteration(path: str) -> int:
    """Return the iteration of a path below the run; -1 for a path of none."""
    match = re.search(r"(?:^|/)iterations/(\d+)/", path)
    return int(match[1]) if match else -1


def _lacking(kind: str, published: Mapping[str, Any], digests: Mapping[str, Any]) -> list[str]:
    return [
        f"{kind}{name} {'is missing' if name not in digests else 'is another'}"
        for name, value in sorted(published.items())
        if digests.get(name) != value
    ]


def _blocks(records: Records, count: int) -> dict[str, str]:
    """By first iteration, a digest over the manifests and swaps of the first so many blocks."""
    memory: dict[str, str] = records.memory.setdefault("blocks", {})
    numbers = {*records.iterations()}
    for first in range(0, count * BLOCK, BLOCK):
        iterations = range(first, first + BLOCK)
        # A block that is over never changes, so its digest is worked out once.
        if str(first) not in memory and numbers.issuperset(iterations):
            block = [records.of(i) for i in iterations]
            # Of one that is not over, because it is to be tested now, manifests may come to be.
            if all(record.is_over for record in block):
                memory[str(first)] = digest([_manifests(block), _swaps(block)])
    return dict(memory)


def _manifests(records: Iterable[IterationRecord]) -> dict[str, str]:
    """By path, their digests."""
    return {
        path: manifest_digest
        for record in records
        for path, manifest_digest in record.manifests.items()
    }


def _swaps(records: Iterable[IterationRecord]) -> dict[str, dict[str, str]]:
    """Name by iteration and group the model from there on."""
    return {
        str(record.iteration): record.swap.names for record in records if record.swap is not None
    }


_COUNTED = ("calls", "prompt tokens", "generated tokens", "trained tokens")


def list_spending(
    run: RunStore, parameters: HyperParameters, records: Records | None = None
) -> list[dict[str, Any]]:
    """Give one row per stage that has begun, and a last one with the sums.

    Of a long run the stages of all but the newest iterations are one row together. The stages set
    aside to be done again are another. Tokens are counts, ``USD`` a text: "0.00" on hardware of
    one's own, "unknown" where `parameters.prices` lacks the price of a model that a provider sends
    a bill for. `nip_core.records.spending` says how spending is counted.
    """
    records = (records or Records(run)).look_again()
    all_records = records.all()
    earlier = add_up(record.all_spent for record in all_records[:-_NEWEST])
    rows = [
        _row(record.iteration, stage, each, parameters)
        for record in all_records[-_NEWEST:]
        for stage, each in record.spent.items()
    ]
    if len(all_records) > _NEWEST:
        rows.insert(0, _row("earlier", "sum", earlier, parameters))
    aside = add_up_set_aside(records)
    if aside != Spent():
        rows.append(_row("set aside", "sum", aside, parameters))
    everything = add_up([aside, *(record.all_spent for record in all_records)])
    return [*rows, _row("all", "sum", everything, parameters)]


def _row(
    place: int | str, stage: str, spending: Spent, parameters: HyperParameters
) -> dict[str, Any]:
    counts = (
        spending.calls,
        spending.prompt_tokens,
        spending.generated_tokens,
        spending.trained_tokens,
    )
    usd = spending.usd(parameters)
    return {
        "iteration": place,
        "stage": stage,
        **dict(zip(_COUNTED, counts, strict=True)),
        "USD": "unknown" if usd is None else f"{usd:.2f}",
    }
