"""Requests to an object store, and their errors in nip's words."""

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from nip_core.errors import StoreError
from nip_core.redaction import remove_users
from nip_core.run_store.store import MissingFileError, check_path

T = TypeVar("T")
_PAUSES_S = (0.05, 0.2, 0.8, 2.0, 5.0)
_TOMBSTONE = b"nip: deleted "
TOMBSTONE_BYTES = len(_TOMBSTONE) + 32
_METADATA_ADDRESS = "169.254.169.254"  # asked for credentials where the environment has none


class Requests:
    """Single requests to a bucket, repeated where an answer broke off."""

    url: str

    def __init__(self, url: str, patient: Any, once: Any, sleep: Callable[[float], None]) -> None:
        """`patient` and `once` are obstore's stores: one repeats failed requests, one does not."""
        self.url = url
        self._patient, self._once, self._sleep = patient, once, sleep

    def _swap(
        self, path: str, data: bytes, etag: str | None, *, is_logged: bool = False
    ) -> str | None:
        """Write `path` if it is as `etag` says (None: absent); its new tag, or None if it is not.

        A request without an answer is repeated. It may have been done, as the entry of a log may
        have been by another process: then a path that holds `data` already counts as written.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        may_be_done = is_logged
        for pause_s in (*_PAUSES_S, None):
            mode: Any = "create" if etag is None else _version(etag)
            try:
                return _tag(obstore.put(self._once, path, data, mode=mode, use_multipart=False))
            except (AlreadyExistsError, PreconditionError):
                standing = self._look(path)
                if standing is not None and may_be_done and standing[0] == data:
                    return standing[1]
                if standing is not None and standing[1] != etag:
                    if etag is not None or is_logged or not is_tombstone(standing[0]):
                        return None
                    etag = standing[1]
                if standing is None and etag is not None:
                    return None
                # Else S3 had a conflict, which says nothing about the condition.
                trouble: Exception = StoreError(
                    f"{self._name(path)}: others kept changing it; run again"
                )
            except Exception as error:
                trouble = self._translated(error, path, "write")
                if isinstance(trouble, MissingFileError) and etag is not None:
                    return None
                if not isinstance(trouble, StoreError) or isinstance(trouble, MissingFileError):
                    raise trouble from error
                if _is_final(error):
                    raise trouble from error
                may_be_done = True
            if pause_s is None:
                raise trouble
            self._sleep(pause_s)
        raise AssertionError("the loop ends by itself")

    def _look(self, path: str) -> tuple[bytes, str] | None:
        """Read a path with its tag, tombstones included; None if there is nothing."""
        import obstore

        check_path(path)

        def get() -> tuple[bytes, str]:
            answer = obstore.get(self._patient, path)
            return bytes(answer.bytes()), _tag(answer.meta)

        try:
            return self._ask(path, "read", get)
        except MissingFileError:
            return None

    def _ask(self, path: str, action: str, request: Callable[[], T]) -> T:
        """Make a `request`, again where its answer broke off, and return the result.

        The library repeats requests that got no answer, and goes on with most that got a part of
        one, but not with listings, nor with the beginning and the end of a write in parts.
        """
        for pause_s in (*_PAUSES_S, None):
            try:
                return request()
            except Exception as error:
                if pause_s is None or not _broke_off(error):
                    raise self._translated(error, path, action) from error
            self._sleep(pause_s)
        raise AssertionError("the loop ends by itself")

    def _tag_of(self, path: str) -> str | None:
        standing = self._look(path)
        return None if standing is None or is_tombstone(standing[0]) else standing[1]

    def _is_there(self, path: str) -> bool:
        return self._tag_of(path) is not None

    def _name(self, path: str) -> str:
        return f"{self.url}/{path}"

    def _translated(self, error: Exception, path: str, action: str) -> Exception:
        """Make the exception for an error of the library, met trying to `action` (a verb)."""
        from obstore.exceptions import BaseError, NotFoundError

        name = self._name(path)
        if isinstance(error, (NotFoundError, FileNotFoundError)):
            return MissingFileError(f"{name}: no such file")
        if _is_final(error):
            return StoreError(
                f"{name}: no permission to {action} it; check the credentials in the environment "
                "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS)"
            )
        if isinstance(error, (BaseError, OSError, ValueError)):
            return StoreError(f"{name}: can't {action} it: {short_message(error)}")
        return error


def _broke_off(error: Exception) -> bool:
    """Tell whether an answer began and did not end as it should."""
    from obstore.exceptions import BaseError

    signs = (
        "body error",
        "response body",
        "invalid list response",
        "invalid multipart response",
    )
    return isinstance(error, (BaseError, OSError)) and any(s in str(error).lower() for s in signs)


def _is_final(error: Exception) -> bool:
    """Tell whether the credentials, or their absence, were refused."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    kinds = (PermissionDeniedError, UnauthenticatedError, PermissionError)
    return isinstance(error, kinds) or _METADATA_ADDRESS in str(error)


def short_message(error: Exception) -> str:
    """Give the first line of a message, without passwords; more tells of the library's insides."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return remove_users(first)[:300]


def _tag(meta: Mapping[str, Any]) -> str:
    """Make one tag of both: S3 tells versions of an object apart by etag, Google by generation."""
    return json.dumps([meta.get("e_tag"), meta.get("version")])


def _version(tag: str) -> dict[str, str]:
    try:
        e_tag, version = json.loads(tag)
    except (ValueError, TypeError):
        e_tag, version = tag, None  # of no version that this store gave out
    both = {"e_tag": e_tag, "version": version}
    return {name: value for name, value in both.items() if value is not None}


def tombstone() -> bytes:
    """Make a tombstone. It differs from every other, and so does its tag."""
    return _TOMBSTONE + uuid.uuid4().hex.encode()


def is_tombstone(data: bytes) -> bool:
    return len(data) == TOMBSTONE_BYTES and data.startswith(_TOMBSTONE)
