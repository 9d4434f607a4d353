"""The document ``nip.json`` of a repository, which says what it holds and where that comes from.

AdapterFacts  of a repository with an adapter
TablesFacts   of a repository with a run's tables
Facts         either
Lineage       where it comes from, of both
FileEntry     a file of it, by its digest

The publisher of a repository, with any version of nip, may have left keys out or added
some. So a key that another version may lack has a default here, and others are kept as they came.
`nip_bridges.hub.repository` writes and reads the document.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Number = int | float
"""As it stands in the document: a 1 that became 1.0 would be another file."""


class HubDocument(BaseModel):
    """A document, or a part of one, of this or another version of nip."""

    model_config = ConfigDict(frozen=True, extra="allow")


class FileEntry(HubDocument):
    """A file of a repository."""

    sha256: str
    bytes: int


class Lineage(HubDocument):
    """The run that a repository is of, and of an adapter the job that trained it."""

    run: str | None = None
    iteration: int | None = None
    """That trained the adapter."""
    group: str | None = None
    agents: tuple[str, ...] = ()
    model: str | None = None
    content_digest: str | None = None
    from_run: str | None = None
    """The run or the repository that the model was taken over from; None: this run trained it."""
    begun_with: str | None = None
    """The run or the repository whose model the run has begun with."""
    job: str | None = None
    job_key: str | None = None
    dataset_digest: str | None = None
    examples: int | None = None
    parent: str | None = None
    parent_content_digest: str | None = None
    problems: Mapping[str, str] = Field(default_factory=dict)
    """By split, the digest of its problems."""
    seed: int | None = None
    training_seed: int | None = None
    code_version: str | None = None

    @property
    def source(self) -> tuple[str | None, str | None]:
        """Return the run and the group: one repository is for one of these."""
        return self.run, self.group


class BaseFacts(HubDocument):
    """The base model of an adapter."""

    name: str
    """That by which others find it."""
    bundled: bool = False
    """Whether it comes with nip, so that it lies in the repository."""
    weights_sha256: str | None = None


class TrainingFacts(HubDocument):
    """The training of an adapter, with figures of its method besides."""

    method: str | None = None
    settings: Mapping[str, JsonValue] | None = None
    steps: int | None = None
    tokens: int | None = None
    final_loss: Number | None = None
    unchanged: bool | None = None


class MeasureFacts(HubDocument):
    """A measure of a test, with its 95 % interval."""

    value: Number
    ci95: tuple[Number, Number] | None = None


class ResultFacts(HubDocument):
    """A run's test of the iteration that an adapter plays."""

    split: str
    iteration: int
    dataset: str
    scenario: str
    protocol: str
    episodes: int
    problems: int
    questions: int | None
    measures: Mapping[str, MeasureFacts]
    rollouts: str | None
    """The digest of the test's rollouts."""


class ProofFacts(HubDocument):
    """Whether a server has answered with the weights of an adapter."""

    matches: bool | None = None
    """None: there is no proof on record."""
    detail: Mapping[str, JsonValue] = Field(default_factory=dict)
    """By name, what was compared and what it came to."""


class AdapterFacts(HubDocument):
    """An adapter, its base model and its training."""

    kind: Literal["adapter"] = "adapter"
    lineage: Lineage
    license: str | None = None
    has_probe: bool = False
    base: BaseFacts | None = None
    """None: the document does not say it."""
    rank: int | None = None
    training: TrainingFacts = TrainingFacts()
    results: ResultFacts | None = None
    playing: Mapping[str, str] = Field(default_factory=dict)
    """By group, the model that played the test."""
    proof: ProofFacts = ProofFacts()
    settings: Mapping[str, JsonValue] = Field(default_factory=dict)
    """Of the run, those that are not the defaults, without places."""
    files: Mapping[str, FileEntry] = Field(default_factory=dict)


class TableSplit(HubDocument):
    """A split of a table."""

    rows: int
    iterations: tuple[int, ...]


class TableFacts(HubDocument):
    """A table of a dataset."""

    splits: Mapping[str, TableSplit]
    columns: tuple[tuple[str, str], ...]
    """Names and Arrow types."""


class TablesFacts(HubDocument):
    """The tables of a run."""

    kind: Literal["dataset"] = "dataset"
    lineage: Lineage
    license: str | None = None
    tables: Mapping[str, TableFacts] = Field(default_factory=dict)
    rollouts: Mapping[str, str] = Field(default_factory=dict)
    """By iteration and split, the canonical digest."""
    datasets: Mapping[str, str] = Field(default_factory=dict)
    """By iteration and group, the digest of the training examples."""
    settings: Mapping[str, JsonValue] = Field(default_factory=dict)
    """As those of an adapter."""
    files: Mapping[str, FileEntry] = Field(default_factory=dict)


Facts = Annotated[AdapterFacts | TablesFacts, Field(discriminator="kind")]
