"""Answers to requests that can't be met: OpenAI's error object with a status.

EngineError              an engine, or its model, can't do the request
ApiError                 raised anywhere below a route, it becomes the response
ErrorBody                the object of that response, which `error_body` builds
Places                   directories of this machine, of which no answer tells
abbreviate               a value as it stands in a message
unknown_parameter ...    the errors that many places raise
"""

import difflib
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

MAX_MESSAGE_CHARACTERS = 4000
MAX_PARAM_CHARACTERS = 500
MAX_NAMES = 8


class ErrorFacts(TypedDict):
    """An error, and the parameter at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """OpenAI's error object. `category` stands in answers of Tinker's API."""

    error: ErrorFacts
    category: NotRequired[Literal["user", "server"]]


class EngineError(Exception):
    """The engine can't do what was asked; the message says what and why."""


class ApiError(Exception):
    """An HTTP answer without success. `status` decides the `type` unless one is given."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        type: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.type = type or _TYPES.get(
            status, "server_error" if status >= 500 else "invalid_request_error"
        )
        self.headers = headers or {}

    def body(self) -> ErrorBody:
        """The JSON object of the response."""
        return error_body(self.message, self.type, self.code, self.param)


_TYPES = {
    403: "permission_error",
    429: "rate_limit_error",
}


def error_body(
    message: str, type: str, code: str | None = None, param: str | None = None
) -> ErrorBody:
    """Build OpenAI's error object. Broken text of a client is escaped in it."""
    # Long or broken text of a client would make an answer that others can't read.
    param = None if param is None else _sayable(param[:MAX_PARAM_CHARACTERS])
    message = _sayable(message[:MAX_MESSAGE_CHARACTERS])
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


class Places:
    """Directories of the server's machine. Clients are told their last name alone.

    Errors of the code below name files, as its log should; their place is no client's business.
    """

    def __init__(self, paths: Iterable[str | Path]):
        """Relative paths and the root of the file system stand for no place."""
        absolute = {str(path) for path in map(Path, paths) if path.is_absolute() and path.name}
        longest_first = sorted(absolute, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})(?![\\w-])")

    def hide(self, value: Any) -> Any:
        """`value` (JSON) with ``state/files/x`` in its texts for ``/srv/nip/state/files/x``."""
        if isinstance(value, str):
            return self._pattern.sub(lambda match: Path(match[1]).name, value)
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        if isinstance(value, dict):
            return {key: self.hide(item) for key, item in value.items()}
        return value


def _sayable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def not_found(kind: str, id: str, param: str | None = "id") -> ApiError:
    """Build the 404 for a missing file or job."""
    return ApiError(404, f"No such {kind}: {id!r}", code="not_found", param=param)


def model_not_found(name: str, served_names: Iterable[str] = (), status: int = 404) -> ApiError:
    """The model named is not served here. Chat answers 404, creating a job 400, as OpenAI does.

    `served_names` are the names that this server has, the most important first.
    """
    names = list(dict.fromkeys(served_names))
    similar = difflib.get_close_matches(name[:100], names, n=1)
    ordered = list(dict.fromkeys([*similar, *names]))
    listed = ", ".join(map(abbreviate, ordered[:MAX_NAMES]))
    more = f" and {len(ordered) - MAX_NAMES} more (GET /v1/models)" if ordered[MAX_NAMES:] else ""
    words = f"The model {abbreviate(name)} does not exist"
    if similar:
        words += f"; did you mean {abbreviate(similar[0])}?"
    if ordered:
        words += f"{' This' if similar else '; this'} server has {listed}{more}"
        words += "; `nip serve --served-model-name NAME` gives its model another name"
    return ApiError(
        status,
        words,
        code="model_not_found",
        param="model",
    )


def abbreviate(value: Any) -> str:
    """Return the beginning of a value's repr. No more is made: the value may be very large."""
    return repr(_beginning(value, 4))[:80]


def _beginning(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value[:100]
    if isinstance(value, list):
        return [_beginning(item, depth - 1) for item in value[:40]] if depth else []
    if isinstance(value, dict):
        items = list(itertools.islice(value.items(), 40)) if depth else []
        return {str(key)[:100]: _beginning(item, depth - 1) for key, item in items}
    return value


def unknown_parameter(name: str) -> ApiError:
    """Build the 400 for a parameter unknown to the API."""
    name = name[:MAX_PARAM_CHARACTERS]
    return ApiError(
        400,
        f"Unknown parameter: '{name}'. It would have to be ignored, so it is refused.",
        code="unknown_parameter",
        param=name,
    )


def invalid_value(name: str, value: Any, expected: str) -> ApiError:
    """Build the 400 for a wrong value, or for a missing required one (None)."""
    if value is None:
        message = f"Missing required parameter: '{name}' ({expected})."
        return ApiError(400, message, code="missing_required_parameter", param=name)
    return wrong_value(name, f"Invalid '{name}': got {abbreviate(value)}, expected {expected}.")


def wrong_value(name: str | None, message: str) -> ApiError:
    """Build the 400 for a wrong value, with a message of the caller's own."""
    return ApiError(400, message, code="invalid_value", param=name)


def other_value(name: str, value: str | None, expected: str) -> ApiError:
    """Build the 400 for a text outside of the expected ones."""
    return wrong_value(name, f"Invalid '{name}': got {value!r}, expected {expected}")


def missing_parameter(name: str) -> ApiError:
    """Build the 400 for a missing required parameter."""
    message = f"Missing required parameter: '{name}'."
    return ApiError(400, message, code="missing_required_parameter", param=name)


def unsupported_header(name: str, reason: str) -> ApiError:
    """Build the 415 for a body in a form the server does not take."""
    message = f"Unsupported '{name}': {reason}"
    return ApiError(415, message, code="unsupported_value", param=name)


def doubled_parameter(name: str) -> ApiError:
    """Build the 400 for a parameter given twice: all but one value would be ignored."""
    return wrong_value(name, f"Invalid '{name}': it is given twice.")


def unsupported_value(name: str, reason: str) -> ApiError:
    """400 for a value of the API that this server or this engine can't take."""
    return ApiError(400, f"Unsupported '{name}': {reason}.", code="unsupported_value", param=name)
