"""Where a server is, and the token for it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import urlsplit

from topics.model.errors import InvalidRequest

DEFAULT_URL: Final = "http://127.0.0.1:4000"


@dataclass(frozen=True, slots=True)
class Place:
    scheme: Literal["http", "https"]
    host: str
    port: int
    token: str | None = field(default=None, repr=False)

    @staticmethod
    def parse(url: str, token: str | None) -> Place:
        remedy = f"write it as {DEFAULT_URL}"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"the URL of the server cannot be read ({error}); {remedy}") from None
        if parts.username is not None or parts.password is not None:
            raise InvalidRequest("the URL of the server holds a user or password; give the key as token= instead")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"{url!r} is not the URL of a server; {remedy}")
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise InvalidRequest(f"the URL {url!r} holds more than scheme, host and port; {remedy}")
        if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token and token):
            raise InvalidRequest("the token is empty or holds characters that a header cannot carry")
        scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
        return Place(scheme, parts.hostname, port or (443 if scheme == "https" else 80), token)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """Sent with every request."""
        headers = {"user-agent": "topics-python"}
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        return headers


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise InvalidRequest(f"ca_file {ca_file!r} cannot be used: {error}") from error
