"""`fumehood web` as a process of its own, and somebody who uses it without a browser."""

import html
import http.client
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

from forked import WEB, command_line, loaded
from patience import LONG_S


class Answer(NamedTuple):
    """What the page answered."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def where(self) -> str:
        """Where it leads on to."""
        return self.headers.get("location", "")


class WebPage:
    """The page, served by a real process on loopback; a `with` block ends it."""

    def __init__(self, *words: str, debug: bool = False, opens: bool = False) -> None:
        environment = {**os.environ, **({"FUMEHOOD_DEBUG": "1"} if debug else {})}
        # One that opens a browser is started as people start it.
        line = [*(command_line() if opens else loaded(WEB).client()), "web", *([] if opens else ["--no-open"]), *words]
        self.process = subprocess.Popen(
            line, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            env=environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().split()[-1]
        self.host, _, self.token = self.link.removeprefix("http://").partition("/?token=")
        self.cookie = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=LONG_S)

    def ask(
        self, method: str, path: str, body: str | None = None, **headers: str
    ) -> Answer:
        """Ask for something; names of headers are written with underscores."""
        connection = http.client.HTTPConnection(self.host, timeout=LONG_S)
        sent = {"Host": self.host, **({"Cookie": self.cookie} if self.cookie else {})}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host=True)
        for name, value in sent.items():
            connection.putheader(name, value)
        data = None if body is None else body.encode()
        if data is not None:
            connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, text)

    def enter(self) -> Answer:
        """Follow the link, and keep the cookie."""
        answer = self.ask("GET", f"/?token={self.token}")
        self.cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        return answer

    def get(self, path: str, **headers: str) -> str:
        """Return a view, which must be there."""
        answer = self.ask("GET", path, **headers)
        assert answer.status == 200, answer.text.partition('role="alert">')[2] or answer
        return answer.text

    def first(self, path: str, until: bytes) -> str:
        """Return what a stream of events says until something comes."""
        connection = http.client.HTTPConnection(self.host, timeout=LONG_S)
        connection.request("GET", path, headers={"Host": self.host, "Cookie": self.cookie})
        response = connection.getresponse()
        said = b""
        while until not in said:
            piece = response.read1(1 << 16)
            assert piece, said[-500:]
            said += piece
        connection.close()
        return said.decode()

    def send(self, path: str, /, **fields: str | list[str]) -> Answer:
        """Send a form, as the page itself would."""
        return self.ask(
            "POST", path, urlencode(fields, doseq=True), Origin=f"http://{self.host}",
            Content_Type="application/x-www-form-urlencoded",
        )  # fmt: skip

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Use the interface for programs, with its token."""
        token = Path(os.environ["XDG_STATE_HOME"], "fumehood/api-token").read_text()
        answer = self.ask(method, path, None if body is None else json.dumps(body), Authorization=f"Bearer {token}")
        assert answer.headers["content-type"] == "application/json", answer
        return json.loads(answer.text)


def fields_of(text: str, action: str) -> dict[str, str]:
    """Return the hidden fields of the form that leads to an address."""
    form = next(part for part in re.findall(r"<form.*?</form>", text, re.DOTALL) if action in part)
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in hidden}
