"""Iterations of a run that are over, written once more, together, to be read at once.

Such a file is derived: without it, or where it is damaged, of another version, or of before the run
was done again, the documents themselves are read.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from nip_core.attack_figures.metrics_document import AttackMetrics
from nip_core.errors import StoreError
from nip_core.evaluation.split_metrics import BREAKDOWNS, PairedDifference, SplitMetrics
from nip_core.records.jobs_shown import DatasetShown, JobShown
from nip_core.records.models import Decision, Swap
from nip_core.records.spending import Spent
from nip_core.rollouts.plan import CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.run_store.documents import encode
from nip_core.run_store.lease import Lease
from nip_core.run_store.run import RunStore, read_document

BLOCK = 25
"""Iterations in one file of ``shown/``: a long run is opened by few files, and a run of any length
reads less than so many iterations one by one. Much fewer would make many files again, and much more
leave as many to be read one by one."""
BLOCKS = "shown"  # the directory of a run's blocks: they are for showing alone
_FORMAT_VERSION = 2  # higher with each change of a part: blocks of before are written anew


_READ_LATER = ConfigDict(defer_build=True)  # a run of fewer iterations has no blocks


class BlockMetrics(BaseModel):
    """The figures of an iteration in a block, without breakdowns."""

    model_config = _READ_LATER

    test: SplitMetrics | None = None
    train: SplitMetrics | None = None
    validation: SplitMetrics | None = None
    candidate: SplitMetrics | None = None
    attack: AttackMetrics | None = None

    @property
    def by_split(self) -> dict[str, SplitMetrics | None]:
        """Give the figures of all splits but the attack's."""
        return {
            TEST: self.test,
            TRAIN: self.train,
            VALIDATION: self.validation,
            CANDIDATE: self.candidate,
        }


class BlockPart(BaseModel):
    """One iteration in a block."""

    model_config = _READ_LATER

    swap: Swap | None
    served: dict[str, str]
    promotion: Decision | None
    jobs: dict[str, JobShown]
    datasets: dict[str, DatasetShown]
    spent: dict[str, Spent]
    stage_s: dict[str, float]
    manifests: dict[str, str]
    change: PairedDifference | None
    metrics: BlockMetrics


PARTS = tuple(name for name in BlockPart.model_fields if name != "metrics")
"""The fields of a `BlockPart` beside its figures."""


class Block(BaseModel):
    """``shown/0000.json``: iterations that are over, once more, to be read at once."""

    model_config = _READ_LATER

    format_version: int
    rewinds: int
    iterations: list[BlockPart]


def read_block(run: RunStore, number: int, rewinds: int) -> Block | None:
    """Read a block of a run that was done again `rewinds` times; None if there is none to go by."""
    try:
        block = read_document(run, _name_block(run, number), Block)
    except StoreError:  # a run must not become unreadable by a copy of its files
        block = None
    # One that is damaged, of another version, or of before the run was done again counts for
    # nothing: the documents themselves are read then, which say the same.
    if block is None or (block.format_version, block.rewinds) != (_FORMAT_VERSION, rewinds):
        return None
    return block


def write_block(
    run: RunStore, number: int, rewinds: int, parts: Sequence[Mapping[str, Any]], lease: Lease
) -> None:
    """Write a block of a run that was done again `rewinds` times."""
    block = {"format_version": _FORMAT_VERSION, "rewinds": rewinds, "iterations": [*parts]}
    # Not once for all: one of before the run was done again is replaced.
    run.store.put(_name_block(run, number), encode(block), fence=lease.fence)


def _name_block(run: RunStore, number: int) -> str:
    return f"{run.root}/{BLOCKS}/{number:04d}.json"


def drop_breakdowns(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Give figures without their breakdowns, at any depth."""
    return {
        name: drop_breakdowns(value) if isinstance(value, Mapping) else value
        for name, value in metrics.items()
        if name not in BREAKDOWNS
    }
