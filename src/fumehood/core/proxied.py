"""The variables that lead programs to the proxy: most know the first few, some want their own."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_USUAL = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# Each is preferred to a configuration file that names another proxy.
_URLS = (
    "PIP_PROXY", "npm_config_proxy", "npm_config_https_proxy", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY",
    "CARGO_HTTP_PROXY",
)  # fmt: skip
_NOT_BY_PROXY = ("localhost", "127.0.0.1", "::1")
SETTINGS = frozenset(
    {
        *_USUAL, *(name.lower() for name in _USUAL), *_URLS, "NO_PROXY", "no_proxy", "FTP_PROXY", "ftp_proxy",
        "RSYNC_PROXY", "SOCKS_PROXY", "socks_proxy", "npm_config_noproxy",
    }
)  # fmt: skip


def variables(port: int, named: tuple[str, ...], before: Mapping[str, str]) -> dict[str, str]:
    """Return what a command's environment gets; `named` are hosts of this machine that it reaches by the proxy."""
    place = f"127.0.0.1:{port}"
    url = f"http://{place}"
    direct = ",".join(host for host in _NOT_BY_PROXY if host not in named)
    found = {name: url for each in _USUAL for name in (each, each.lower())}
    found |= dict.fromkeys(_URLS, url)
    found |= {"NO_PROXY": direct, "no_proxy": direct, "npm_config_noproxy": direct, "RSYNC_PROXY": place}
    found |= {"NODE_USE_ENV_PROXY": "1", "ELECTRON_GET_USE_PROXY": "1"}
    java = [
        f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={port}" for scheme in ("http", "https")
    ] + ["-Dhttp.nonProxyHosts=" + direct.replace("::1", "[::1]").replace(",", "|")]  # fmt: skip
    options = before.get("JAVA_TOOL_OPTIONS", "")
    return found | {"JAVA_TOOL_OPTIONS": " ".join([*([options] if options else []), *java])}


def shared(before: Mapping[str, str], outside: Mapping[str, str]) -> dict[str, str]:
    """Return the person's own settings, for a command that has their network."""
    return {name: value for name, value in outside.items() if name in SETTINGS and name not in before}
