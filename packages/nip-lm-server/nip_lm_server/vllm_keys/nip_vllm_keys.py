"""Middleware inside the vLLM server: every path asks for the key, not only /v1.

vLLM itself leaves /invocations, /adapters, /sleep, /metrics and more open to every user of the
machine. vLLM's own Python imports this module from a directory of its own, so it imports the
standard library alone.
"""

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Application = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

_REFUSAL = b'{"error": {"message": "Wrong or missing key", "type": "invalid_request_error"}}'


class RequireKey:
    """Passes on requests with ``Authorization: Bearer $VLLM_API_KEY``; 401 for all others."""

    def __init__(self, app: _Application):
        self._app = app
        self._expected = b"Bearer " + os.environ["VLLM_API_KEY"].encode()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """ASGI entry point."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if scope["type"] == "http" and hmac.compare_digest(header, self._expected):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})
        else:
            await send({"type": "websocket.close", "code": 1008})
