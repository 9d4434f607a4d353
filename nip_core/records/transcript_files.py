"""Where all episodes of a split are written for reading, with their SHA-256 beside them."""

from nip_core.run_store.run import RunStore

CHECKSUM_SUFFIX = ".sha256"
"""Of the file beside it with its SHA-256, in the form of sha256sum."""


def name_transcripts_file(run: RunStore, iteration: int, split: str, form: str) -> str:
    """Return where all episodes of a split are written for reading."""
    return f"{run.iteration(iteration)}/transcripts-{split}.{form}"
