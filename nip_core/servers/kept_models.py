"""Models of a run's own server outlive its machine, when the run lies on an object store.

The server itself keeps its state on a disk of its machine. In the run lies
``<run>/adapters/<digest>/`` with the files of each model that was swapped in, its manifest last. A
machine that is lost takes along models that were not swapped in yet: uploads and jobs of the
iteration under way. Their job documents go back to the intent, and the same jobs, under the same
keys, are submitted once more. On a disk none of this is needed, and nothing is done.
"""

import logging
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from nip_base.disk import MANIFEST
from nip_base.formats.bounds import parse_json
from nip_core.errors import CorruptionError, StoreError
from nip_core.jobs.document import JobDocument, read_job
from nip_core.jobs.job import Clock
from nip_core.records.iterations import Records
from nip_core.records.models import list_opponents_taken_over, list_taken_over
from nip_core.run_store.lease import Lease
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError, list_files
from nip_lm_server.client import ModelError, StateDirectory

ADAPTERS = "adapters"

_log = logging.getLogger(__name__)


def is_kept(run: RunStore, name: str) -> bool:
    """Return whether the run holds the files of a fine-tuned model."""
    return _manifest(run, name) is not None


def keep_models(run: RunStore, state_dir: Path, names: Iterable[str], lease: Lease) -> None:
    """Copy the fine-tuned ones of the models from `state_dir` into the run.

    Base models of the server's own making come with their adapters. Raises StoreError.
    """
    if run.store.local_path(run.root) is not None:
        return
    for name in names:
        path = StateDirectory(state_dir).find_model(name)
        if path is None or is_kept(run, name):
            continue
        # An adapter over a base model that was made here needs that one, too.
        manifest = parse_json((path / MANIFEST).read_text())
        keep_models(run, state_dir, [manifest["base_model"]], lease)
        for file in sorted(path.rglob("*")):
            if file.is_file() and file != path / MANIFEST:
                target = f"{_directory(run, name)}/{file.relative_to(path).as_posix()}"
                run.store.put(target, file, fence=lease.fence)
        # Without its manifest it is no model yet.
        content = (path / MANIFEST).read_bytes()
        run.store.put_if_absent(f"{_directory(run, name)}/{MANIFEST}", content, fence=lease.fence)


def restore_models(run: RunStore, state_dir: Path, groups: Collection[str], lease: Lease) -> None:
    """Make `state_dir` hold the models that the run needs to go on. The server must not run yet.

    `groups` are those that it trains.

    Raises CorruptionError for a damaged model, StoreError if one can't be fetched.
    """
    if run.store.local_path(run.root) is not None:
        return
    # 1. Jobs that the lost machine had are to be submitted again.
    iteration = run.finished_iterations()
    for group in groups:
        _reopen_lost_job(run, iteration, group, state_dir, lease)
    # 2. Without the models that play now, and those of the iteration under way, nothing goes on.
    # Before its first iteration is over a run in a bucket may have no record of itself yet.
    is_begun = run.store.exists(f"{run.root}/run.json")
    origin = list_taken_over(run.open()) if is_begun else []
    swaps = [swap.groups for swap in Records(run).swaps(iteration)] if iteration else []
    playing = swaps[-1] if swaps else (origin or [{}])[0]
    needed = {model.model: model.digest for model in playing.values()}
    opponents = list_opponents_taken_over(run.open()) if is_begun else []
    needed |= {model.model: model.digest for model in opponents}
    needed |= _trained(run, iteration, groups)
    bring_models(run, state_dir, _missing(state_dir, needed))
    # 3. The others too: an earlier iteration may be played, tested or done again. But nothing that
    # is under way stops for one that is damaged.
    earlier_models = [model for swap in (*origin, *swaps) for model in swap.values()]
    earlier = {model.model: model.digest for model in earlier_models}
    for name, content_digest in _missing(state_dir, earlier).items():
        try:
            bring_models(run, state_dir, {name: content_digest})
        except CorruptionError as error:
            _log.warning("%s: not brought back: %s", name, error)


def _missing(state_dir: Path, digests: Mapping[str, str | None]) -> dict[str, str | None]:
    state = StateDirectory(state_dir)
    return {n: digest for n, digest in digests.items() if state.find_model(n) is None}


def has_model(run: RunStore, name: str) -> bool:
    """Return whether the run has the files of a fine-tuned model, at its own server or kept."""
    state = run.store.local_path(f"{run.root}/lm_server")
    return (
        is_kept(run, name) if state is None else StateDirectory(state).find_model(name) is not None
    )


def bring_models(run: RunStore, state_dir: Path, digests: Mapping[str, str | None]) -> None:
    """Take models of `run` into `state_dir`, from its own server or from its kept models.

    `digests` has by name the content digest that each must have. Models that are
    not kept in a bucket are left out. Raises as `restore_models`.
    """
    source, place = run.store.local_path(f"{run.root}/lm_server"), f"models of run {run.name!r}"
    try:
        if source is not None:
            StateDirectory(state_dir).import_models(source, digests)
            return
        place = f"{run.store.url}/{run.root}/{ADAPTERS}"
        kept_digests = {name: digest for name, digest in digests.items() if is_kept(run, name)}
        if kept_digests:
            state_dir.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=state_dir, prefix="fetched-") as folder:
                for name in kept_digests:
                    fetch_model(run, name, Path(folder))
                StateDirectory(state_dir).import_models(Path(folder), kept_digests)
    except ModelError as error:
        raise CorruptionError(f"{place}: {error}") from error
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"{state_dir}: models of {run.name!r} can't be put there: {error}"
        ) from error


def fetch_model(run: RunStore, name: str, folder: Path) -> None:
    """Download a kept model, with the base models under it, to ``folder/models``."""
    manifest = _manifest(run, name)
    if manifest is None:
        return
    source = _directory(run, name)
    target = StateDirectory(folder).models / source.rpartition("/")[2]
    for path in list_files(run.store, source):
        file = target / path.removeprefix(f"{source}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        run.store.download(path, file)
    fetch_model(run, str(manifest["base_model"]), folder)


def _reopen_lost_job(
    run: RunStore, iteration: int, group: str, state_dir: Path, lease: Lease
) -> None:
    """Set the group's job back to the intent, if its machine is lost."""
    path = run.job(iteration, group)
    document = JobDocument(run.store, path, lease=lease, clock=Clock())
    record = document.load()
    if record is None or record.outcome not in (None, "succeeded"):
        return
    if record.model is not None and is_kept(run, record.model):
        return
    if record.id is not None:
        is_there = record.id in StateDirectory(state_dir).job_ids()
    else:
        files = {record.file_id, record.validation_file_id} - {None}
        is_there = files <= StateDirectory(state_dir).file_ids()
    if is_there:
        return
    document.save(
        record,
        "the machine that had it is lost; to be submitted again, as the same job",
        state="intent",
        file_id=None,
        validation_file_id=None,
        creates_open=0,
        sent_at=None,
        id=None,
        submitted_at=None,
        status=None,
        outcome=None,
        reason=None,
        model=None,
        finished_at=None,
        trained_tokens=None,
        effective=None,
        backend_events=(),
    )


def _trained(run: RunStore, iteration: int, groups: Collection[str]) -> dict[str, None]:
    """Models of the iteration under way: kept ones are there if it is done again from its swap."""
    records = (read_job(run, run.job(iteration, group)) for group in groups)
    return {record.model: None for record in records if record is not None and record.model}


def _directory(run: RunStore, name: str) -> str:
    return f"{run.root}/{ADAPTERS}/{name.rpartition(':')[2]}"


def _manifest(run: RunStore, name: str) -> dict[str, object] | None:
    if not name.startswith("ft:"):
        return None
    path = f"{_directory(run, name)}/{MANIFEST}"
    try:
        manifest = parse_json(run.store.get(path))
        return manifest if manifest["name"] == name else None
    except MissingFileError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(
            f"{path}: damaged manifest of model {name} ({error!r}); restore the file, or --fork "
            "from an earlier iteration"
        ) from error
