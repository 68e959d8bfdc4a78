"""HTTP/2 of one connection, spoken by prior knowledge or chosen by ALPN: frames by `h2`, a `Lane` for each stream.

What the library answers itself: settings, pings, floods of CONTINUATION frames, headers that are malformed or too large
(the connection ends with GOAWAY). A target that holds `<`, `>` or a byte outside ASCII resets its stream. A client that
cancels far more than it lets finish is told to calm down and loses the connection.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from topics.api.exchange import Exchange
from topics.api.head import split_target
from topics.api.http import Head
from topics.api.http1 import SINGLE
from topics.api.lane import Lane

if TYPE_CHECKING:
    from topics.api.protocol import Connection

CONFIG = H2Configuration(
    client_side=False, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
)


class Http2:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._options = connection.options
        self._ticker = connection.ticker
        self._lanes: dict[int, Lane] = {}
        """Streams that are open in either direction."""
        self._opened = 0
        self._resets = 0
        self._bodies = 0
        """Bytes of bodies being collected."""
        self.answers = 0
        """Bytes of answers that wait for the windows; those of streams are bounded for each."""
        self._late: deque[int] = deque()
        """Requests that wait for the peer to take the answers before theirs."""
        self._reading = False
        self._ending = False
        self._heard_at = connection.ticker.now
        self._pinged_at = connection.ticker.now
        self._idle_since = connection.ticker.now
        self.h2 = self._greet()
        self.flush()

    def _greet(self) -> H2Connection:
        options = self._options
        h2 = H2Connection(CONFIG)
        values = {
            SettingCodes.INITIAL_WINDOW_SIZE: options.h2_stream_window,
            SettingCodes.MAX_CONCURRENT_STREAMS: options.h2_streams_max,
            SettingCodes.MAX_HEADER_LIST_SIZE: options.head_bytes_max,
            SettingCodes.ENABLE_PUSH: 0,
        }
        h2.local_settings = Settings(client=False, initial_values=values)
        # Otherwise the library would hold the first header block to its own default.
        h2.decoder.max_header_list_size = options.head_bytes_max
        h2.initiate_connection()
        if options.h2_connection_window > 65_535:
            h2.increment_flow_control_window(options.h2_connection_window - 65_535)
        return h2

    # Called by the connection.

    def feed(self, data: bytes) -> None:
        self._heard_at = self._ticker.now
        try:
            events = self.h2.receive_data(data)
        except ProtocolError:
            # The library has queued the GOAWAY that says why.
            self.flush()
            self._connection.close(linger=True)
            return
        self._reading = True
        try:
            for event in events:
                self._take(event)
            self._start_late()
        finally:
            self._reading = False
        self.settle()

    def ended(self) -> bool:
        return False

    def lost(self) -> None:
        for lane in tuple(self._lanes.values()):
            lane.leave()
        self._lanes.clear()

    def readable(self) -> None:
        """There is room to write again."""
        self.pump()
        self._start_late()

    def tick(self, now: float) -> None:
        options = self._options
        for lane in tuple(self._lanes.values()):
            if lane.is_slow(now):
                lane.reset(ErrorCodes.CANCEL)
        self._start_late()
        silence = now - self._heard_at
        if self._connection.paused:
            self._heard_at = now
        elif not self._lanes and now - self._idle_since > options.idle_timeout_s:
            self._go_away(ErrorCodes.NO_ERROR)
        elif silence > 3 * options.ping_s:
            self._connection.abort()
        elif silence > options.ping_s and now - self._pinged_at > options.ping_s:
            self._pinged_at = now
            self.h2.ping(b"topics..")
            self.flush()

    def shutdown(self) -> None:
        if self._ending or self._connection.closing:
            return
        self._ending = True
        # The library can only say GOAWAY and be closed at once, so the frame is made here.
        frame = GoAwayFrame(0, last_stream_id=self.h2.highest_inbound_stream_id, error_code=ErrorCodes.NO_ERROR)
        self._connection.write(frame.serialize())
        self._rest()

    # Events.

    def _take(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._open(event)
        elif isinstance(event, DataReceived):
            self._body(event)
        elif isinstance(event, StreamEnded):
            self._start(event.stream_id)
        elif isinstance(event, StreamReset):
            self._reset_by_peer(event.stream_id)
        elif isinstance(event, WindowUpdated):
            if event.stream_id:
                self.pump_one(event.stream_id)
            else:
                self.pump()
        elif isinstance(event, RemoteSettingsChanged):
            self.pump()
        elif isinstance(event, ConnectionTerminated):
            # The library takes a GOAWAY for the end of both directions; clients send it when they are done.
            self.lost()
            self._connection.close()

    def _open(self, event: RequestReceived) -> None:
        stream_id = event.stream_id
        self._opened += 1
        head = self._head(event)
        if self._ending or head is None:
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM if self._ending else ErrorCodes.PROTOCOL_ERROR)
            return
        lane = Lane(self, self._connection, stream_id, whole=event.stream_ended is not None)
        self._lanes[stream_id] = lane
        exchange = Exchange(self._connection.app, self._options, head, lane.answered)
        lane.exchange = exchange
        if not exchange.begin():
            lane.answered(exchange)
            return
        length = head.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > exchange.body_limit:
            exchange.refuse_too_large()
            lane.answered(exchange)
        elif head.headers.get(b"expect", b"").lower() == b"100-continue" and event.stream_ended is None:
            lane.say_continue()

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        try:
            self.h2.reset_stream(stream_id, code)
        except ProtocolError:
            # The peer was faster.
            pass

    def _head(self, event: RequestReceived) -> Head | None:
        """None for a target that cannot be served."""
        headers: dict[bytes, bytes] = {}
        pseudo: dict[bytes, bytes] = {}
        for name, value in event.headers:
            name, value = bytes(name), bytes(value)
            if name.startswith(b":"):
                pseudo[name] = value
            elif name not in headers or name in SINGLE:
                headers[name] = value
            else:
                headers[name] += (b"; " if name == b"cookie" else b", ") + value
        method = pseudo.get(b":method", b"")
        target = pseudo.get(b":path", b"")
        if b"<" in target or b">" in target or not target.isascii() or not method.isascii() or method == b"CONNECT":
            return None
        if target[:1] != b"/" and target != b"*":
            return None
        if b":authority" in pseudo:
            headers.setdefault(b"host", pseudo[b":authority"])
        path, query = split_target(target)
        connection = self._connection
        return Head(
            method.decode("ascii"),
            target,
            path,
            query,
            headers,
            "2",
            connection.peer,
            connection.secure,
            self._ticker.monotonic_ns(),
        )

    def _body(self, event: DataReceived) -> None:
        stream_id = event.stream_id
        lane = self._lanes.get(stream_id)
        self.h2.acknowledge_received_data(event.flow_controlled_length, stream_id)
        if lane is None:
            return
        if lane.exchange.answer is not None:
            if lane.exchange.discard(event.data) > self._options.discard_max:
                lane.reset(ErrorCodes.NO_ERROR)
            return
        lane.collected += len(event.data)
        self._bodies += len(event.data)
        if self._bodies > self._options.h2_bodies_max:
            lane.reset(ErrorCodes.ENHANCE_YOUR_CALM)
        elif not lane.exchange.collect(event.data):
            lane.exchange.refuse_too_large()
            lane.answered(lane.exchange)

    def _start(self, stream_id: int) -> None:
        lane = self._lanes.get(stream_id)
        if lane is None:
            return
        lane.whole = True
        if lane.sent:
            self.forget(lane)
        elif lane.exchange.started:
            pass
        elif self._late or self.answers > self._options.h2_answers_max:
            self._late.append(stream_id)
        else:
            lane.exchange.start()

    def _start_late(self) -> None:
        """No further answers are made for a peer that does not take those it has."""
        while self._late and self.answers <= self._options.h2_answers_max:
            lane = self._lanes.get(self._late.popleft())
            if lane is not None:
                lane.exchange.start()

    def _reset_by_peer(self, stream_id: int) -> None:
        lane = self._lanes.get(stream_id)
        if lane is not None:
            self._resets += 1
            lane.leave()
            self.forget(lane)
        too_many = self._options.h2_resets_max + self._opened // 2
        if self._resets > too_many and not self._connection.closing:
            self._go_away(ErrorCodes.ENHANCE_YOUR_CALM)

    def _go_away(self, code: ErrorCodes) -> None:
        self._reading = False
        self.h2.close_connection(code)
        self.flush()
        self._connection.close(linger=code is not ErrorCodes.NO_ERROR)

    # Called by lanes.

    def flush(self) -> None:
        """Write what the library has to say; while input is read, once at its end."""
        if not self._reading and not self._connection.closing:
            data = self.h2.data_to_send()
            if data:
                self._connection.write(data)

    def pump_one(self, stream_id: int) -> None:
        lane = self._lanes.get(stream_id)
        if lane is not None:
            while lane.send_some():
                pass
            self.flush()

    def pump(self) -> None:
        """Let every stream send what the windows allow, a frame each in turn."""
        moving = [lane for lane in self._lanes.values() if lane.pending]
        while moving:
            moving = [lane for lane in moving if lane.send_some()]
        self.flush()
        self._rest()

    def forget(self, lane: Lane) -> None:
        """Nothing goes in or out on this stream any more."""
        if self._lanes.pop(lane.stream_id, None) is not None:
            self._bodies -= lane.collected
        self._idle_since = self._ticker.now

    def _rest(self) -> None:
        if self._ending and not self._lanes and not self._reading and not self._connection.closing:
            self._connection.close()

    def settle(self) -> None:
        """After output that no input caused."""
        if not self._reading:
            self.flush()
            self._rest()
