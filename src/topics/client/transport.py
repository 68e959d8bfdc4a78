"""What a client needs of an HTTP library: send a request, get the answer, whole or piece by piece.

A transport knows nothing of topics. It raises `Unreachable` for whatever kept an answer from arriving, `StreamCut`
where a body ended before its announced end, and `InvalidRequest` once it was closed. It follows no redirect: the token
is for this server alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from topics.model.errors import InvalidRequest, Unreachable

CONNECT_S_MAX: Final = 5.0
"""A server that does not take the connection in this time is tried again, or given up, sooner than one that thinks."""

PIECE_BYTES: Final = 256 * 1024
"""Size of the pieces in which a streamed body is read."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    target: str
    """Path and query, encoded, as they stand in the request line."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = field(default=None, repr=False)
    waits: bool = False
    """The server was asked to hold its answer back: the connection is busy for long, and nobody may queue for it."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = field(repr=False)


class OpenAnswer(Protocol):
    """An answer whose body is read piece by piece. Close it, read to its end or not."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def pieces(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class Transport(Protocol):
    def send(self, request: HttpRequest, timeout_s: float) -> Answer: ...

    def open(self, request: HttpRequest, timeout_s: float) -> OpenAnswer:
        """Like `send`, but the body is still to be read; `timeout_s` bounds the head, then each silence."""
        ...

    def close(self) -> None: ...


class AsyncOpenAnswer(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def pieces(self) -> AsyncIterator[bytes]: ...

    async def close(self) -> None: ...


class AsyncTransport(Protocol):
    """The same, awaited."""

    async def send(self, request: HttpRequest, timeout_s: float) -> Answer: ...

    async def open(self, request: HttpRequest, timeout_s: float) -> AsyncOpenAnswer: ...

    async def close(self) -> None: ...


def closed() -> InvalidRequest:
    """Asking again would not help, so it is no `Unreachable`."""
    return InvalidRequest("this client is closed; make another one")


def unreachable(url: str, error: BaseException) -> Unreachable:
    return Unreachable(f"no answer from {url}: {why(error)}", url=url)


def why(error: BaseException) -> str:
    """The innermost reason, in words, on one line; the libraries wrap it several times, with objects of theirs."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    for inner in reversed(chain):
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        if isinstance(inner, TimeoutError):
            return "it took too long"
    # A number that could not be parsed says little; who wanted to parse it says what it was.
    inner = next((one for one in reversed(chain) if type(one) is not ValueError), error)
    text = getattr(inner, "message", None)
    words = " ".join((text if isinstance(text, str) else str(inner)).split())
    name = type(inner).__name__
    return words if isinstance(inner, OSError) or words.startswith(name) else f"{name}: {words}".rstrip(": ")
