"""The answers of one HTTP/1 connection, in the order of its requests.

Requests that follow each other without waiting (pipelining) run side by side only where that cannot be noticed: safe
methods, and several calls of one method on one path, each of which has its place in the order of things before the
next one is begun. One that waits for its topic to be made, or for its body to be inflated, has none yet and would be
overtaken. Any other request waits until those before it are answered, so that a read behind an append sees it. While
the peer does not take its answers no further ones are made, so that no number of requests for large pages fills the
memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from topics.api.exchange import Exchange, begin_stream
from topics.api.http import Express, Head, Response, Socket, Stream
from topics.api.known import Known
from topics.api.render import LARGE, http1_response, http1_stream, start_of
from topics.api.sink import Http1Sink
from topics.api.ws import not_an_upgrade

if TYPE_CHECKING:
    from topics.api.protocol import Connection

SAFE = frozenset(("GET", "HEAD"))
CORKED = 64 * 1024
"""Answers that are held back to be written together."""
BIG = 64 * 1024
"""Answers from here on are made one after the other."""
BESIDE = 4
"""Requests that run side by side before it is known how large their answers are."""


class Pipeline:
    """Also the `Rider` of what goes by express: requests at its front, all by the same one."""

    def __init__(
        self,
        connection: Connection,
        settled: Callable[[], None],
        switch: Callable[[Exchange, Socket], None],
        repeated: Callable[[Known, bytes], Exchange],
    ) -> None:
        self._connection = connection
        self.ticker = connection.ticker
        self._settled = settled
        self._switch = switch
        self._repeated = repeated
        self._queue: deque[Exchange] = deque()
        """Behind what goes by express."""
        self._riding = 0
        """Requests that went by express and are not answered."""
        self._express: Express | None = None
        self._returned = 0
        """Requests at the front of the queue that were sent back."""
        self._out: list[bytes] | None = None
        """While requests are parsed: their answers, to be written together."""
        self._out_size = 0
        self._beside = BESIDE
        """Requests that may run side by side: more with every small answer, one behind a big one."""
        self._stuck = False
        """Waiting for the peer to take what was written."""
        self._sink: Http1Sink | None = None
        self._pumping = False
        self.ending = False
        """No request will be added: the last answer ends the connection."""
        self.over: bool = False
        """The last answer has been written."""
        self.linger = False
        """Input may still come; see `Connection.close`."""

    def __len__(self) -> int:
        return len(self._queue) + self._riding

    @property
    def busy(self) -> bool:
        return bool(self._queue or self._riding) or self._sink is not None

    @property
    def at_rest(self) -> bool:
        """Every request has been answered, and another one is welcome."""
        return not (self._queue or self._riding or self.ending or self._sink is not None)

    @property
    def takes_known(self) -> bool:
        """The next request may go by express."""
        return not (self._queue or self.ending or self.over or self._sink is not None)

    @property
    def streaming(self) -> bool:
        return self._sink is not None

    def cork(self) -> None:
        self._out = []

    def uncork(self) -> None:
        out, self._out = self._out, None
        self._out_size = 0
        if out:
            self._connection.write_all(out)

    def write(self, data: bytes) -> None:
        out = self._out
        if out is None:
            self._connection.write(data)
            return
        out.append(data)
        self._out_size += len(data)
        if self._out_size > CORKED:
            self._out, self._out_size = [], 0
            self._connection.write_all(out)

    def add(self, exchange: Exchange) -> None:
        """The next request: whole, or answered already."""
        if self.over:
            exchange.drop()
            return
        queue = self._queue
        queue.append(exchange)
        alone = len(queue) == 1 and self._sink is None and not self._riding
        if exchange.answer is None and alone and not self._connection.choked:
            exchange.start()
        else:
            self._pump()

    def answered(self, exchange: Exchange) -> None:
        """What exchanges deliver to."""
        queue = self._queue
        if self._pumping or not queue or queue[0] is not exchange:
            return
        answer = exchange.answer
        if (
            type(answer) is Response
            and not answer.headers
            and answer.body
            and not (answer.close or exchange.upgrades or self.ending)
            and exchange.keep_alive
            and exchange.head.version == "1.1"
            and exchange.head.method != "HEAD"
        ):
            # By far the most frequent case: the next answer due, with nothing special about it.
            queue.popleft()
            body = answer.body
            start = self.ticker.heads.get((answer.status, answer.content_type))
            if start is None:
                start = start_of(self.ticker, answer.status, answer.content_type)
            if len(body) < LARGE:
                self.write(b"%b%d\r\n\r\n%b" % (start, len(body), body))
            else:
                self.write(b"%b%d\r\n\r\n" % (start, len(body)))
                self.write(body)
            if queue:
                self._answered_with(len(body))
                self._pump()
            elif self._out is None:
                self._settled()
        else:
            self._pump()

    def _answered_with(self, size: int) -> None:
        self._beside = 1 if size >= BIG else min(2 * self._beside, self._connection.options.pipeline_max)

    def _pump(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        queue = self._queue
        try:
            while queue and self._sink is None and not (self.over or self._riding):
                if self._connection.choked:
                    self._wait_for_room()
                    break
                if queue[0].answer is not None:
                    self._emit(queue.popleft())
                elif not self._start_more():
                    break
        finally:
            self._pumping = False
        if self._out is None:
            self._settled()

    def _wait_for_room(self) -> None:
        if not self._stuck:
            self._stuck = True
            # In the next turn: whoever is told of the room is told just before it counts.
            self._connection.when_drained(self._room)

    def _room(self) -> None:
        self._connection.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._stuck = False
        self._pump()

    def _start_more(self) -> bool:
        """Start what may run beside the first request; True if that one has its answer now."""
        first = self._queue[0]
        if not first.started:
            first.start()
            if first.answer is not None:
                # It goes out before another one is made.
                return True
        before = first
        for exchange in tuple(islice(self._queue, 1, self._beside)):
            if not _alike(first.head, exchange.head) or not (before.placed or first.head.method in SAFE):
                break
            if not exchange.started:
                exchange.start()
            before = exchange
        return first.answer is not None

    def _emit(self, exchange: Exchange) -> None:
        answer = exchange.answer
        if isinstance(answer, Socket):
            if exchange.upgrades:
                self.uncork()
                self.over = True
                self._switch(exchange, answer)
                return
            exchange.release()
            answer = not_an_upgrade()
        if isinstance(answer, Stream):
            self._open_stream(exchange, answer)
            return
        assert answer is not None
        self._answered_with(len(answer.body))
        keep_alive = self._keeps_alive(exchange) and not answer.close
        self.write(http1_response(self.ticker, exchange.head, answer, keep_alive))
        if not keep_alive:
            self._end(exchange.unread)

    def _keeps_alive(self, exchange: Exchange) -> bool:
        return exchange.keep_alive and not (self.ending and not self._queue)

    def end_after(self, exchange: Exchange) -> None:
        """`exchange`, whose body cannot be read to its end, is the last one."""
        self.ending = True
        if exchange in self._queue:
            exchange.keep_alive = False
            exchange.unread = True
        else:
            self._end(True)
        if self._out is None:
            self._settled()

    def _end(self, linger: bool) -> None:
        self.ending = True
        self.over = True
        self.linger = linger
        for waiting in self._queue:
            waiting.drop()
        self._queue.clear()

    # What goes by express.

    def send_express(self, express: Express, known: Known, data: bytes, start: int) -> bool:
        """Let a request go by express; False if it has to take the usual way."""
        if self._riding and (
            express.alone or self._express is not express or self._riding >= self._connection.options.pipeline_max
        ):
            return False
        if not express.take(self, known, data, start):
            return False
        self._express = express
        self._riding += 1
        return True

    def arrived(self, answer: bytes) -> None:
        self._riding -= 1
        if not self.over:
            self.write(answer)
            self._one_less()

    def arrived_late(self, known: Known, answer: Response) -> None:
        self._riding -= 1
        if not self.over:
            connection = self._connection
            method, target, path, query, headers, _, _ = known
            head = Head(method, target, path, query, headers, "1.1", connection.peer, connection.secure, 0)
            keep_alive = not (answer.close or (self.ending and not self._queue and not self._riding))
            self.write(http1_response(self.ticker, head, answer, keep_alive))
            if not keep_alive:
                self._end(False)
            self._one_less()

    def sent_back(self, known: Known, data: bytes, start: int) -> None:
        self._riding -= 1
        if not self.over:
            self._queue.insert(self._returned, self._repeated(known, data[start:]))
            self._returned += 1
            self._one_less()

    def _one_less(self) -> None:
        if not self._riding:
            self._returned = 0
            if self._queue:
                self._pump()
            else:
                self._settled()

    # Streams.

    def _open_stream(self, exchange: Exchange, answer: Stream) -> None:
        head = exchange.head
        chunked = head.version == "1.1"
        keep_alive = self._keeps_alive(exchange) and chunked
        self.write(http1_stream(self.ticker, head, answer, keep_alive, chunked))
        exchange.release()
        if head.method == "HEAD":
            if not keep_alive:
                self._end(exchange.unread)
            return

        def ended(regular: bool) -> None:
            self._sink = None
            if not regular and not chunked:
                # Without chunks a plain close would look like the regular end.
                self._connection.abort()
            if not regular or not keep_alive:
                self._end(False)
            self._pump()

        self._connection.expect_stream()
        self._sink = sink = Http1Sink(self._connection, chunked, ended)
        if self._out:
            # The stream writes past the cork: what came before it goes out first.
            self._connection.write(b"".join(self._out))
            self._out.clear()
        work = begin_stream(answer, sink, head)
        if work is not None:
            sink.task = self._connection.loop.create_task(work)
            self._connection.run(sink.task)

    def leave(self) -> None:
        """The peer is gone."""
        self.over = True
        for exchange in self._queue:
            exchange.drop()
        self._queue.clear()
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.leave(self._connection.options.leave_s)


def _alike(first: Head, other: Head) -> bool:
    if first is other or (first.method in SAFE and other.method in SAFE):
        return True
    return first.method == other.method and first.path == other.path
