"""Who may use the page: this machine's own person, by a link that works once, and no other page's script.

The link's token becomes a strict cookie. Host and Origin are compared with the address that is served, so neither a
name that leads here (DNS rebinding) nor another site's form or script gets anything. Nothing may be loaded from
elsewhere, and no script or style may stand in the page itself, so text that a command wrote stays text.
"""

from __future__ import annotations

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.responses import HTMLResponse, PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self';"
    " frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()), (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"), (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]  # fmt: skip
_SAFE = frozenset({"GET", "HEAD"})
_WELCOME = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Fumehood</title>'
    '<meta http-equiv="refresh" content="0; url=/"><p><a href="/">Go on</a></p></html>\n'
)
_USED = (
    "This browser is not known here: the link was used already, or the page was started anew since.\n"
    "End `fumehood web`, start it again, and open the link that it prints.\n"
)


class Gate:
    """Lets in whoever came by the link; the interface for programs has a token of its own."""

    def __init__(self, app: ASGIApp, port: int, hosts: frozenset[str], api_token: str) -> None:
        self._app = app
        self._hosts = hosts  # with the port, as browsers write it
        self._api_token = api_token
        self.token = secrets.token_urlsafe(24)
        self._cookie = secrets.token_urlsafe(32)
        # Cookies don't know ports: two pages of one person must not take each other's.
        self._name = f"fumehood-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, with_headers)
        else:
            await self._app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | HTMLResponse | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host, path = headers.get("host", ""), scope["path"]
        if host not in self._hosts:
            return PlainTextResponse("This is not the address of the page.\n", 400)
        origins = (f"http://{host}", f"https://{host}")  # a person's own tunnel may speak TLS
        if path.startswith("/api/"):
            token = headers.get("authorization", "").removeprefix("Bearer ")
            is_ours = headers.get("origin", origins[0]) in origins and _same(token, self._api_token)
            return None if is_ours else PlainTextResponse("A token is needed.\n", 401)
        # A browser that does not say where a form comes from is too old to be told from another site.
        if scope["method"] not in _SAFE and headers.get("origin") not in origins:
            return PlainTextResponse("This came from another site.\n", 403)
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if path == "/" and token:
            return self._welcome(token)
        is_known = path.startswith("/static/") or _same(self._cookie_of(headers), self._cookie)
        return None if is_known else PlainTextResponse(_USED, 403)

    def _welcome(self, token: str) -> PlainTextResponse | HTMLResponse:
        if not self.token or not _same(token, self.token):
            return PlainTextResponse(_USED, 403)
        self.token = ""
        # Not by a redirect: a browser that came from a link on another site would not send a strict cookie along.
        response = HTMLResponse(_WELCOME)
        response.set_cookie(self._name, self._cookie, httponly=True, samesite="strict", path="/")
        return response

    def _cookie_of(self, headers: dict[str, str]) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._name)
        except CookieError:
            return ""
        return cookie.value if cookie is not None else ""


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
