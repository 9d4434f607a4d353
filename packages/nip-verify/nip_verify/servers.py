"""The models and jobs of a run, compared with the servers that trained them."""

from collections.abc import Iterator, Sequence
from typing import Any

from nip_base.disk import MANIFEST
from nip_base.formats.bounds import parse_json
from nip_base.manifest import CHECKSUM, checksum_of, content_digest
from nip_base.wire import ENDED_STATUSES
from nip_core.errors import NipError, SettingsError
from nip_core.jobs.document import read_job
from nip_core.jobs.job import Backend, Busy, JobRecord, NoAnswer, Refused
from nip_core.jobs.ledger import open_ledger
from nip_core.parameters import HyperParameters
from nip_core.parameters.stored import read_settings
from nip_core.servers.endpoints import find_group_endpoints
from nip_core.servers.kept_models import ADAPTERS
from nip_core.servers.own_server import find_server_directory
from nip_core.upkeep.file_checks import Check
from nip_lm_server.client import Examined, StateDirectory

Jobs = Sequence[tuple[str, JobRecord]]
"""Jobs on record, each with the path of its document."""
_NOT_AGAIN = "restore the file from a copy; without one, --rerun-from its iteration:train"


async def check_servers(check: Check) -> None:
    """Compare with all servers, where this version of nip can read the settings on record."""
    try:
        parameters = read_settings(check.run.open().parameters)
    except (NipError, OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        check.notes.append(
            f"models and jobs: not checked, as the settings on record can't be read ({reason})"
        )
        return
    jobs = list(_jobs_on_record(check))
    _check_own_server(check, parameters, jobs)
    await _check_remote(check, parameters, jobs)


def _check_own_server(check: Check, parameters: HyperParameters, jobs: Jobs) -> None:
    """Check the state directory and the kept models against the names in the run."""
    run, directory = check.run, find_server_directory(check.run)
    in_run = run.store.local_path(run.root) is not None
    server = StateDirectory(directory)
    state = server.examine()
    place_shown = f"{run.root}/lm_server" if in_run else str(directory)
    for damage in state.damages:
        relative = damage.path.relative_to(directory).as_posix()
        remedy = _NOT_AGAIN
        if damage.path.is_relative_to(server.files):
            remedy = "restore the file from a copy; only a job that is to train on it needs it"
        check.add(
            f"{place_shown}/{relative}", damage.problem, damage.expected, damage.actual, remedy
        )
    check.unknown += [
        f"{place_shown}/{path.relative_to(directory).as_posix()}" for path in state.unknown
    ]
    # The models on record must be there or be kept, also those of another machine.
    digests = {**_kept_models(check), **state.models}
    own_groups = {group for group in parameters.groups if uses_own(parameters, group)}
    folder = f"{place_shown}/{server.models.name}" if in_run else f"{run.root}/{ADAPTERS}"
    database = f"/{server.database.name}"
    for path, group, model in _models_on_record(check):
        if group in own_groups and not any(p.endswith(database) for p in check.problems):
            name, content = model["model"], model.get("digest")
            place = f"{folder}/{name.rpartition(':')[2]}/{MANIFEST}"
            if name not in digests:
                check.lacks(place, f"the model {name} that {path} names", _NOT_AGAIN)
            elif content is not None:
                fault = f"not the model that {path} names"
                check.compare(place, fault, content, digests[name], _NOT_AGAIN)
    place = place_shown + database
    if in_run and place not in check.problems:
        for path, job in jobs:
            if job.group in own_groups and job.id is not None:
                _compare_job(check, state, path, job, place)


def uses_own(parameters: HyperParameters, group: str) -> bool:
    """Return whether a group is trained by the run's own server."""
    try:
        return find_group_endpoints(parameters, group) is None
    except SettingsError:  # a key that is not set
        return False


def _compare_job(check: Check, state: Examined, path: str, job: JobRecord, place: str) -> None:
    if job.id not in state.jobs:
        if state.jobs:
            check.add(place, "lacks a job", f"{job.id} of {path}", "none", _NOT_AGAIN)
        return
    status, model = state.jobs[job.id]
    if job.succeeded and (status, model) != ("succeeded", job.model):
        fault = f"another end of job {job.id}"
        check.add(place, fault, job.model, f"{status}, {model}", _NOT_AGAIN)


def _kept_models(check: Check) -> dict[str, str]:
    """Compare the files of a bucket's kept models, and return their content digests by name."""
    digests: dict[str, str] = {}
    root = f"{check.run.root}/{ADAPTERS}"
    for digest in check.names(root):
        folder, path = f"{root}/{digest}", f"{root}/{digest}/{MANIFEST}"
        if path not in check.present:
            check.unknown += check.under(folder)
            continue
        check.known.add(path)
        try:
            manifest: dict[str, Any] = parse_json(check.run.store.get(path))
            files = manifest["files"]
            if CHECKSUM in manifest and manifest[CHECKSUM] != checksum_of(manifest):
                raise ValueError("its own checksum does not match")
            if content_digest(files) != manifest["content_digest"]:
                raise ValueError("it contradicts itself")
            digests[manifest["name"]] = manifest["content_digest"]
            for name, entry in files.items():
                check.known.add(f"{folder}/{name}")
                check.content(f"{folder}/{name}", entry["bytes"], entry["sha256"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            check.add(path, "damaged", "the manifest of a model", error, _NOT_AGAIN)
        inner = set(check.under(folder)) - check.known
        check.unknown += sorted(inner)
    return digests


def _models_on_record(check: Check) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield path, group and record of each model trained by the run."""
    for path in check.under(f"{check.run.root}/iterations"):
        if path.endswith("/models.json") and path not in check.problems:
            for group, model in check.run.read_json(path)["groups"].items():
                if model.get("trained_in") is not None:
                    yield path, group, model


def _jobs_on_record(check: Check) -> Iterator[tuple[str, JobRecord]]:
    for path in check.under(f"{check.run.root}/iterations"):
        if path.split("/")[-2] == "jobs" and path not in check.problems:
            record = read_job(check.run, path)
            if record is not None:
                yield path, record


async def _check_remote(check: Check, parameters: HyperParameters, jobs: Jobs) -> None:
    """Check jobs and models at the servers of the settings, where these can be reached."""
    services = [parameters.group_parameters(group).provider.training for group in parameters.groups]
    if any(service is not None and ":" in str(service.backend) for service in services):
        # Notes of a back-end that drives its jobs itself: its answers below come from them.
        notes = f"{check.run.root}/training/"
        check.unknown[:] = [path for path in check.unknown if not path.startswith(notes)]
    for group in parameters.groups:
        try:
            endpoints = find_group_endpoints(parameters, group)
        except SettingsError as error:
            check.notes.append(f"jobs and models of {group}: not checked, as {error}")
            continue
        of_group = [(path, job) for path, job in jobs if job.group == group]
        if endpoints is None or not any(job.id for _, job in of_group):
            continue
        provider = parameters.group_parameters(group).provider
        # A server that is away is no damage of the run, so it is not waited for as in a run.
        opened = open_ledger(check.run, provider, endpoints.control, settle_s=0, timeout_s=20)
        async with opened as (_, backend):
            try:
                for path, job in of_group:
                    await _ask(check, backend, path, job)
            except (NoAnswer, Busy) as error:
                check.notes.append(f"jobs and models of {group}: not checked ({error})")


async def _ask(check: Check, backend: Backend, path: str, job: JobRecord) -> None:
    """Ask for one job and its model."""
    if job.id is None or job.outcome not in ENDED_STATUSES:
        return
    # How it ended, and whether its model is still to be had.
    remedy = f"ask {backend.address} what became of it"
    try:
        view = await backend.retrieve_job(job.id)
        if (view.status, view.fine_tuned_model) != (job.outcome, job.model):
            answer = f"{view.status}, {view.fine_tuned_model}"
            expected = f"{job.outcome}, {job.model}"
            check.add(path, f"job {job.id} at its server", expected, answer, remedy)
        elif job.model is not None:
            await backend.describe_model(job.model)
    except Refused as error:
        fault = f"job {job.id} and model {job.model} at their server"
        check.add(path, fault, "to be there", error, remedy)
