"""One request on its way to an answer, whichever protocol carries it.

    begin (head seen) -> body collected -> start -> [inflate] -> App.handle -> [await] -> [compress] -> answered

Nothing here costs a task unless the handler, or the size of a compressed body, asks for one. What `App.handle` returns
to be awaited belongs to the exchange: it is cancelled when the client leaves.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from topics.api import compress
from topics.api.bodies import Pieces, add_piece, joined
from topics.api.http import (
    Admission,
    Answer,
    App,
    Budget,
    Express,
    Head,
    Later,
    Request,
    Response,
    Sink,
    Socket,
    Stream,
)
from topics.api.options import TransportOptions

# Up to here a body is inflated or compressed between two turns of the loop, above it in a thread.
INLINE_BYTES_MAX = 64 * 1024

ANSWERS = (Response, Stream, Socket)
FAILED = Response(500, b'{"error":{"code":"internal","message":"the server failed to answer this request"}}')


SMALL = INLINE_BYTES_MAX
"""Bodies up to here are not counted against the budget: connections, and what may be under way on each, bound them."""


class Exchange:
    __slots__ = (
        "_admission",
        "_app",
        "_body",
        "_crowded",
        "_deliver",
        "_held",
        "_options",
        "_release",
        "_size",
        "_task",
        "answer",
        "dropped",
        "head",
        "keep_alive",
        "started",
        "unread",
        "upgrades",
    )

    def __init__(
        self,
        app: App,
        options: TransportOptions,
        head: Head,
        deliver: Callable[[Exchange], None],
        keep_alive: bool = True,
    ) -> None:
        self._app = app
        self._options = options
        self._deliver = deliver
        self._admission: Admission | None = None
        self._release: Callable[[], None] | None = None
        self._body: Pieces = []
        self._size = 0
        self._held = 0
        """Of that, what is counted against the budget."""
        self._crowded = False
        self._task: asyncio.Future[None] | asyncio.Future[Answer] | Later | None = None
        self.head = head
        self.answer: Answer | None = None
        """Set once, before `deliver` is called."""
        self.keep_alive = keep_alive
        """The request lets the connection live on after it."""
        self.upgrades = False
        """It asks for a WebSocket in the proper form."""
        self.unread = False
        """More of its body may come, though it has its answer."""
        self.started = False
        self.dropped = False
        """The client is gone: nothing is delivered any more."""

    # The head and the body.

    def begin(self) -> bool:
        """Show the head to the app. False if that was already the answer (`answer` is set, not delivered)."""
        try:
            verdict = self._app.begin(self.head)
        except Exception as error:
            verdict = self._failed(error)
        if isinstance(verdict, Response):
            self.answer = verdict
            self.started = True
            return False
        self._admission = verdict
        self._release = verdict.release
        coding = self.head.headers.get(b"content-encoding")
        if coding is not None and compress.coding_of(coding) is None:
            self.refuse(self._app.unsupported_encoding(self.head))
            return False
        return True

    def express(self) -> Express | None:
        """The short way of further requests with this head, which was let pass."""
        headers = self.head.headers
        if self._admission is None or b"content-encoding" in headers:
            return None
        answer_max = self._options.compress_min if b"accept-encoding" in headers else None
        return self._app.express(self.head, self._admission, answer_max)

    @property
    def body_size(self) -> int:
        return self._size

    @property
    def body_limit(self) -> int:
        return self._admission.body_limit if self._admission is not None else 0

    @property
    def bodies(self) -> Budget | None:
        return self._admission.bodies if self._admission is not None else None

    def collect(self, piece: bytes) -> bool:
        """Keep a piece of the body; False if it is too much now."""
        self._size += len(piece)
        if self._admission is not None and self._size > self._admission.body_limit:
            return False
        if self._size > SMALL and not self._hold(self._size - self._held):
            return False
        add_piece(self._body, piece)
        return True

    def _hold(self, more: int) -> bool:
        """Count a large body against what all of them may take together. It is given back with the slot."""
        bodies = self.bodies
        if bodies is None:
            return True
        if not bodies.take(more, self._held):
            self._crowded = True
            return False
        if not self._held:
            slot = self._release

            def release() -> None:
                bodies.give(self._held)
                if slot is not None:
                    slot()

            self._release = release
        self._held += more
        return True

    def discard(self, piece: bytes) -> int:
        """Count a piece of a body nobody wants."""
        self._size += len(piece)
        return self._size

    def refuse(self, answer: Response) -> None:
        """Answer without asking the handler."""
        self._body.clear()
        self.started = True
        self.answer = answer
        self.release()

    def refuse_too_large(self) -> None:
        self.unread = True
        self.refuse(self._refusal())

    def _refusal(self) -> Response:
        """Why the body was not kept."""
        if self._crowded and self._admission is not None and self._admission.bodies is not None:
            return self._admission.bodies.refusal()
        return self._app.too_large(self.head)

    # The handler.

    @property
    def placed(self) -> bool:
        """Whatever is begun from now on comes behind it."""
        return self.answer is not None or (isinstance(self._task, Later) and self._task.placed)

    def start(self) -> None:
        """Run the handler with what was collected. `deliver` is called when there is an answer, maybe at once."""
        self.started = True
        body, self._body = self._body, []
        whole = joined(body)
        coding = self.head.headers.get(b"content-encoding")
        if coding is not None and whole:
            task = self._task = asyncio.ensure_future(self._inflate_and_handle(coding, whole))
            task.add_done_callback(self._slow_done)
            return
        answer = self._handle(whole)
        if type(answer) is Response and len(answer.body) < self._options.compress_min:
            # The shortest way, for the most frequent case.
            self.answer = answer
            self.release()
            self._deliver(self)
        elif isinstance(answer, Later):
            self._task = answer
            answer.then(self._told, self._broke)
        elif isinstance(answer, ANSWERS):
            self._answered(answer)
        else:
            waited = self._task = asyncio.ensure_future(answer)
            waited.add_done_callback(self._handler_done)

    def _handle(self, body: bytes) -> Answer | Later | Awaitable[Answer]:
        assert self._admission is not None
        try:
            return self._app.handle(Request(self.head, body, self._admission.context))
        except Exception as error:
            return self._failed(error)

    async def _inflate_and_handle(self, content_encoding: bytes, packed: bytes) -> None:
        coding = compress.coding_of(content_encoding)
        limit = self.body_limit
        try:
            if not coding:
                body = packed
            elif len(packed) <= INLINE_BYTES_MAX:
                try:
                    body = compress.inflate(coding, packed, min(limit, INLINE_BYTES_MAX))
                except compress.InflatesTooLarge:
                    body = await asyncio.to_thread(compress.inflate, coding, packed, limit)
            else:
                body = await asyncio.to_thread(compress.inflate, coding, packed, limit)
            if len(body) > SMALL and not self._hold(len(body)):
                self._answered(self._refusal())
                return
        except compress.InflatesTooLarge:
            self._answered(self._app.too_large(self.head))
            return
        except compress.InflateError as error:
            self._answered(self._app.bad_request(str(error)))
            return
        answer = self._handle(body)
        if inspect.isawaitable(answer):
            answer = await answer
        self._answered(answer)

    def _told(self, answer: Answer) -> None:
        self._task = None
        quick = type(answer) is Response and self._release is None and not self.dropped
        if quick and len(answer.body) < self._options.compress_min:  # type: ignore[union-attr]
            self.answer = answer
            self._deliver(self)
        else:
            self._answered(answer)

    def _broke(self, error: BaseException) -> None:
        self._task = None
        self._answered(self._failed(error))

    def _handler_done(self, task: asyncio.Future[Answer]) -> None:
        self._task = None
        if task.cancelled():
            self._answered(FAILED)
            return
        error = task.exception()
        self._answered(task.result() if error is None else self._failed(error))

    def _slow_done(self, task: asyncio.Future[None]) -> None:
        """The end of a task that delivers by itself, unless it broke."""
        if self._task is task:
            self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._finish(self._failed(error))
        elif task.cancelled() and self.answer is None:
            self._finish(FAILED)

    def _failed(self, error: BaseException) -> Response:
        """A handler broke its promise not to raise; the loop's handler gets to log it, the client a 500."""
        context = {"message": f"a request to {self.head.path} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        return FAILED

    # The answer.

    def _answered(self, answer: Answer) -> None:
        if self.dropped:
            self.release()
            return
        if type(answer) is Response and len(answer.body) >= self._options.compress_min:
            accepted = self.head.headers.get(b"accept-encoding")
            if accepted is not None and self._compressible(answer):
                self._compress(answer, compress.choose(accepted))
                return
        self._finish(answer)

    def _compressible(self, answer: Response) -> bool:
        """Parts of a file, named versions and what is coded already go out as they are."""
        if answer.status == 206 or not compress.is_compressible(answer.content_type):
            return False
        return not any(name.lower() in (b"content-encoding", b"etag") for name, _ in answer.headers)

    def _compress(self, answer: Response, coding: bytes | None) -> None:
        if coding is None:
            self._finish(_varying(answer))
        elif len(answer.body) <= INLINE_BYTES_MAX:
            self._finish(_coded(answer, coding, compress.deflate(coding, answer.body)))
        else:
            task = self._task = asyncio.ensure_future(self._compress_in_thread(answer, coding))
            task.add_done_callback(self._slow_done)

    async def _compress_in_thread(self, answer: Response, coding: bytes) -> None:
        self._finish(_coded(answer, coding, await asyncio.to_thread(compress.deflate, coding, answer.body)))

    def _finish(self, answer: Answer) -> None:
        if self.dropped or self.answer is not None:
            self.release()
            return
        self.answer = answer
        if type(answer) is Response:
            self.release()
        self._deliver(self)

    def release(self) -> None:
        """Give the in-flight slot back; safe to repeat."""
        if self._release is not None:
            release, self._release = self._release, None
            release()

    def drop(self) -> None:
        """The client left before its answer."""
        self.dropped = True
        self._body.clear()
        if self._task is not None:
            self._task.cancel()
        self.release()


def begin_stream(answer: Stream, sink: Sink, head: Head) -> Coroutine[Any, Any, None] | None:
    """Let a stream begin; what is to be run as a task, or None if it goes on without one."""
    try:
        work = answer.run(sink)
    except Exception as error:
        _broken(sink, head, error)
        return None
    return None if work is None else _run_stream(work, sink, head)


async def _run_stream(work: Awaitable[None], sink: Sink, head: Head) -> None:
    """Let a stream write, and end it one way or the other."""
    try:
        await work
    except asyncio.CancelledError:
        sink.abort()
    except Exception as error:
        _broken(sink, head, error)
    else:
        sink.finish()


def _broken(sink: Sink, head: Head, error: Exception) -> None:
    sink.abort()
    context = {"message": f"the stream of {head.path} failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)


def coded(answer: Response, accepted: bytes) -> Response:
    """A large JSON answer as whoever accepts these codings gets it."""
    coding = compress.choose(accepted)
    return _varying(answer) if coding is None else _coded(answer, coding, compress.deflate(coding, answer.body))


def _varying(answer: Response) -> Response:
    return Response(
        answer.status, answer.body, answer.content_type, [*answer.headers, (b"vary", b"accept-encoding")], answer.close
    )


def _coded(answer: Response, coding: bytes, body: bytes) -> Response:
    headers = [*answer.headers, (b"content-encoding", coding), (b"vary", b"accept-encoding")]
    return Response(answer.status, body, answer.content_type, headers, answer.close)
