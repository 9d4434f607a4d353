"""The folders of Tinker's weights: ``tinker/<model>/<kind>-<number>``, each written whole.

A folder is named by its model and the number of the request that made it, so a request that is done
again after a kill writes the same folder. Its digest covers every file, and is in the database:
exchanged files are noticed even with a manifest of their own.
"""

import asyncio
import hashlib
import shutil
from pathlib import Path

from nip_base.disk import hash_file, sync
from nip_lm_server.state.models import AdapterError


class Folders:
    """The folders of one server's state."""

    def __init__(self, root: Path):
        self.root = root
        root.mkdir(mode=0o700, exist_ok=True)

    def path(self, model_id: str, kind: str, seq: int) -> Path:
        """Return the folder for the weights of a model's request, and make its parent."""
        parent = self.parent(model_id)
        parent.mkdir(mode=0o700, exist_ok=True)
        return parent / f"{kind}-{seq}"

    def parent(self, model_id: str) -> Path:
        """Return the folder of a model's folders."""
        # Ids are a client's text; a digest of one is a name on every file system.
        return self.root / hashlib.sha256(model_id.encode()).hexdigest()[:20]

    def find(self, relative: str) -> Path:
        """Return the folder of a record."""
        return self.root / relative

    def relative(self, path: Path) -> str:
        """Return the name of a folder in records."""
        return str(path.relative_to(self.root))

    def remove(self, relative: str) -> None:
        """Remove a folder, and its parent if it was the last."""
        path = self.find(relative)
        shutil.rmtree(path, ignore_errors=True)
        if path.parent != self.root and path.parent.is_dir() and not any(path.parent.iterdir()):
            path.parent.rmdir()

    def remove_states(self, model_id: str, but: Path | None = None) -> None:
        """Remove the states of a model, but for one."""
        for path in self.parent(model_id).glob("state-*"):
            if path != but:
                self.remove(self.relative(path))

    async def measure(self, path: Path) -> tuple[str, int]:
        """Return the digest of a folder's files, and their bytes; its names are on disk then."""
        return await asyncio.to_thread(_measure, path)

    async def verify(self, relative: str, content_digest: str) -> Path:
        """Return a folder if its files are those on record. Raises AdapterError."""
        path = self.find(relative)
        try:
            digest, _ = await asyncio.to_thread(_measure, path)
        except OSError as error:
            raise AdapterError(f"the weights in {path} can't be read: {error!r}") from error
        if digest != content_digest:
            raise AdapterError(
                f"the files in {path} are not those that were saved: their digest is "
                f"{digest[:12]}…, on record {content_digest[:12]}…"
            )
        return path


def _measure(path: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    files = sorted(file for file in path.iterdir() if file.is_file())
    if not files:
        raise FileNotFoundError(f"{path} has no files")
    for file in files:
        digest.update(f"{file.name} {hash_file(file)}\n".encode())
        size += file.stat().st_size
    sync(path)
    return digest.hexdigest(), size
