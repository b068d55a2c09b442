"""The person's own proxy, where this machine reaches the network by one (HTTPS_PROXY and its friends)."""

from __future__ import annotations

import base64
import socket
import urllib.parse
import urllib.request

from fumehood.core.hosts import shown
from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_ANSWER = 1 << 16


class Upstream(Value):
    """An HTTP proxy."""

    host: str
    port: int
    authorization: str = ""

    @staticmethod
    def chosen(environment: Mapping[str, str], host: str, port: int, *, tls: bool) -> Upstream | None:
        """Return the proxy that the environment names for a host, or None where it is reached directly."""
        lower = {name.lower(): value for name, value in environment.items() if value and name.islower()}
        upper = {name.lower(): value for name, value in environment.items() if value and name.isupper()}
        settings = upper | lower
        names = ("https_proxy", "all_proxy") if tls else ("http_proxy", "all_proxy")
        url = next((settings[name] for name in names if name in settings), "")
        if not url or _is_bypassed(settings.get("no_proxy", ""), host, port):
            return None
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise OSError(f"only http:// proxies can be used, not {parts.scheme}://")
        login = ""
        if parts.username is not None:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            login = "Basic " + base64.b64encode(pair.encode()).decode()
        return Upstream(host=parts.hostname, port=parts.port or 80, authorization=login)


def _is_bypassed(no_proxy: str, host: str, port: int) -> bool:
    bypass = getattr(urllib.request, "proxy_bypass_environment")  # noqa: B009 - not in the types, yet documented
    return bool(no_proxy) and bool(bypass(shown(host, port), {"no": no_proxy}) or bypass(host, {"no": no_proxy}))


def connect(upstream: Upstream, timeout: float) -> socket.socket:
    """Return a connection to the proxy itself."""
    return socket.create_connection((upstream.host, upstream.port), timeout)


def tunnel(upstream: Upstream, host: str, port: int, timeout: float) -> socket.socket:
    """Return a connection through the proxy; raises OSError with its answer where it refuses."""
    connection = connect(upstream, timeout)
    try:
        target = shown(host, port)
        login = f"Proxy-Authorization: {upstream.authorization}\r\n" if upstream.authorization else ""
        connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n".encode("ascii"))
        _check_answer(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_answer(connection: socket.socket) -> None:
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        # One byte at a time: what follows is the host's.
        piece = connection.recv(1)
        if not piece or len(answer) > _LONGEST_ANSWER:
            raise OSError("it closed the connection without an answer")
        answer += piece
    status = answer.split(b"\r\n")[0].decode("ascii", "replace")
    if not status.startswith("HTTP/1.") or status.split()[1:2] != ["200"]:
        raise OSError(f"it answered {status}")
