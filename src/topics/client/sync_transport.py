"""The synchronous transport: a pool of urllib3 connections to one server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import urllib3
from urllib3.exceptions import HTTPError, IncompleteRead, ProtocolError

from topics.client.transport import CONNECT_S_MAX, PIECE_BYTES, Answer, HttpRequest, unreachable
from topics.client.url import Place, tls_context

CONNECTIONS: Final = 64
"""Kept open for reuse. More threads than this open further connections, which are closed after use."""


class PoolTransport:
    def __init__(self, place: Place, ca_file: str | None = None) -> None:
        self._url = place.url
        self._headers = place.headers
        if place.scheme == "https":
            self._pool: urllib3.HTTPConnectionPool = urllib3.HTTPSConnectionPool(
                place.host, place.port, maxsize=CONNECTIONS, ssl_context=tls_context(ca_file)
            )
        else:
            self._pool = urllib3.HTTPConnectionPool(place.host, place.port, maxsize=CONNECTIONS)

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
                timeout=urllib3.Timeout(connect=min(CONNECT_S_MAX, timeout_s), read=timeout_s),
                preload_content=preload,
            )
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
