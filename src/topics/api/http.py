"""A request and an answer as plain values: what handlers see of HTTP, whichever version carried it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from topics.api.known import Known
    from topics.api.ticker import Ticker

Header = tuple[bytes, bytes]


@dataclass(slots=True)
class Head:
    """A request up to its body."""

    method: str
    target: bytes
    """As sent: raw path and query."""
    path: str
    """The raw path, not percent-decoded, without the query."""
    query: str
    """The raw query, without the `?`; empty if there is none."""
    headers: dict[bytes, bytes]
    """Names in lower case; of a repeated one the last, except `cookie` and comma lists, which are joined. Not to be
    changed: requests with equal heads share it."""
    version: str
    """`1.0`, `1.1` or `2`."""
    peer: str
    """Address of the client, for logs."""
    secure: bool
    """True over TLS."""
    received_ns: int
    """Monotonic time at which the head was complete."""

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


@dataclass(slots=True)
class Request:
    head: Head
    body: bytes
    """Whole, and inflated if it came compressed."""
    context: object = None
    """Whatever `App.begin` put there: the matched route, the key."""


@dataclass(slots=True)
class Response:
    status: int
    body: bytes = b""
    content_type: bytes = b"application/json"
    headers: list[Header] = field(default_factory=list)
    """Further headers; the transport adds content-length, content-type, date and, where asked for, compression."""
    close: bool = False
    """End the connection after this answer (HTTP/1) or leave it (HTTP/2)."""


class Frames(Protocol):
    """What many streams send alike: made once, in the form that each protocol wants."""

    @property
    def plain(self) -> bytes: ...

    @property
    def chunked(self) -> bytes:
        """With the framing of HTTP/1.1, a chunk for each frame."""
        ...


class Shareable(Protocol):
    """What may have a connection of its own, to which those can write who have the bytes in its form already."""

    def share(self, told: Callable[[], None]) -> int:
        """The file to write to until `told` is called; -1 if that cannot be now. It is called once, before anything
        else is written there and before the file is given up."""
        ...

    def unshare(self) -> None:
        """Nobody else writes to it any more, and nobody is told."""
        ...

    def queue(self, data: memoryview) -> int:
        """Queue what the file did not take; where it ends, as `written` would say."""
        ...


class Sink(Shareable, Protocol):
    """Where a stream writes. Bytes count as handed over when they left our buffer for the kernel's."""

    on_gone: Callable[[], None] | None
    """Called once when the peer left or the connection broke, for streams that have no task."""

    def write(self, data: bytes) -> None:
        """Queue a piece. The caller watches `buffered` and does not queue without bound."""
        ...

    chunked: bool
    """Whether it takes the chunked form of frames."""

    def write_frames(self, frames: Frames) -> int:
        """Send or queue them; where they end, as `written` would say, or 0 if the kernel has taken all of them."""
        ...

    @property
    def written(self) -> int:
        """A position that grows with everything written."""
        ...

    @property
    def taken(self) -> int:
        """Up to here the kernel is known to have taken it. Keeps its last value when the peer is gone."""
        ...

    def when_drained(self, tell: Callable[[], None]) -> None:
        """Call once when the kernel has taken all, or nearly all, that was written, or the peer is gone; not at
        once."""
        ...

    @property
    def buffered(self) -> int:
        """Bytes written that the kernel has not taken."""
        ...

    async def drain(self) -> None:
        """Return when `buffered` fell below the low-water mark, or the peer is gone."""
        ...

    @property
    def gone(self) -> asyncio.Event:
        """Set when the peer left or the connection broke."""
        ...

    def finish(self) -> None:
        """The regular end of the stream."""
        ...

    def abort(self) -> None:
        """End it so that the peer can tell it was cut."""
        ...


@dataclass(slots=True)
class Stream:
    """An answer whose body is written over time. The transport sends the head, then calls `run`. What that returns to
    be awaited is run as a task, whose end is the stream's; without it the stream lives on by callbacks, and ends when
    it says so."""

    status: int
    content_type: bytes
    run: Callable[[Sink], Awaitable[None] | None]
    headers: list[Header] = field(default_factory=list)


@dataclass(slots=True)
class Socket:
    """The answer to a WebSocket upgrade: accept it and run this with the accepted connection."""

    run: Callable[[WebSocket], Awaitable[None]]


class WebSocket(Shareable, Protocol):
    async def receive(self) -> str | bytes | None:
        """The next message, `bytes` if it was a binary one; None when the peer has gone or closed."""
        ...

    def send(self, message: bytes) -> None:
        """Queue a text message (UTF-8)."""
        ...

    def send_frame(self, frame: bytes) -> int:
        """Send or queue what is framed already, as many sockets send it alike; where it ends, as `written` would say,
        or 0 if the kernel has taken all of it."""
        ...

    @property
    def written(self) -> int: ...

    @property
    def taken(self) -> int: ...

    @property
    def buffered(self) -> int: ...

    def when_drained(self, tell: Callable[[], None]) -> None: ...

    async def drain(self) -> None: ...

    @property
    def gone(self) -> asyncio.Event: ...

    def close(self, code: int, reason: str = "") -> None: ...


class Budget(Protocol):
    """Bytes of memory that requests share."""

    def take(self, size: int, mine: int) -> bool:
        """More for somebody who holds `mine` already; False if there is no room."""
        ...

    def give(self, size: int) -> None: ...

    def refusal(self) -> Response:
        """For whoever found no room."""
        ...


@dataclass(slots=True)
class Admission:
    """What `begin` says to a head it lets pass."""

    context: object
    body_limit: int
    """Bytes of body, after inflation; a larger one is answered 413 without reading on."""
    release: Callable[[], None] | None = None
    """Called once when the answer has been produced, or, for a stream, when its head was sent; frees slots."""
    bodies: Budget | None = None
    """What its body is counted against; None = nothing."""


Answer = Response | Stream | Socket


class Later:
    """An answer that is still to come: told on the loop, once, to whoever asked. A Future does the same and costs a
    turn of the loop and three objects more for each request. It may be awaited too."""

    __slots__ = ("_fail", "_tell")

    placed = False
    """What was asked for is ordered already, and only its end is awaited: nothing begun now comes before it."""

    _tell: Callable[[Answer], None]
    _fail: Callable[[BaseException], None]

    def then(self, tell: Callable[[Answer], None], fail: Callable[[BaseException], None]) -> None:
        """Called once, before the loop gets its next turn."""
        self._tell = tell
        self._fail = fail

    def cancel(self) -> None:
        """Nobody waits any more: neither of both is called."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Answer]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def tell(answer: Answer) -> None:
            if not future.cancelled():
                future.set_result(answer)

        def fail(error: BaseException) -> None:
            if not future.cancelled():
                future.set_exception(error)

        self.then(tell, fail)
        try:
            return (yield from future)
        except asyncio.CancelledError:
            self.cancel()
            raise


class Rider(Protocol):
    """A connection on which a request went by express. It is told one of three things, once, on the loop, and of one
    request after the other in their order. `known` is what the transport knows of the head."""

    ending: bool
    """The last answer is due: it has to be said in full."""
    ticker: Ticker

    def arrived(self, answer: bytes) -> None:
        """The whole answer in HTTP/1.1, on a connection that lives on."""
        ...

    def arrived_late(self, known: Known, answer: Response) -> None:
        """Any other answer."""
        ...

    def sent_back(self, known: Known, data: bytes, start: int) -> None:
        """Nothing was done for it; it has to take the usual way."""
        ...


class Express(Protocol):
    """The short way of requests with one and the same head, from their bytes to the bytes of an answer, for those that
    come often and can be dealt with many at a time."""

    alone: bool
    """A connection has at most one of them under way: an answer does not wait for one that was asked for before."""

    def take(self, rider: Rider, known: Known, data: bytes, start: int) -> bool:
        """A request whose body begins at `start`; False if it has to take the usual way. The rider hears of
        one that was taken in a later turn of the loop."""
        ...


class App(Protocol):
    """What the transport drives. `begin` sees each head before its body is read (authentication, routing, limits);
    `handle` gets the whole request. Neither raises: errors are answers. What `handle` returns to be awaited belongs to
    the transport, which cancels it when the client leaves; a `Later` is cheapest, a coroutine costs a task."""

    def begin(self, head: Head) -> Admission | Response: ...

    def handle(self, request: Request) -> Answer | Later | Awaitable[Answer]: ...

    def express(self, head: Head, admission: Admission, answer_max: int | None) -> Express | None:
        """For requests with exactly this head, which `begin` let pass, on HTTP/1.1 connections that live on. Answers
        have to be smaller than `answer_max`, or coded as the client accepts it."""
        ...

    def too_large(self, head: Head) -> Response: ...

    def unsupported_encoding(self, head: Head) -> Response:
        """For a body whose `content-encoding` is neither gzip nor zstd: 415."""
        ...

    def bad_request(self, why: str) -> Response:
        """For what cannot be parsed as HTTP at all."""
        ...
