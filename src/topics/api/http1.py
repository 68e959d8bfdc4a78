"""HTTP/1.0 and 1.1 of one connection: requests parsed by httptools and handed to the pipeline.

Refused with 400 and the end of the connection, because two parsers might disagree about them: Content-Length beside
Transfer-Encoding, repeated or odd Content-Length, any transfer coding but a single `chunked`, Transfer-Encoding in
HTTP/1.0, bad chunk sizes, folded headers, NUL and other control characters, bare CR or LF, two Host headers. A head
that is too large is 431, a head or body that comes too slowly 408. An `Upgrade` to anything but a WebSocket is ignored:
the head is parsed again without it, and so the body behind it is read. A method that the parser has never heard of is
parsed again as one that it knows and no path takes; where it does not begin the input, that is 400 as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httptools

from topics.api.exchange import Exchange
from topics.api.head import is_websocket, size_of_head, split_target, with_other_method, without_upgrade
from topics.api.http import Head, Response, Socket
from topics.api.known import HEAD_BYTES_MAX, Known
from topics.api.pipeline import Pipeline
from topics.api.ws import WebSocketSession

if TYPE_CHECKING:
    from topics.api.protocol import Connection

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Input is parsed in slices, so that a burst of pipelined requests can be left unparsed when enough are under way.
SLICE = 64 * 1024
# Of these the last one counts when repeated; any other repeated header is a list.
SINGLE = frozenset(
    (b"authorization", b"content-type", b"content-encoding", b"origin", b"range", b"referer", b"user-agent")
)
VERSIONS = ("1.1", "1.0")
# Heads with one of these are parsed each time they come.
UNPLAIN = frozenset((b"upgrade", b"transfer-encoding", b"expect", b"connection"))
MISREAD = frozenset((b"host", b"content-length", b"transfer-encoding"))


class Refusal(Exception):
    """Ends the parsing of a connection with this answer."""

    def __init__(self, answer: Response) -> None:
        self.answer = answer


class Enough(Exception):
    """Ends the parsing of a connection that takes no further request."""


class Http1:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._app = connection.app
        self._options = connection.options
        self._ticker = connection.ticker
        self._parser = httptools.HttpRequestParser(self)
        self._pipeline = Pipeline(connection, self._settled, self._switch, self._repeated)
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._in_head = False
        """Between the first byte of a request and the end of its head."""
        self._head_bytes = 0
        """Of a head or of trailers under way, in earlier inputs, at least. An input that held something else before
        them counts as one byte: how much of it is theirs is not known."""
        self._passed = False
        """The input that is being parsed ended a head or a request, or held some of a body."""
        self._fed = 0
        """Bytes of the input that is being parsed."""
        self._since = connection.ticker.now
        """When the head or the window of the body under way began, or the connection fell idle."""
        self._incoming: Exchange | None = None
        """The request whose body is being read."""
        self._window_size = 0
        self._continue_due = False
        self._ignored: bytes | None = None
        """A head whose Upgrade is none of ours, without it, to be parsed again."""
        self._upgrading: Exchange | None = None
        """A WebSocket upgrade that is not decided yet; input behind it is held."""
        self._held = b""
        self._known = connection.shared.known
        self._first = False
        """The next head to be complete is the first of the input."""
        self._plain: Known | None = None
        """That head, if it may be remembered."""
        self._deaf = False
        """The parser has given up: input is dropped while answers before that point are still due."""

    # Called by the connection.

    def feed(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._held or self._upgrading is not None:
            self._held += data
            return
        pipeline = self._pipeline
        known: Known | None = None
        start = 0
        fresh = self._incoming is None and not self._in_head and pipeline.takes_known and len(data) <= SLICE
        if fresh:
            # Input that starts with a request, while nothing is under way or only what went by express.
            start = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX) + 4
            known = self._known.get(data[:start])
            if known is not None:
                if len(data) - start != known.length:
                    known = None
                elif known.express is not None and pipeline.send_express(known.express, known, data, start):
                    return
        pipeline.cork()
        try:
            if known is not None:
                pipeline.add(self._repeated(known, data[start:]))
            elif fresh and start > 3:
                self._parse_next(data, data[:start])
            elif len(data) > SLICE:
                self._parse_slices(data)
            else:
                self._parse(data)
        finally:
            pipeline.uncork()
        if len(pipeline) == 1 < self._options.pipeline_max and not (
            pipeline.ending or self._held or self._connection.paused
        ):
            # The usual request, on its way: nothing to decide until it is answered, unless there is an upgrade.
            if self._upgrading is not None:
                self._settled()
        else:
            self._settled()

    @property
    def _between_requests(self) -> bool:
        return self._incoming is None and not self._in_head and self._upgrading is None

    def _parse_next(self, data: bytes, start: bytes) -> None:
        """Input that starts with a request, whose head should be `start`."""
        self._first, self._plain = True, None
        self._parse(data)
        self._first = False
        # The parser skips empty lines before a request; with them, `start` would not be the whole head.
        if self._plain is not None and start[:1].isalpha():
            self._known.add(start, self._plain)

    def _repeated(self, known: Known, body: bytes) -> Exchange:
        """A request whose head is known."""
        connection = self._connection
        method, target, path, query, headers, length, _ = known
        received_ns = self._ticker.monotonic_ns()
        head = Head(method, target, path, query, headers, "1.1", connection.peer, connection.secure, received_ns)
        exchange = Exchange(self._app, self._options, head, self._pipeline.answered)
        if exchange.begin() and length and not exchange.collect(body):
            exchange.refuse_too_large()
        exchange.unread = False
        return exchange

    def _parse_slices(self, data: bytes) -> None:
        for start in range(0, len(data), SLICE):
            if self._deaf or (self._pipeline.ending and self._incoming is None):
                return
            if self._upgrading is not None or len(self._pipeline) >= self._options.pipeline_max:
                self._held += data[start:]
                return
            self._parse(data[start : start + SLICE])

    def _parse(self, data: bytes) -> None:
        stopped = -1
        again: bytes | None = None
        begins = self._between_requests
        self._fed = len(data)
        self._passed = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            stopped = upgrade.args[0]
        except httptools.HttpParserError as error:
            unknown = begins and isinstance(error, httptools.HttpParserInvalidMethodError)
            again = with_other_method(data) if unknown else None
            if again is None:
                self._deaf = True
                self._misread(error)
                return
        # Not within `except`: what the parser raises there has that as its context, and not what a callback raised.
        if again is not None:
            self._parser = httptools.HttpRequestParser(self)
            self._parse(again)
        elif stopped >= 0:
            self._stopped_at_upgrade(data[stopped:])
        elif self._in_head or self._incoming is not None:
            self._head_bytes = 1 if self._passed else self._head_bytes + len(data)
            if self._head_bytes > self._options.head_bytes_max:
                self._refuse(Response(431))

    def _misread(self, error: httptools.HttpParserError) -> None:
        if isinstance(error, httptools.HttpParserCallbackError):
            cause = error.__context__
            if isinstance(cause, Refusal):
                self._refuse(cause.answer)
            elif not isinstance(cause, Enough):
                raise error
        elif isinstance(error, httptools.HttpParserInvalidURLError):
            self._refuse(Response(400))
        elif not self._pipeline.ending or self._incoming is not None:
            # Only here: what follows a request that announced the end is not looked at.
            self._refuse(self._app.bad_request(str(error)))

    def _refuse(self, answer: Response) -> None:
        """Answer what cannot be read on, behind the answers still due, and end the connection."""
        incoming, self._incoming = self._incoming, None
        self._in_head = False
        self._deaf = True
        if incoming is not None and incoming.answer is not None:
            # It has had its answer already; only its body was still to be skipped.
            self._pipeline.end_after(incoming)
            return
        if incoming is not None:
            incoming.drop()
        head = Head("GET", b"", "", "", {}, "1.1", self._connection.peer, self._connection.secure, 0)
        refused = Exchange(self._app, self._options, head, self._pipeline.answered, keep_alive=False)
        refused.unread = True
        refused.refuse(answer)
        self._pipeline.ending = True
        self._pipeline.add(refused)

    def _settled(self) -> None:
        """Close, pause or go on, as the pipeline now asks."""
        connection = self._connection
        pipeline = self._pipeline
        if pipeline.at_rest and self._between_requests and not (self._held or connection.paused):
            # One or more whole requests, answered: nothing is left to decide.
            self._since = self._ticker.now
            return
        if connection.closing or connection.speaker is not self:
            return
        if pipeline.over:
            connection.close(linger=pipeline.linger)
            return
        if not pipeline.busy:
            if self._upgrading is not None and self._upgrading.answer is not None:
                # It was refused: what follows is HTTP again.
                self._upgrading = None
            if pipeline.ending and self._incoming is None:
                connection.close()
                return
            if self._continue_due:
                self._continue_due = False
                connection.write(CONTINUE)
            if self._between_requests:
                self._since = self._ticker.now
        if self._upgrading is not None or len(pipeline) >= self._options.pipeline_max:
            connection.pause_for_work()
        else:
            connection.resume_for_work()
            self.readable()

    def readable(self) -> None:
        if self._held and self._upgrading is None and not self._connection.paused:
            data, self._held = self._held, b""
            self.feed(data)

    def ended(self) -> bool:
        pipeline = self._pipeline
        if pipeline.streaming or self._incoming is not None or not pipeline.busy:
            return False
        pipeline.ending = True
        return True

    def lost(self) -> None:
        self._pipeline.leave()
        if self._incoming is not None:
            self._incoming.drop()
            self._incoming = None
        if self._upgrading is not None:
            self._upgrading.drop()

    def shutdown(self) -> None:
        self._pipeline.ending = True
        self._settled()

    def tick(self, now: float) -> None:
        options = self._options
        incoming = self._incoming
        waited = now - self._since
        if incoming is not None:
            if waited > options.body_window_s and not self._connection.paused:
                if incoming.body_size - self._window_size < options.body_window_bytes:
                    self._refuse(Response(408))
                else:
                    self._window_size = incoming.body_size
                    self._since = now
        elif self._in_head:
            if waited > options.header_timeout_s:
                self._refuse(Response(408))
        elif not self._pipeline.busy and self._upgrading is None and waited > options.idle_timeout_s:
            self._connection.close()

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._since = self._ticker.now
        self._target = b""
        if self._headers:
            self._headers = {}

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer, which nobody asks for; `_parse` counts them
        name = name.lower()
        headers = self._headers
        if name not in headers:
            headers[name] = value
            return
        if name in MISREAD:
            raise Refusal(self._app.bad_request(f"the header {name.decode('latin-1')} is repeated"))
        if name in SINGLE:
            headers[name] = value
            return
        headers[name] += (b"; " if name == b"cookie" else b", ") + value
        if len(headers[name]) > self._options.head_bytes_max:
            raise Refusal(Response(431))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._passed = True
        if self._pipeline.ending:
            raise Enough
        first, self._first = self._first, False
        headers = self._headers
        self._headers = {}
        if len(headers) > self._options.headers_max:
            raise Refusal(Response(431))
        most = self._options.head_bytes_max
        if (self._head_bytes or self._fed > most) and size_of_head(self._target, headers) > most:
            raise Refusal(Response(431))
        parser = self._parser
        method = parser.get_method().decode("ascii")
        version = parser.get_http_version()
        if version != "1.1" or b"transfer-encoding" in headers or method == "CONNECT":
            self._check_framing(method, version, headers)
        target = self._target
        if b"<" in target or b">" in target:
            raise Refusal(Response(400))
        upgrades = False
        if b"upgrade" in headers and parser.should_upgrade():
            upgrades = is_websocket(method, version, headers)
            if not upgrades:
                self._ignored = without_upgrade(method, target, version, headers)
                return
        path, query = split_target(target)
        connection = self._connection
        received_ns = self._ticker.monotonic_ns()
        head = Head(method, target, path, query, headers, version, connection.peer, connection.secure, received_ns)
        exchange = Exchange(self._app, self._options, head, self._pipeline.answered, parser.should_keep_alive())
        exchange.upgrades = upgrades
        self._incoming = exchange
        admitted = exchange.begin()
        if first and exchange.keep_alive and version == "1.1" and UNPLAIN.isdisjoint(headers):
            length = int(headers.get(b"content-length", b"0"))
            express = exchange.express() if admitted else None
            self._plain = Known(method, target, path, query, headers, length, express)
        if not admitted:
            self._refuse_at_head(exchange)
        else:
            self._expect_body(exchange, headers)

    def _check_framing(self, method: str, version: str, headers: dict[bytes, bytes]) -> None:
        if version not in VERSIONS:
            raise Refusal(self._app.bad_request(f"HTTP version {version} is not spoken here"))
        if method == "CONNECT":
            raise Refusal(self._app.bad_request("this is not a proxy"))
        coding = headers.get(b"transfer-encoding")
        if coding is not None and (version == "1.0" or coding.strip().lower() != b"chunked"):
            raise Refusal(self._app.bad_request("the only transfer coding is chunked, in HTTP/1.1"))

    def _expect_body(self, exchange: Exchange, headers: dict[bytes, bytes]) -> None:
        self._window_size = 0
        self._since = self._ticker.now
        length = headers.get(b"content-length")
        if length is not None and int(length) > exchange.body_limit:
            exchange.refuse_too_large()
            self._refuse_at_head(exchange)
        elif b"expect" in headers:
            # Said behind the answers of the requests before it, or it would be taken for one of theirs.
            asked = headers[b"expect"].lower() == b"100-continue" and exchange.head.version == "1.1"
            self._continue_due = asked and (length not in (None, b"0") or b"transfer-encoding" in headers)

    def _refuse_at_head(self, exchange: Exchange) -> None:
        """Answer at once. The body is dropped as it comes; if it is long or held back the connection ends."""
        headers = exchange.head.headers
        chunked = b"transfer-encoding" in headers
        length = int(headers.get(b"content-length", b"0"))
        exchange.unread = chunked or length > 0
        if length > self._options.discard_max or (exchange.unread and b"expect" in headers):
            exchange.keep_alive = False
        self._window_size = 0
        self._since = self._ticker.now
        self._add(exchange)

    def _add(self, exchange: Exchange) -> None:
        if not exchange.keep_alive:
            self._pipeline.ending = True
        self._pipeline.add(exchange)

    def on_body(self, piece: bytes) -> None:
        self._passed = True
        exchange = self._incoming
        if exchange is None:
            return
        self._continue_due = False
        if exchange.answer is not None:
            if exchange.discard(piece) > self._options.discard_max:
                raise Refusal(Response(413))
        elif not exchange.collect(piece):
            exchange.refuse_too_large()
            exchange.keep_alive = False
            self._add(exchange)

    def on_message_complete(self) -> None:
        self._passed = True
        if self._ignored is not None:
            return
        exchange, self._incoming = self._incoming, None
        self._continue_due = False
        if exchange is None:
            return
        exchange.unread = False
        if exchange.answer is not None:
            return
        if exchange.upgrades:
            # The parser stops here; the exchange goes on when it has said where.
            self._upgrading = exchange
        else:
            self._add(exchange)

    # Upgrades.

    def _stopped_at_upgrade(self, rest: bytes) -> None:
        """The parser left a head with an Upgrade; `rest` is what came behind it."""
        self._parser = httptools.HttpRequestParser(self)
        if self._ignored is not None:
            again, self._ignored = self._ignored, None
            self._parse(again + rest)
        elif self._upgrading is not None:
            self._held = rest
            self._add(self._upgrading)
        else:
            self._parse(rest)

    def _switch(self, exchange: Exchange, answer: Socket) -> None:
        exchange.release()
        rest, self._held = self._held, b""
        session = WebSocketSession(self._connection, exchange.head, exchange.bodies)
        self._connection.hand_over(session)
        self._connection.resume_for_work()
        session.open(answer, rest)
