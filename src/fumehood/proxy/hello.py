"""Which host a TLS client asks for in its first message, read by OpenSSL rather than by a parser of ours.

A tunnel to one host whose client then asks for another there is how a granted host on a shared server is used
to reach one that was not granted.
"""

from __future__ import annotations

import ssl

HANDSHAKE = 0x16
LONGEST = 1 << 16  # bytes; with a hybrid key exchange and many extensions, a real one has 2 KiB


class NotUnderstood(Exception):
    """It begins like TLS but is none that OpenSSL can read."""


class Hello:
    """A client's first message while it comes in."""

    def __init__(self) -> None:
        self._incoming = ssl.MemoryBIO()
        self.is_complete = False
        self.server_name: str | None = None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = self._named
        self._server = context.wrap_bio(self._incoming, ssl.MemoryBIO(), server_side=True)
        self._size = 0

    def _named(self, _server: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        self.is_complete, self.server_name = True, name
        return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR  # we are not the server, so it ends here

    def feed(self, data: bytes) -> bool:
        """Take in a piece; tell whether the name is known now. Raises NotUnderstood."""
        self._size += len(data)
        self._incoming.write(data)
        try:
            self._server.do_handshake()
        except ssl.SSLWantReadError:
            if self._size > LONGEST:
                raise NotUnderstood("the first message is too long") from None
        except ssl.SSLError as error:
            if not self.is_complete:
                raise NotUnderstood(f"no TLS that can be read: {error.reason or error}") from error
        return self.is_complete
