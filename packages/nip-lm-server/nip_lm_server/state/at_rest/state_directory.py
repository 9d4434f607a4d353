"""A server's state directory for other programs, while a server runs there or while none does.

StateDirectory   the paths of its parts, and their contents
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from nip_lm_server.state import directory
from nip_lm_server.state.at_rest.examine import Examined, examine, stored_ids
from nip_lm_server.state.at_rest.garbage import State, read_state, remove
from nip_lm_server.state.at_rest.import_models import find_model, import_models


@dataclass(frozen=True)
class StateDirectory:
    """The state directory at `path`, which need not be there yet."""

    path: Path

    @property
    def database(self) -> Path:
        """The server's database."""
        return self.path / directory.DATABASE

    @property
    def files(self) -> Path:
        """The folder of uploads."""
        return self.path / directory.FILES

    @property
    def models(self) -> Path:
        """The folder of fine-tuned models, each in a folder of its digest."""
        return self.path / directory.MODELS

    @property
    def key_file(self) -> Path:
        """The file with the key of a server started by a program."""
        return self.path / directory.KEY_FILE

    def examine(self) -> Examined:
        """Compare all files with the database and the manifests, and write nothing."""
        return examine(self.path)

    def job_ids(self) -> set[str]:
        """Return the ids of its jobs; none where there is no state."""
        return stored_ids(self.path, "jobs")

    def file_ids(self) -> set[str]:
        """Return the ids of its uploads; none where there is no state."""
        return stored_ids(self.path, "files")

    def read(self) -> State:
        """Return the models and files; an empty state where there is none."""
        return read_state(self.path)

    def remove(self, models: Collection[str], files: Collection[str]) -> None:
        """Remove models by name and files by id.

        Raises StateError while a server runs there, or if its database is lost or damaged.
        """
        remove(self.path, models, files)

    def find_model(self, name: str) -> Path | None:
        """Return the folder of a fine-tuned model, or None if it has none of this name."""
        return find_model(self.path, name)

    def import_models(self, source: Path, expected: Mapping[str, str | None]) -> None:
        """Copy models from the state directory `source`. No server may run here.

        `expected` has by name the content digest that a model must have; None: any. Raises
        ModelError for a model that is missing or damaged, OSError if the disk refuses.
        """
        import_models(source, self.path, expected)
