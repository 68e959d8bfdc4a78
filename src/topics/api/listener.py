"""The listening socket: accepts connections, ticks their clocks, and stops them in order."""

from __future__ import annotations

import asyncio
import ssl

from topics.api.http import App
from topics.api.options import TlsOptions, TransportOptions
from topics.api.protocol import Connection, Shared
from topics.api.ticker import Ticker
from topics.host.clock import Clock, SystemClock
from topics.model.errors import InvalidConfig

BACKLOG = 2048


class Listener:
    """Made by `serve`. Belongs to the loop it was made on."""

    def __init__(self, shared: Shared, tls: TlsOptions | None, context: ssl.SSLContext | None) -> None:
        self._shared = shared
        self._tls = tls
        self._context = context
        self._server: asyncio.Server | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        shared.emptied = self._emptied.set

    async def open(self, host: str, port: int) -> None:
        self._server = await self._loop.create_server(
            lambda: Connection(self._shared), host, port, ssl=self._context, backlog=BACKLOG
        )
        self._tick()

    @property
    def port(self) -> int:
        """The port in use, also where any free one was asked for."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._shared.connections)

    @property
    def tasks(self) -> int:
        """Streams and WebSocket handlers running now."""
        return len(self._shared.tasks)

    def _tick(self) -> None:
        now = self._shared.ticker.tick()
        for connection in tuple(self._shared.connections):
            try:
                connection.tick(now)
            except Exception as error:
                # One broken connection must not stop the clock of the others.
                self._loop.call_exception_handler({"message": "a connection failed in its tick", "exception": error})
                connection.abort()
        self._timer = self._loop.call_later(self._shared.options.tick_s, self._tick)

    def reload_tls(self) -> None:
        """Read certificate and key again; connections made from now on get them. Raises and keeps the old ones if the
        files do not fit together."""
        if self._tls is None or self._context is None:
            return
        # Loading half of a pair would break the context in use, so a fresh one tries it first.
        _tls_context(self._tls)
        self._context.load_cert_chain(self._tls.cert, self._tls.key)

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, let what is under way end within `grace_s`, then cut the rest."""
        shared = self._shared
        if shared.stopping:
            return
        shared.stopping = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(shared.connections):
            connection.shutdown()
        await self._wait_until_empty(grace_s)
        for connection in tuple(shared.connections):
            connection.abort()
        await self._wait_until_empty(1.0)
        for task in tuple(shared.tasks):
            task.cancel()
        if shared.tasks:
            await asyncio.wait(tuple(shared.tasks), timeout=1.0)
        if self._timer is not None:
            self._timer.cancel()

    async def _wait_until_empty(self, limit_s: float) -> None:
        self._emptied.clear()
        if self._shared.connections:
            try:
                await asyncio.wait_for(self._emptied.wait(), limit_s)
            except TimeoutError:
                pass


async def serve(
    app: App,
    host: str,
    port: int,
    *,
    tls: TlsOptions | None = None,
    options: TransportOptions | None = None,
    clock: Clock | None = None,
) -> Listener:
    """Listen on `host` and `port` (0: any free one) and answer with `app`, until `Listener.stop`."""
    context = _tls_context(tls) if tls is not None else None
    ticker = Ticker(clock if clock is not None else SystemClock())
    shared = Shared(app, options if options is not None else TransportOptions(), ticker, secure=tls is not None)
    listener = Listener(shared, tls, context)
    await listener.open(host, port)
    return listener


def _tls_context(tls: TlsOptions) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        raise InvalidConfig(
            f"the certificate {tls.cert} and its key {tls.key} cannot be used: {error.strerror or error}"
        ) from error
    return context
