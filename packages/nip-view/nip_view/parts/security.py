"""Who may ask the viewer: host names, a token, and the headers for browsers.

Guard  the ASGI middleware around the pages
is_loopback whether an address is this machine's alone
make_form_token  the token in the viewer's own forms
is_of_program  whether a note comes with the token in a header, and needs no form

Covered: another user of the machine, and a web page in the same browser. Neither reads
anything without the token, which is in no address but the first, and in no program's arguments: it
becomes a cookie that no script can read and that no other site's page can send. A name that
an attacker has pointed at this machine (DNS rebinding) is refused, as are all methods that could
change something, but for one thing: a note about an episode. It takes the cookie, a form that this
viewer has made (`form_token`), and a browser that says it comes from a page of this viewer; or a
program with the token in a header. A viewer without a token takes none.
Not covered: a reader of this process's output, or the traffic of an address that is not
loopback, which is not encrypted; use ssh. And a server at another port of the same name to which
the same browser goes: browsers send it the cookie, too.
"""

import hmac
import html
import ipaddress
import re
from collections.abc import Collection
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With "no-referrer" browsers would say "null" for the origin of the viewer's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


_NOTE = re.compile(r"/runs/[^/]+/episodes/[^/]+/note")
"""The only places where something can be written."""
MOST_BODY_BYTES = 1 << 17
_IS_PROGRAM = "has_token_in_header"


def make_form_token(token: str) -> str:
    """Make the token of the viewer's own forms, which no other site's page can know."""
    return hmac.digest(token.encode(), b"a form of nip view", "sha256").hex()


def is_form_token(text: str, form_token: str) -> bool:
    """Compare the token of a sent form, in a time that tells nothing."""
    return hmac.compare_digest(text.encode("utf-8", "replace"), form_token.encode())


def is_of_program(scope: Scope) -> bool:
    """Tell whether the guard has seen the token in a header of a note's request."""
    return scope.get("state", {}).get(_IS_PROGRAM) is True


def is_loopback(host: str) -> bool:
    """Tell whether a name or address is this machine's alone. No name server is asked."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Lets through who knows the token, by a name of this machine, to look and to write notes."""

    def __init__(
        self, app: ASGIApp, token: str | None, hosts: Collection[str] = (), cookie: str = "nip_view"
    ) -> None:
        """With `token` None no user is asked for one, and nothing is written.

        `hosts` are names besides this machine's.
        """
        self._app, self._token, self._cookie = app, token, cookie
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # there are no web sockets here

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Cache-Control", "no-store")
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._refuse(scope)
        await (self._app if answer is None else answer)(scope, receive, with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._is_known(headers.get("host", "")):
            return PlainTextResponse(
                "This name is not the viewer's. Use the address that nip view has printed.\n",
                status_code=421,
            )
        if scope["method"] == "POST" and _NOTE.fullmatch(str(scope["path"])):
            return self._refuse_note(headers, scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Nothing can be changed here.\n", 405, {"Allow": "GET, HEAD"})
        if self._token is None:
            return None
        # 1. The token in the address: it becomes a cookie, and the address is left at once.
        query = QueryParams(scope["query_string"]).multi_items()
        offered = [value for name, value in query if name == "token"]
        if offered and self._is_token(offered[-1]):
            return self._set_cookie(str(scope["path"]), [p for p in query if p[0] != "token"])
        # 2. The cookie, or for programs a header.
        return None if self._is_let_in(headers) else self._want_token()

    def _refuse_note(self, headers: Headers, scope: Scope) -> Response | None:
        """Refuse a form that does not come from a page of this viewer, or is too long."""
        if self._token is None:
            words = "A viewer without a token takes no notes; start nip view without --no-token."
            return PlainTextResponse(f"{words}\n", 403)
        if not self._is_let_in(headers):
            return self._want_token()
        scope.setdefault("state", {})[_IS_PROGRAM] = self._has_bearer(headers)
        if not _comes_from_here(headers, scope.get("scheme", "http")):
            return PlainTextResponse("Notes are taken from the viewer's own pages alone.\n", 403)
        length = headers.get("content-length", "")
        # With both headers the length would be that of the pieces, however many they are.
        if "transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
            return PlainTextResponse("The length of the note has to be said before.\n", 411)
        if len(length) > 9 or int(length) > MOST_BODY_BYTES:
            return PlainTextResponse("The note is too long.\n", 413)
        return None

    @staticmethod
    def _want_token() -> Response:
        return PlainTextResponse(
            "The viewer wants its token: open the whole address that nip view has printed, which "
            "ends in ?token=… . Programs send it as Authorization: Bearer.\n",
            status_code=401,
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _is_known(self, host: str) -> bool:
        """Tell whether a host is a number or a known name.

        A name server can point a name at this machine, and no number."""
        name = host.lower()
        name = name.partition("]")[0][1:] if name.startswith("[") else name.partition(":")[0]
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _is_token(self, text: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._token.encode())

    def _has_bearer(self, headers: Headers) -> bool:
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self._is_token(bearer.strip())

    def _is_let_in(self, headers: Headers) -> bool:
        if self._has_bearer(headers):
            return True
        # Of other servers of this machine there may be any cookies, which a strict parser stops at.
        cookie = cookie_parser(headers.get("cookie", "")).get(self._cookie)
        return cookie is not None and self._is_token(cookie)

    def _set_cookie(self, path: str, query: list[tuple[str, str]]) -> Response:
        # A page that goes on by itself, and not a redirect: after a click in another site's page
        # browsers keep a strict cookie back until a page of this site asks.
        path = "/" + path.lstrip("/")  # "//host" would be another site
        target = quote(path) + (f"?{urlencode(query)}" if query else "")
        address = html.escape(target, quote=True)
        response = HTMLResponse(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>nip view</title>'
            f'<meta http-equiv="refresh" content="0;url={address}">'
            f'<p><a href="{address}">Go on</a></p></html>'
        )
        # Until the browser is closed: it is sent to every server of this name, on any port.
        response.set_cookie(self._cookie, str(self._token), httponly=True, samesite="strict")
        return response


def _comes_from_here(headers: Headers, scheme: str) -> bool:
    """Tell whether a request comes from a page of this viewer, or from no page at all.

    Browsers say so twice, but for the one header if the address is not encrypted and not of this
    machine. A page without an origin of its own says "null".
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is None:
        return True
    # Letter by letter, as browsers write an origin in one way; it need not be an address at all.
    return origin.lower() == f"{scheme}://{headers.get('host', '')}".lower()
