"""One open stream of a watch session: frames go out as its topics grow, and wait in the log while its reader is slow.

Nothing is queued beyond a bound of frames and bytes that the kernel has not taken. A stream beyond it lags: its cursors
stay, and when it has drained it reads on from there. Cursors of frames that were never handed over go back to the
session when the stream ends.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from topics.api.auth import Key
from topics.api.cohort import Cohort, Form, Standing
from topics.api.events import (
    HEARTBEAT_BLOCK,
    RETRY,
    Block,
    Rendered,
    deleted_data,
    shutdown_data,
    sse_frame,
)
from topics.api.http import Sink
from topics.broker.watch import Place, Session, View, told_of
from topics.model.errors import NotFound, TopicsError
from topics.storage.topic import Topic

if TYPE_CHECKING:
    from topics.api.live import Live

log = logging.getLogger("topics.api")


class TopicReader:
    """A stream's reader of one topic."""

    __slots__ = ("_first", "_said", "_stream", "cohort", "form", "name", "open", "place", "slot", "topic", "view")

    def __init__(self, stream: EventStream, name: str, place: Place, topic: Topic, view: View) -> None:
        self._stream = stream
        self.name = name
        self.place = place
        self.topic = topic
        self.view = view
        self.open = True
        self._first = True
        """Nothing has been read yet on this stream."""
        self._said = False
        """Its last frame was `caught-up`."""
        self.form: Form = Rendered.chunked if stream.is_chunked else Rendered.plain
        self.cohort: Cohort[Any] | None = None
        self.slot = 0

    def standing(self) -> Standing:
        place = self.place
        return self.view, place.cursor, None if place.epoch == self.topic.id else place.epoch

    def ready(self) -> bool:
        return self._stream.has_room(self)

    def take(self, rendered: Rendered) -> bool:
        stream = self._stream
        if rendered.says_something or (rendered.caught_up and not self._said):
            block = rendered.block(self._first) if stream.alone else self._compose(rendered)
            if not stream.send(block, self, rendered.from_seq):
                return False
            self._said = rendered.caught_up
        place = self.place
        place.move(rendered.cursor)
        if self._first:
            self._first = False
            if place.epoch != self.topic.id:
                place.restart(self.topic.id)
        if stream.opening is self and rendered.caught_up:
            stream.open_next()
        return True

    def share(self) -> int:
        return -1 if self.view.strong else self._stream.share()

    def stepped_out(self, cursor: int, sent_at: float) -> None:
        self.place.move(cursor)
        self._stream.unshare(sent_at)

    def queue(self, rest: memoryview, rendered: Rendered) -> None:
        self._stream.queue(rest, rendered.block(first=False).count, self.place, rendered.from_seq)

    def _compose(self, rendered: Rendered) -> Block:
        """Frames whose ids name every topic of the session."""
        session, before = self._stream.session, self.place.cursor
        frames = []
        for told in told_of(rendered.page, self._said):
            self.place.cursor = told.cursor
            data = rendered.sse_data(told, self._first)
            frames.append(sse_frame(told.kind.encode(), data, session.event_id()))
        self.place.cursor = before
        return Block(frames)

    def lost(self) -> None:
        self.open = False
        self._stream.topic_gone(self.name)

    def failed(self, error: Exception) -> None:
        if isinstance(error, TopicsError):
            log.error("topic %s cannot be read for a stream: %s", self.name, error.message)
        else:
            log.error("a stream of topic %s failed", self.name, exc_info=error)
        self._stream.cut()


class EventStream:
    __slots__ = (
        "_frames", "_live", "_parked", "_readers", "_sent_at", "_sink", "_unhanded", "_waiting", "_waits", "alone",
        "heartbeat_s", "open", "opening", "session",
    )  # fmt: skip

    def __init__(self, live: Live, session: Session, sink: Sink) -> None:
        self._live = live
        self._sink = sink
        self.session = session
        self.alone = len(session.places) == 1
        self.open = True
        self.heartbeat_s = session.heartbeat_ms / 1000
        self._sent_at = live.loop.time()
        self._readers: dict[str, TopicReader] = {}
        self._waiting: list[str] = []
        """Topics to be opened, last one first."""
        self._waits: asyncio.Future[Topic] | None = None
        self.opening: TopicReader | None = None
        """Topics are opened one after the other, each when the one before has caught up."""
        self._unhanded: list[tuple[int, int, Place, int]] = []
        """Where a block ends in the sink, its frames, its topic and the cursor before it."""
        self._frames = 0
        """Of them all."""
        self._parked: list[TopicReader] | None = None
        """Readers that wait until the stream has drained; None = it does not lag."""

    @property
    def is_chunked(self) -> bool:
        return self._sink.chunked

    # -- opening -------------------------------------------------------------------------------------------------------

    def start(self, key: Key, last_event_id: bytes | None) -> None:
        live, session = self._live, self.session
        live.enter(self, key)
        for other in tuple(session.streams):
            # Most likely the same reader, come again: what the other stream could not hand over is this one's.
            other.step_out()
            other.settle()
            other.give_back()
            if last_event_id is not None:
                # It says what it has, so it is: the other one would go on feeding a socket that nobody reads.
                other.cut()
        if last_event_id is not None:
            session.resume(last_event_id)
        live.sessions.opened(session, self)
        self._sink.on_gone = self.leave
        self._sink.write(RETRY)
        live.heartbeats.add(self)
        self._waiting = sorted(session.places, reverse=True)
        self.open_next()

    def open_next(self) -> None:
        self.opening = None
        while self._waiting and self.open and self._waits is None:
            name = self._waiting.pop()
            try:
                topic = self._live.pump.run(self._live.broker.watched(name, pull=True))
            except NotFound:
                self.topic_gone(name)
                continue
            except TopicsError as error:
                log.error("topic %s cannot be watched: %s", name, error.message)
                self.cut()
                return
            if isinstance(topic, asyncio.Future):
                self._waits = topic
                topic.add_done_callback(lambda done, name=name: self._opened(name, done))  # type: ignore[misc]
            else:
                self._begin(name, topic)
            return
        self._end_if_done()

    def _opened(self, name: str, found: asyncio.Future[Topic]) -> None:
        self._waits = None
        if not self.open or found.cancelled():
            return
        error = found.exception()
        if isinstance(error, NotFound):
            self.topic_gone(name)
            self.open_next()
        elif error is not None:
            log.error("topic %s cannot be watched: %s", name, error)
            self.cut()
        else:
            self._begin(name, found.result())

    def _begin(self, name: str, topic: Topic) -> None:
        reader = TopicReader(self, name, self.session.places[name], topic, self.session.view)
        self._readers[name] = self.opening = reader
        self._live.hub.join(topic, reader)

    # -- sending -------------------------------------------------------------------------------------------------------

    def has_room(self, reader: TopicReader) -> bool:
        if self._parked is not None:
            self._parked.append(reader)
            return False
        return not self._unhanded or self._fits(0) or self._lag(reader)

    def _fits(self, size: int) -> bool:
        self.settle()
        if not self._unhanded:
            return True
        options = self._live.options
        waiting = self._sink.written - self._sink.taken
        return self._frames < options.frames_max and waiting + size <= options.bytes_max

    def settle(self) -> None:
        """Forget the frames that the kernel has taken."""
        _unhanded = self._unhanded
        if _unhanded:
            taken = self._sink.taken
            if taken >= _unhanded[-1][0]:
                _unhanded.clear()
                self._frames = 0
            elif taken >= _unhanded[0][0]:
                self._unhanded = [entry for entry in _unhanded if entry[0] > taken]
                self._frames = sum(entry[1] for entry in self._unhanded)

    def send(self, block: Block, reader: TopicReader, from_seq: int) -> bool:
        if self._parked is not None:
            self._parked.append(reader)
            return False
        if self._unhanded and not self._fits(len(block)):
            return self._lag(reader)
        end = self._sink.write_frames(block)
        self.sent_at = self._live.loop.time()
        if end:
            self._unhanded.append((end, block.count, reader.place, from_seq))
            self._frames += block.count
        return True

    @property
    def sent_at(self) -> float:
        """When something was last sent."""
        last = self._sent_at
        for reader in self._readers.values():
            if reader.cohort is not None:
                last = max(last, reader.cohort.sent_at)
        return last

    @sent_at.setter
    def sent_at(self, now: float) -> None:
        self._sent_at = now

    def share(self) -> int:
        """Frames of a session with several topics are its own, and its cursors belong to all of its streams."""
        if not self.alone or len(self.session.streams) > 1 or not self._fits(0) or self._unhanded:
            return -1
        return self._sink.share(self.step_out)

    def unshare(self, sent_at: float) -> None:
        self._sink.unshare()
        self._sent_at = max(self._sent_at, sent_at)

    def queue(self, rest: memoryview, count: int, place: Place, from_seq: int) -> None:
        """Of a block that was sent to others too."""
        self._unhanded.append((self._sink.queue(rest), count, place, from_seq))
        self._frames += count

    def step_out(self) -> None:
        """Be served by itself: it has something of its own to write, or its cursors are asked for."""
        for reader in self._readers.values():
            self._live.hub.step_out(reader.topic, reader)

    def _lag(self, reader: TopicReader) -> bool:
        """There is no room: the reader waits until there is."""
        self._parked = [reader]
        self._live.lagging += 1
        self._sink.when_drained(self._drained)
        return False

    def _drained(self) -> None:
        parked, self._parked = self._parked, None
        if parked is None:
            return
        self._live.lagging -= 1
        for reader in parked:
            if reader.open:
                self._live.hub.go_on(reader.topic, reader)

    def beat(self) -> None:
        # A reader that does not take what waits for it needs no sign of life.
        if self._parked is None:
            self._sink.write_frames(HEARTBEAT_BLOCK)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def topic_gone(self, name: str) -> None:
        self._readers.pop(name, None)
        self._sink.write(sse_frame(b"topic-deleted", deleted_data(name), self.session.event_id()))
        if self.opening is not None and self.opening.name == name:
            self.open_next()
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self.open and not (self._readers or self._waiting or self._waits):
            self._finish()

    def _finish(self) -> None:
        self.leave()
        self._sink.finish()

    def shutdown(self) -> None:
        if self.open:
            self.step_out()
            self._sink.write(sse_frame(b"error", shutdown_data(), self.session.event_id()))
            self._finish()

    def cut(self) -> None:
        """End it so that the reader notices and comes again."""
        if self.open:
            self.leave()
            self._sink.abort()

    def give_back(self) -> None:
        """What was not handed over is to be sent again."""
        for _, _, place, cursor in self._unhanded:
            place.give_back(cursor)
        self._unhanded = []
        self._frames = 0

    def leave(self) -> None:
        """The reader is gone, or nothing is left to say. Safe to repeat."""
        if not self.open:
            return
        self.open = False
        self._sink.on_gone = None
        live, session = self._live, self.session
        if self._parked is not None:
            self._parked = None
            live.lagging -= 1
        if self._waits is not None:
            self._waits.cancel()
        for reader in self._readers.values():
            reader.open = False
            live.hub.leave(reader.topic, reader)
        self.settle()
        again = bool(self._unhanded)
        self.give_back()
        live.sessions.closed(session, self, live.broker.clock.now_ms())
        live.leave(self)
        if again:
            for other in session.streams:
                other.look_again()

    def look_again(self) -> None:
        """Cursors of the session went back."""
        for reader in self._readers.values():
            if reader.open and self._parked is None:
                self._live.hub.go_on(reader.topic, reader)
