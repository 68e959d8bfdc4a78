"""The application without a socket: requests go to it as values."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from topics.api.app import Application, AppOptions
from topics.api.http import Frames, Head, Request, Response, Socket, Stream
from topics.api.live import LiveOptions
from topics.api.pump import Pump
from topics.api.service import Service
from topics.broker.broker import Broker
from topics.broker.warmth import Warmth
from topics.host.clock import SystemClock
from topics.host.fs import Fs, OsFs
from topics.host.ids import SystemIds
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions


class MovedClock(SystemClock):
    """Real time, plus what a test adds to it."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def advance(self, ms: int) -> None:
        self._ahead_ms += ms

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self._ahead_ms * 1_000_000


class Collected:
    """A sink that keeps what a stream writes."""

    chunked = False

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.gone = asyncio.Event()
        self.ended = asyncio.Event()
        self.finished = False
        self.buffered = 0
        self.on_gone: Callable[[], None] | None = None

    @property
    def written(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def taken(self) -> int:
        return self.written

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def share(self, told: Callable[[], None]) -> int:
        return -1

    def unshare(self) -> None:
        pass

    def queue(self, data: memoryview) -> int:
        self.pieces.append(bytes(data))
        return self.written

    def write_frames(self, frames: Frames) -> int:
        self.pieces.append(frames.plain)
        return self.written

    def when_drained(self, tell: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(tell)

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def finish(self) -> None:
        self.finished = True
        self.ended.set()

    def abort(self) -> None:
        self.gone.set()
        self.ended.set()


class Engine:
    """A store, its pump and the application on an event loop of their own."""

    def __init__(
        self,
        path: str,
        options: AppOptions | None = None,
        store: StoreOptions | None = None,
        fs: Fs | None = None,
        bytes_max: int = 0,
        ready: bool = True,
        live: LiveOptions | None = None,
    ) -> None:
        self.clock = MovedClock()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()
        self.app = Application(options or AppOptions(version="test"), self.clock)
        self.lock = threading.Lock()
        self.store = open_store(
            fs or OsFs(),
            path,
            store or StoreOptions(ttl_grace_ms=0, wal_file_bytes=1 << 20),
            self.clock,
            SystemIds(),
            self.lock,
        )
        self.store.ledger.bytes_max = bytes_max
        self.pump: Pump = self._on_loop(self._make_pump)
        self.readers = ThreadPoolExecutor(2)
        self.service = Service(
            Broker(self.store, self.clock),
            self.pump,
            self.clock,
            self.loop,
            self.readers,
            show_paths=True,
            keyring=self.app.options.keyring,
            live_options=live or LiveOptions(),
        )
        self.service.broker.warmth = Warmth(self.store, self.readers)
        if ready:
            self.app.service = self.service

    def _make_pump(self) -> Pump:
        return Pump(self.store, self.lock, self.loop)

    def _on_loop(self, make: Any) -> Any:
        async def run() -> Any:
            return make()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def exchange(self, head: Head, body: bytes) -> Response:
        return asyncio.run_coroutine_threadsafe(self._exchange(head, body), self.loop).result(40)

    async def _exchange(self, head: Head, body: bytes) -> Response:
        admission = self.app.begin(head)
        if isinstance(admission, Response):
            return admission
        try:
            if len(body) > admission.body_limit:
                return self.app.too_large(head)
            answer = self.app.handle(Request(head, body, admission.context))
            if not isinstance(answer, Response | Stream | Socket):
                answer = await answer
        finally:
            if admission.release is not None:
                admission.release()
        assert not isinstance(answer, Socket)
        if isinstance(answer, Stream) and head.method == "HEAD":
            return Response(answer.status, b"", answer.content_type, answer.headers)
        if isinstance(answer, Stream):
            sink = Collected()
            work = answer.run(sink)
            if work is not None:
                await work
            else:
                await sink.ended.wait()
            assert sink.finished, "a stream ends by saying so"
            return Response(answer.status, b"".join(sink.pieces), answer.content_type, answer.headers)
        return answer

    def close(self) -> None:
        self._on_loop(self.pump.stop_waiting)
        self._on_loop(self.service.live.stop)
        try:
            self.pump.close()
        finally:
            self.readers.shutdown()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()
