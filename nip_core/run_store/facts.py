"""The facts in manifests of each kind of commit, beside files, inputs and rows: their `extra`.

Each is read by its `from_manifest`, and written as `to_extra` gives it.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from nip_core.run_store.documents import validate_document
from nip_core.run_store.manifest import Manifest, read_manifest
from nip_core.run_store.store import Store


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> Self:
        """Read the facts of a manifest. Raises CorruptionError if a needed one is missing."""
        return validate_document(manifest.extra, cls, f"{manifest.directory}/{manifest.name}")

    def to_extra(self) -> dict[str, Any]:
        """Give the known facts as the `extra` of a manifest."""
        return self.model_dump(exclude_unset=True)


class SplitFacts(_Facts):
    """The manifest of a split of rollouts says this."""

    canonical_digest: str
    """On which two runs of the same game agree."""
    cached_tokens: dict[str, int] | None = None
    """The sums of those of its shards."""


class LabelCounts(_Facts):
    """How many solutions were labelled in play, and the time it took."""

    solutions: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    kinds: dict[str, int] = {}
    """By mutation, or "right", or "wrong" where the mutation is not known."""


class ShardFacts(_Facts):
    """The manifest of a shard says this."""

    failed: list[str] = []
    """Keys of the episodes that could not be played."""
    labels: LabelCounts | None = None
    """How many solutions were labelled in play, by kind, and the time that took."""
    shared_prompts: dict[str, int] | None = None
    """By agent, the tokens of prompts that stand in several rows and were read once."""
    cached_tokens: dict[str, int] | None = None
    """By agent, the prompt tokens that their provider had read before, where there are any."""
    canonical_digest: str
    """As the digest of a split, of this shard alone."""


class DatasetFacts(_Facts):
    """The manifest of a dataset says this."""

    digest: str
    """Of all examples, which the key of the job is made of."""
    examples: int
    episodes: int
    """All that were played, those without an example included."""
    agents: list[str] = []
    method: Literal["supervised", "dpo", "trajectories"] = "supervised"
    counts: dict[str, int] = {}
    """The trainer's counts in choosing."""
    validation_examples: int = 0
    tokens: int | None = None
    """Of one epoch, without examples held out; None: the model's tokenizer is not known."""
    training_usd: float | None = None
    """For all epochs; None: there is no price, or the tokens are not known."""
    curriculum: dict[str, Any] | None = None


def read_split_digest(store: Store, directory: str) -> str:
    """Read the canonical digest of a committed split."""
    return SplitFacts.from_manifest(read_manifest(store, directory)).canonical_digest
