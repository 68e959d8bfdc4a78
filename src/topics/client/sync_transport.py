"""The synchronous transport: a pool of urllib3 connections to one server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ClosedPoolError, HTTPError, IncompleteRead, ProtocolError

from topics.client.transport import CONNECT_S_MAX, PIECE_BYTES, Answer, HttpRequest, closed, unreachable
from topics.client.url import Place, tls_context

CONNECTIONS: Final = 64
"""Kept open for reuse. More threads than this open further connections, which are closed after use."""


class _Patient(HTTPConnection):
    """urllib3 gives the sending of a body as long as the opening of the connection. A large one over a slow line takes
    longer, so here a call has its whole time for both, and only the opening is held to its bound."""

    def __init__(self, *place: Any, connect_s: float, **options: Any) -> None:
        super().__init__(*place, **options)
        self._connect_s = connect_s

    def connect(self) -> None:
        timeout_s = self.timeout
        self.timeout = self._connect_s if timeout_s is None else min(self._connect_s, timeout_s)
        try:
            super().connect()
        finally:
            self.timeout = timeout_s

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        self.sock.settimeout(self.timeout)
        super().send(data)


class _PatientTls(_Patient, HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Patient


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _PatientTls


class PoolTransport:
    def __init__(self, place: Place, ca_file: str | None = None, connect_s: float = CONNECT_S_MAX) -> None:
        self._url = place.url
        self._headers = place.headers
        if place.scheme == "https":
            self._pool: urllib3.HTTPConnectionPool = _TlsPool(
                place.host, place.port, maxsize=CONNECTIONS, connect_s=connect_s, ssl_context=tls_context(ca_file)
            )
        else:
            self._pool = _Pool(place.host, place.port, maxsize=CONNECTIONS, connect_s=connect_s)

    def send(self, request: HttpRequest, timeout_s: float) -> Answer:
        response = self._request(request, timeout_s, preload=True)
        return Answer(response.status, _lower(response.headers), response.data)

    def open(self, request: HttpRequest, timeout_s: float) -> PoolAnswer:
        return PoolAnswer(self._request(request, timeout_s, preload=False), self._url)

    def _request(self, request: HttpRequest, timeout_s: float, preload: bool) -> urllib3.BaseHTTPResponse:
        try:
            return self._pool.urlopen(
                request.method,
                request.target,
                body=request.body,
                headers={**self._headers, **request.headers},
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=timeout_s, read=timeout_s),
                preload_content=preload,
            )
        except ClosedPoolError:
            raise closed() from None
        except (HTTPError, OSError) as error:
            raise unreachable(self._url, error) from error

    def close(self) -> None:
        self._pool.close()


class PoolAnswer:
    def __init__(self, response: urllib3.BaseHTTPResponse, url: str) -> None:
        self._response = response
        self._url = url
        self.status = response.status
        self.headers: Mapping[str, str] = _lower(response.headers)

    def pieces(self) -> Iterator[bytes]:
        try:
            yield from self._response.stream(PIECE_BYTES)
        except (IncompleteRead, ProtocolError, HTTPError, OSError, ValueError) as error:
            raise unreachable(self._url, error) from error

    def close(self) -> None:
        # A body that was not read to its end would be taken for the next answer: the connection goes with it.
        if not getattr(self._response, "isclosed", lambda: False)():
            self._response.close()
        self._response.release_conn()


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
