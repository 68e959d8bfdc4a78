"""The asynchronous transport: an aiohttp session to one server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Final

import aiohttp
from yarl import URL

from topics.client.transport import CONNECT_S_MAX, PIECE_BYTES, Answer, HttpRequest, closed, unreachable
from topics.client.url import Place, tls_context

CALLS: Final = 64
"""At most this many under way at once, each on its connection; further ones wait for their turn. Streams and calls that
the server holds back are not among them: they may last for ever, and nobody's append may wait for that."""

_FAILURES: Final = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


class SessionTransport:
    def __init__(self, place: Place, ca_file: str | None = None) -> None:
        self._url = place.url
        self._headers = place.headers
        self._tls: ssl.SSLContext | bool = tls_context(ca_file) if place.scheme == "https" else True
        self._session: aiohttp.ClientSession | None = None
        self._turns = asyncio.Semaphore(CALLS)
        self._closed = False

    def _opened_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise closed()
        # Made on first use, because a session belongs to the loop that it is made in.
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
            self._session = aiohttp.ClientSession(
                connector=connector, headers=self._headers, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def send(self, request: HttpRequest, timeout_s: float) -> Answer:
        try:
            async with asyncio.timeout(timeout_s):
                if request.waits:
                    return await self._answer(request)
                async with self._turns:
                    return await self._answer(request)
        except _FAILURES as error:
            raise unreachable(self._url, error) from error

    async def _answer(self, request: HttpRequest) -> Answer:
        async with await self._request(request, aiohttp.ClientTimeout(total=None, connect=CONNECT_S_MAX)) as response:
            return Answer(response.status, _lower(response.headers), await response.read())

    async def open(self, request: HttpRequest, timeout_s: float) -> SessionAnswer:
        try:
            timeout = aiohttp.ClientTimeout(total=None, connect=min(CONNECT_S_MAX, timeout_s), sock_read=timeout_s)
            return SessionAnswer(await self._request(request, timeout), self._url)
        except _FAILURES as error:
            raise unreachable(self._url, error) from error

    async def _request(self, request: HttpRequest, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        return await self._opened_session().request(
            request.method,
            URL(self._url + request.target, encoded=True),
            data=request.body,
            headers=request.headers,
            allow_redirects=False,
            timeout=timeout,
        )

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()


class SessionAnswer:
    def __init__(self, response: aiohttp.ClientResponse, url: str) -> None:
        self._response = response
        self._url = url
        self.status = response.status
        self.headers: Mapping[str, str] = _lower(response.headers)

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._response.content.iter_chunked(PIECE_BYTES):
                yield piece
        except _FAILURES as error:
            raise unreachable(self._url, error) from error

    async def close(self) -> None:
        # Closes the connection unless the body was read to its end; then it went back to the pool already.
        self._response.close()


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
