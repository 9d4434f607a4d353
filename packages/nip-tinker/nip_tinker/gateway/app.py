"""The server of a gateway: its chats and models, and all else passed on to the service.

make_app   serves a gateway

Each request that fails is a line of the log.
"""

import logging
import secrets
from typing import Any

import aiohttp
from aiohttp import web

from nip_core.proxies import proxy_for
from nip_core.redaction import printable, redact, show_address
from nip_tinker.gateway.chats import ApiError
from nip_tinker.gateway.gateway import RETRY_AFTER, Gateway
from nip_tinker.gateway.samples import describe_page, describe_redirect

PLAY_PATHS = ("/oai/api/v1", "/v1")
"""Of the chats: as the hosted service has it, and as clients of OpenAI's API write it."""
_LARGEST_BODY = 64 * 1024 * 1024
_LARGEST_CHAT = 8 * 1024 * 1024
"""As `nip serve` has it: larger ones have more tokens than any context, and to count them takes a
minute."""
_PASSED_ON = ("X-API-Key", "Authorization", "Accept", "Content-Type", "X-Idempotency-Key")
_PASSED_BACK = ("Retry-After",)
_CONNECT_S = 10.0
_log = logging.getLogger("nip.tinker.gateway")


def make_app(gateway: Gateway) -> web.Application:
    """Make the server of a gateway."""

    @web.middleware
    async def answer_errors(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            answer: web.StreamResponse = await handler(request)
            if answer.status >= 400:
                body = answer.body if isinstance(answer, web.Response) else b""
                words = body[:4000].decode("utf-8", "replace") if isinstance(body, bytes) else ""
                note_failure(request, answer.status, f"the service: {words}")
            return answer
        except ApiError as error:
            failure = error
        except web.HTTPException as error:
            code = "request_too_large" if error.status == 413 else None
            failure = ApiError(error.status, error.text or error.reason, code)
        except Exception as error:
            _log.exception("%s %s", request.method, request.rel_url.raw_path)
            failure = ApiError(500, f"the gateway broke: {type(error).__name__}")
        note_failure(request, failure.status, failure.message)
        return _error(failure)

    def note_failure(request: web.Request, status: int, words: str) -> None:
        # The path as it was sent has no line end, and no query, which may hold a token.
        place = printable(f"{request.method} {request.rel_url.raw_path[:200]}")
        line = printable(" ".join(redact(words, gateway.key).split()))[:500]
        _log.warning("%s: HTTP %s: %s", place, status, line)

    def check_key(request: web.Request) -> None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        keys = (given, request.headers.get("X-API-Key", ""))
        if not any(secrets.compare_digest(key.encode(), gateway.key.encode()) for key in keys):
            raise ApiError(401, "the key is not the gateway's", "invalid_api_key")

    async def chat(request: web.Request) -> web.StreamResponse:
        check_key(request)
        body = await request.read()
        if len(body) > _LARGEST_CHAT:
            raise web.HTTPRequestEntityTooLarge(_LARGEST_CHAT, len(body))
        return web.json_response(await gateway.complete(body))

    async def models(request: web.Request) -> web.StreamResponse:
        check_key(request)
        return web.json_response(await gateway.list_models())

    async def pass_on(request: web.Request) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        url, data = gateway.address.rstrip("/") + request.path_qs, await request.read()
        try:
            async with request.app[_HTTP].request(
                request.method,
                url,
                data=data,
                headers=headers,
                proxy=proxy_for(url),
                allow_redirects=False,  # the key would go along
            ) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = redact(f"{type(error).__name__}: {error}", gateway.key)
            words = f"{show_address(gateway.address)}: no answer ({reason})"
            raise ApiError(503, words, retry_after=RETRY_AFTER) from None
        retry_after = answer.headers.get("Retry-After")
        if 300 <= answer.status < 400 and answer.status != 304:
            location = answer.headers.get("Location")
            words = describe_redirect(gateway.address, request.path, answer.status, location)
            raise ApiError(502, words)
        if answer.content_type == "text/html":
            words = describe_page(gateway.address, request.path, answer.status, body)
            status = answer.status if answer.status >= 400 else 502
            raise ApiError(status, redact(words, gateway.key), retry_after=retry_after)
        back = {name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers}
        kind = answer.content_type
        return web.Response(body=body, status=answer.status, content_type=kind, headers=back)

    async def hold(app: web.Application) -> Any:
        timeout = aiohttp.ClientTimeout(300, sock_connect=_CONNECT_S)
        app[_HTTP] = aiohttp.ClientSession(timeout=timeout)
        yield
        await app[_HTTP].close()
        await gateway.aclose()

    app = web.Application(client_max_size=_LARGEST_BODY, middlewares=[answer_errors])
    app.cleanup_ctx.append(hold)
    for path in PLAY_PATHS:
        app.router.add_post(f"{path}/chat/completions", chat)
        app.router.add_get(f"{path}/models", models)
    app.router.add_route("*", "/{path:.*}", pass_on)
    return app


_HTTP = web.AppKey("http", aiohttp.ClientSession)


def _error(error: ApiError) -> web.Response:
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
        error.status, "server_error" if error.status >= 500 else "invalid_request_error"
    )
    # Broken text of a client is escaped.
    words = error.message.encode("utf-8", "backslashreplace").decode()[:4000]
    body = {"message": words, "type": kind, "param": error.param, "code": error.code}
    headers = {"Retry-After": error.retry_after} if error.retry_after else {}
    # Clients of Tinker's API read whose fault it is.
    category = "server" if error.status >= 500 else "user"
    return web.json_response(
        {"error": body, "category": category}, status=error.status, headers=headers
    )
