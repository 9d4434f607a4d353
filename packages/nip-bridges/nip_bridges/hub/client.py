"""A connection to the Hub, or to the server of HF_ENDPOINT, over `huggingface_hub`.

Hub      who asks; a repository's files; making one; one commit; a pinned revision; a download;
         whether a file is there
connect  such a connection, with the token of the environment or of ``hf auth login``

The token is read where `huggingface_hub` reads it, is sent to the Hub and goes nowhere else: it is
taken out of every text that comes back. A refusal of the Hub is one error in our words. Where it
asks to wait (429), has trouble (5xx) or can't be reached, it is asked again, some times.
"""

import contextlib
import enum
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nip_core.distribution import __version__, how_to_install
from nip_core.errors import NipError, ServerError, SettingsError, StoreError
from nip_core.parameters.services.published import Reference
from nip_core.proxies import prepare_proxies
from nip_core.redaction import check_address, read_key, redact, show_address

if TYPE_CHECKING:
    from huggingface_hub import HfApi

T = TypeVar("T")

BRANCH = "main"
TRIES = 5
_LONGEST_WAIT_S = 120.0
_AGAIN = (429, 500, 502, 503, 504)
_REPOSITORY_TYPES = {"adapter": "model", "dataset": "dataset"}
_WRITING = "take a token with the right to write, or a name of your own"
_LOGIN = "set HF_TOKEN, or run `hf auth login`"


class Found(enum.Enum):
    """The Hub's answer to a question for a file."""

    file = enum.auto()
    no_file = enum.auto()
    """The repository is there, without it."""
    no_repository = enum.auto()
    """Or this token may not see it."""
    gated = enum.auto()
    """Its terms have to be accepted first."""


class UnclearError(ServerError):
    """A request may have been carried out or not: look, and ask again."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository by its digests: SHA-256 of a large one, else that of git."""

    sha256: str | None
    git_sha1: str

    def equals(self, path: Path) -> bool:
        """Compare with a file of this machine."""
        if self.sha256 is not None:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        content = path.read_bytes()
        head = f"blob {len(content)}\0".encode()
        return hashlib.sha1(head + content, usedforsecurity=False).hexdigest() == self.git_sha1


@dataclass(frozen=True)
class Remote:
    """A repository at a commit."""

    commit: str
    is_private: bool
    files: Mapping[str, RemoteFile]


def connect(
    environment: Mapping[str, str] = os.environ, sleep: Callable[[float], None] = time.sleep
) -> "Hub":
    """Return a connection; nothing is asked yet.

    Raises SettingsError without huggingface_hub, and for a proxy that can't be used.
    """
    try:
        import huggingface_hub.constants
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":
            raise
        needed = how_to_install("hub")
        raise SettingsError(f"the Hub: needs the package huggingface_hub: {needed}") from None
    endpoint = environment.get("HF_ENDPOINT") or huggingface_hub.constants.ENDPOINT
    check_address("environment variable HF_ENDPOINT", endpoint)
    prepare_proxies(endpoint, environment)
    token = read_key(environment, "HF_TOKEN") or huggingface_hub.get_token() or ""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    # Its warnings are given here, or their cause is mended.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    api = huggingface_hub.HfApi(
        endpoint=environment.get("HF_ENDPOINT") or None,
        token=token or False,
        library_name="nip-loop",
        library_version=__version__,
    )
    cache = environment.get("HF_HUB_CACHE")
    return Hub(api, token, sleep, Path(cache).expanduser() if cache else None)


class Hub:
    """One connection, see `connect`. A refusal raises SettingsError, trouble ServerError."""

    def __init__(
        self, api: "HfApi", token: str, sleep: Callable[[float], None], cache: Path | None
    ) -> None:
        self._api, self._token, self._sleep, self._cache = api, token, sleep, cache

    @property
    def token(self) -> str:
        """The token, "" without one: to look for it in files to publish, and for nothing else."""
        return self._token

    def user(self, to_write: Reference) -> str:
        """Return who the token belongs to.

        Raises SettingsError if it is known already that this one may not write to a repository:
        the token may only read, or the owner is another user. Of a token whose rights are listed
        one by one, and of an organisation, the Hub says so when it is written to.
        """
        if not self._token:
            raise SettingsError(f"there is no token for the Hub; {_LOGIN}")
        answer = self._ask("who asks", None, self._api.whoami)
        name, owner = str(answer["name"]), to_write.repository.partition("/")[0]
        role = ((answer.get("auth") or {}).get("accessToken") or {}).get("role")
        if role == "read":
            raise SettingsError(f"{to_write}: the token of {name} may only read; {_WRITING}")
        owners = {name, *(organisation.get("name") for organisation in answer.get("orgs") or ())}
        if role == "write" and owner not in owners:
            raise SettingsError(f"{to_write}: {name} may not write to {owner}; {_WRITING}")
        return name

    def url(self, reference: Reference) -> str:
        """Return the address of the repository's page."""
        kind = "datasets/" if reference.kind == "dataset" else ""
        return f"{show_address(self._api.endpoint)}/{kind}{reference.repository}"

    def look(self, reference: Reference) -> Remote | None:
        """List the files of the repository at its revision; None if it is not to be seen."""
        from huggingface_hub.errors import RepositoryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        kind = _REPOSITORY_TYPES[reference.kind]

        def look() -> Remote | None:
            try:
                info = self._api.repo_info(
                    reference.repository, repo_type=kind, revision=reference.revision or BRANCH
                )
            except RepositoryNotFoundError:
                return None
            entries = self._api.list_repo_tree(
                reference.repository, repo_type=kind, revision=info.sha, recursive=True
            )
            files = {
                entry.path: RemoteFile(entry.lfs.sha256 if entry.lfs else None, entry.blob_id)
                for entry in entries
                if isinstance(entry, RepoFile)
            }
            return Remote(str(info.sha), bool(info.private), files)

        return self._ask("look at it", reference, look)

    def find_file(self, reference: Reference, file: str, timeout_s: float) -> Found:
        """Ask once for a file of a repository of the Hub, whose owner may be missing in its name.

        Raises UnclearError where the Hub gives no answer within about `timeout_s`, SettingsError
        where it may not be asked.
        """
        from huggingface_hub import errors, hf_hub_url

        url = hf_hub_url(
            reference.repository, file, revision=reference.revision, endpoint=self._api.endpoint
        )
        with self._translate_errors(f"look for {file}", reference):
            try:
                self._api.get_hf_file_metadata(url=url, timeout=timeout_s)
            except errors.GatedRepoError:
                return Found.gated
            except (errors.RepositoryNotFoundError, errors.HFValidationError):
                return Found.no_repository
            except errors.EntryNotFoundError:
                return Found.no_file
            except errors.HfHubHTTPError as error:
                if error.response.status_code != 404:
                    raise
                return Found.no_repository
        return Found.file

    def find_cached(self, reference: Reference, file: str) -> bool:
        """Say whether the Hub's cache on this machine has a file of a repository."""
        from huggingface_hub import errors, try_to_load_from_cache

        try:
            cached = try_to_load_from_cache(reference.repository, file, cache_dir=self._cache)
        except errors.HFValidationError:
            return False
        return isinstance(cached, str)

    def create(self, reference: Reference, *, private: bool) -> None:
        """Make the repository, and leave an existing one as it is."""
        self._ask(
            f"make a repository of {reference.repository.partition('/')[0]}",
            reference,
            lambda: self._api.create_repo(
                reference.repository,
                repo_type=_REPOSITORY_TYPES[reference.kind],
                private=private,
                exist_ok=True,
            ),
        )

    def commit(
        self,
        reference: Reference,
        files: Mapping[str, Path],
        deleted: Iterable[str],
        message: str,
        parent: str,
    ) -> str:
        """Put files there and delete some, in one commit upon `parent`; return its name.

        Large ones are uploaded first; those that the Hub has are not sent again. Raises
        UnclearError where its outcome can't be known.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = [CommitOperationAdd(n, path) for n, path in files.items()]
        operations += [CommitOperationDelete(name) for name in deleted]
        with self._translate_errors("write to it", reference):
            new_commit = self._api.create_commit(
                reference.repository,
                operations,
                commit_message=message,
                repo_type=_REPOSITORY_TYPES[reference.kind],
                revision=BRANCH,
                parent_commit=parent,
            )
        return str(new_commit.oid)

    def wait(self, error: UnclearError, attempt: int) -> None:
        """Wait before the next attempt (from 1), or raise the error after the last."""
        if attempt >= TRIES:
            raise error
        self._sleep(_wait_s(error.__cause__, attempt))

    def pin(self, reference: Reference) -> Reference:
        """Replace the revision of a reference by the commit it means now."""
        if reference.is_pinned:
            return reference
        info = self._ask(
            "look at it",
            reference,
            lambda: self._api.repo_info(
                reference.repository,
                repo_type=_REPOSITORY_TYPES[reference.kind],
                revision=reference.revision or BRANCH,
            ),
        )
        return reference.at(str(info.sha))

    def download(self, reference: Reference, patterns: list[str]) -> Path:
        """Download files of a pinned reference into the Hub's cache, and return the directory.

        A file that is there already is not fetched again.
        """
        assert reference.is_pinned
        folder = self._ask(
            "download it",
            reference,
            lambda: self._api.snapshot_download(
                reference.repository,
                repo_type=_REPOSITORY_TYPES[reference.kind],
                revision=reference.revision,
                allow_patterns=patterns,
                cache_dir=self._cache,
            ),
        )
        return Path(folder)

    def _ask(self, request: str, reference: Reference | None, call: Callable[[], T]) -> T:
        """Ask until the Hub says yes or no."""
        for attempt in range(1, TRIES + 1):
            try:
                with self._translate_errors(request, reference):
                    return call()
            except UnclearError as error:
                self.wait(error, attempt)
        raise AssertionError("the last attempt returns or raises")

    @contextlib.contextmanager
    def _translate_errors(self, request: str, reference: Reference | None) -> Iterator[None]:
        """Turn errors of `huggingface_hub` into ours, without the token."""
        try:
            yield
        except NipError:
            raise
        except (_http_error(), OSError, RuntimeError, ValueError) as error:
            cause = _find_cause(error)
            place = "the Hub" if reference is None else f"{reference}"
            raise self._translate(cause, request, place) from cause

    def _translate(self, error: BaseException, request: str, place: str) -> NipError:
        from huggingface_hub import errors

        text = redact(" ".join(str(error).split()), self._token)
        if isinstance(error, errors.OfflineModeIsEnabled):
            return SettingsError(f"{place}: HF_HUB_OFFLINE forbids the network; unset it")
        is_of_network = isinstance(error, ConnectionError | TimeoutError)
        if isinstance(error, OSError) and error.errno is not None and not is_of_network:
            return StoreError(f"{place}: {error.strerror}: {error.filename}")
        if isinstance(error, errors.RevisionNotFoundError):
            return SettingsError(f"{place}: there is no such revision")
        status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
        by_status = {
            401: f"the Hub refuses the token: {_LOGIN}"
            if self._token
            else f"it is not there, or private, and there is no token; {_LOGIN}",
            403: f"the token may not {request}; {_WRITING}",
            404: "there is no such repository, or this token may not see it",
        }
        if status in by_status:
            return SettingsError(f"{place}: {by_status[status]}")
        if status in (409, 412):
            return UnclearError(f"{place}: somebody else wrote to it meanwhile; run again ({text})")
        if status in _AGAIN:
            return UnclearError(
                f"{place}: the Hub could not {request} now (status {status}); run again later, "
                "what it has is not sent again"
            )
        if status is not None or isinstance(error, ValueError):
            return SettingsError(f"{place}: the Hub refuses to {request}: {text}")
        return UnclearError(
            f"{place}: the connection to {show_address(self._api.endpoint)} broke "
            f"({type(error).__name__}: {text}); run again, what the Hub has is not sent again"
        )


def _find_cause(error: BaseException) -> BaseException:
    """Find the refusal in the chain of causes of an error of `huggingface_hub`."""
    while error.__cause__ is not None and not isinstance(error, _http_error()):
        error = error.__cause__
    return error


def _http_error() -> type[Exception]:
    """Return the base class of the errors of `huggingface_hub`'s HTTP library."""
    from huggingface_hub import errors

    kind: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    return kind


def _wait_s(error: BaseException | None, attempt: int) -> float:
    """Seconds until the next attempt: as the Hub asks, else a little longer each time."""
    response = getattr(error, "response", None)
    wait = response.headers.get("Retry-After", "") if response is not None else ""
    return min(float(wait) if wait.isdigit() else 2.0 ** (attempt - 1), _LONGEST_WAIT_S)
