"""Who may use the console: the token, requests from other sites, and the headers that keep a page safe."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]

COOKIE: Final = "glidemq_console"
HEADER: Final = b"x-glidemq"
"""A header that no form of another site can send."""
MAX_SESSION_BYTES: Final = 4_096
_LOCAL: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_UNKNOWN: Final = (401, "the token is missing or wrong", "enter the token that glidemq ui printed")


class Access:
    """Lets a request through if it may; an ASGI middleware.

    Args:
        app: What it protects.
        token: What a user must know; '': nobody is asked, and only names of this machine are answered unless
            ``is_behind_proxy``.
        is_behind_proxy: Somebody else signs people in, and the name in the request is theirs.
        close: Closes what the application has opened.
    """

    def __init__(
        self, app: App, *, token: str, is_behind_proxy: bool, close: Callable[[], Awaitable[None]]
    ) -> None:
        self._app, self._token, self._is_behind_proxy, self._close = app, token, is_behind_proxy, close
        self._proof = sha256(f"{COOKIE} {token}".encode()).hexdigest()  # a cookie cannot hold every token
        self._cookie_name = f"{COOKIE}_{self._proof[:8]}"  # consoles on other ports share the cookies

    async def aclose(self) -> None:
        """Close the connections to the server."""
        await self._close()

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Answer, or pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _with_headers(send)
        headers = dict(scope["headers"])
        if refusal := self._refusal(scope, headers):
            await _answer(send, *refusal)
            return
        path = _path(scope)
        if path.startswith("/api/"):  # routes decode each name by itself, since it may contain a slash
            scope = {**scope, "path": scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")}
        if path == "/api/session" and scope["method"] == "POST":
            await self._begin(scope, receive, send)
        elif path == "/" and (given := parse_qs(scope.get("query_string", b"").decode()).get("token")):
            await self._enter(scope, send, given[0])
        elif path.startswith(("/api/", "/metrics", "/of")) and not self._is_known(headers):
            await _answer(
                send, 401, "the token is missing or wrong", "enter the token that glidemq ui printed"
            )
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: MutableMapping[bytes, bytes]) -> tuple[int, str, str] | None:
        """Why a request must not be answered, whoever sends it."""
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._token and not self._is_behind_proxy and _name(host) not in _LOCAL:
            return (
                421,
                f"this console answers to localhost only, not to {host!r:.80}",
                "start it with --token, or with --behind-proxy if a proxy signs people in",
            )
        if scope["method"] in ("GET", "HEAD"):
            return None
        origin = headers.get(b"origin", b"").decode("latin-1")
        if HEADER not in headers:
            return 403, "a change needs the header X-GlideMQ", "send X-GlideMQ: 1"
        if origin and not self._is_behind_proxy and _place(origin) != host:
            return (
                403,
                "this request comes from another site",
                "a proxy in front of the console must keep the host; or start it with --behind-proxy",
            )
        return None

    def _is_known(self, headers: MutableMapping[bytes, bytes]) -> bool:
        if not self._token:
            return True
        scheme, _, given = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() == "bearer" and self._fits(given):
            return True
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return False
        found = cookies.get(self._cookie_name)
        return found is not None and hmac.compare_digest(found.value.encode(), self._proof.encode())

    def _fits(self, given: str) -> bool:
        return bool(self._token) and hmac.compare_digest(given.encode(), self._token.encode())

    async def _begin(self, scope: Scope, receive: Any, send: Send) -> None:
        """Set the cookie for a token in the body."""
        body, more = b"", True
        while more and len(body) <= MAX_SESSION_BYTES:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        try:
            given = json.loads(body)["token"]
        except (ValueError, KeyError, TypeError):
            given = ""
        if self._token and not (isinstance(given, str) and self._fits(given)):
            await _answer(
                send, 401, "the token is missing or wrong", "enter the token that glidemq ui printed"
            )
            return
        await _reply(send, 200, b"{}", self._cookie(scope))

    async def _enter(self, scope: Scope, send: Send, given: str) -> None:
        """Open the page for a token in the address, and take it out of the address."""
        cookie = self._cookie(scope) if self._fits(given) else ()
        await _reply(send, 303, b"", [(b"location", b"./"), *cookie])

    def _cookie(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        path = scope.get("root_path", "") or "/"
        text = f"{self._cookie_name}={self._proof}; Path={path}; HttpOnly; SameSite=Strict{secure}"
        return [(b"set-cookie", text.encode("latin-1"))] if self._token else []


def _path(scope: Scope) -> str:
    """The path below that at which the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] or "/" if root and path.startswith(root) else path


def _name(host: str) -> str:
    """The name in a host header, without the port."""
    if "@" in host:
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # such as of a bracket that is not closed
        return ""


def _place(origin: str) -> str:
    """The host and port of an origin."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_HEADERS]
        await send(message)

    return sending


async def _answer(send: Send, status: int, error: str, fix: str) -> None:
    await _reply(send, status, json.dumps({"error": error, "fix": fix}).encode(), ())


async def _reply(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*kind, *headers]})
    await send({"type": "http.response.body", "body": body})
