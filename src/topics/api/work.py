"""Jobs pushed to a worker: a stream of server-sent events that keeps a number of leases filled.

The leases belong to the connection: when it ends, whatever was not acked by then is claimable at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, TypeVar

import msgspec

from topics.api.auth import Key
from topics.api.call import Call
from topics.api.events import HEARTBEAT, RETRY
from topics.api.http import Answer, Sink, Stream
from topics.api.queues import check_node
from topics.api.service import Service
from topics.api.watch import EVENT_STREAM, STREAM_HEADERS
from topics.broker.jobs import render_jobs
from topics.broker.queue import CLAIM_MAX, LOOK_MS, Work
from topics.broker.steps import Steps
from topics.format.render import NEWLINE
from topics.model.errors import InvalidRequest, NotAcceptable, NotAQueue, NotFound, TopicsError

log = logging.getLogger("topics.api")
T = TypeVar("T")

HEARTBEAT_S: Final = 15.0
_ERROR: Final = b'event: error\ndata: {"code":%b,"error":%b,"topic":%b}\n\n'


def work(service: Service, call: Call) -> Answer:
    (name,) = call.names
    accept = call.head.headers.get(b"accept", b"")
    if accept and EVENT_STREAM not in accept and b"*/*" not in accept:
        raise NotAcceptable("jobs are pushed as text/event-stream")
    if "node" not in call.query:
        raise InvalidRequest("say who works, as ?node=")
    node = call.query["node"]
    check_node(node)
    with service.broker.store.lock:
        service.broker.queues.find(name)
    service.live.check_room(call.key)
    most = min(max(call.number("max", 1), 1), CLAIM_MAX)
    wanted = Work(name, node, most, call.maybe_number("lease_ms"))

    def run(sink: Sink) -> None:
        WorkStream(service, wanted, sink).start(call.key)

    return Stream(200, EVENT_STREAM, run, list(STREAM_HEADERS))


class WorkStream:
    heartbeat_s = HEARTBEAT_S

    def __init__(self, service: Service, work: Work, sink: Sink) -> None:
        self._service = service
        self._work = work
        self._sink = sink
        self._name = msgspec.json.encode(work.name)
        self._task: asyncio.Task[None] | None = None
        self.open = True
        self.sent_at = service.loop.time()

    def start(self, key: Key) -> None:
        live = self._service.live
        live.enter(self, key)
        self._sink.on_gone = self.leave
        self._sink.write(RETRY)
        live.heartbeats.add(self)
        self._task = self._service.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self.open and not self._service.pump.stopping:
                await self._step()
        except (NotFound, NotAQueue) as error:
            self._say_goodbye(b"409", error.message)
        except Exception:
            log.exception("a stream of jobs failed")
            self._sink.abort()
        finally:
            self.leave()
            await self._finished(self._service.broker.queues.release(self._work))

    async def _step(self) -> None:
        try:
            hand = await self._finished(self._service.broker.queues.refill(self._work))
        except (NotFound, NotAQueue):
            raise
        except TopicsError as error:
            # A full disk or a shard that stopped: the leases there are still count, and it may heal.
            log.warning("jobs of %s cannot be claimed: %s", self._work.name, error.message)
            await asyncio.sleep(LOOK_MS / 1000)
            return
        if hand.rows and self.open:
            jobs, _ = render_jobs(self._service.broker.store, hand, NEWLINE)
            for text in jobs.splitlines():
                seq = text[8 : text.index(b",")]
                self._sink.write(b'id: %b\nevent: job\ndata: {"topic":%b,%b\n\n' % (seq, self._name, text[1:]))
            self.sent_at = self._service.loop.time()
            await self._sink.drain()

    async def _finished(self, steps: Steps[T]) -> T:
        """Whoever goes away meanwhile, it comes to its end: leases that nobody knows of could not be given back."""
        result = self._service.pump.run(steps)
        return await result if isinstance(result, asyncio.Future) else result

    def beat(self) -> None:
        self._sink.write(HEARTBEAT)

    def _say_goodbye(self, code: bytes, message: str) -> None:
        if self.open:
            self._sink.write(_ERROR % (code, msgspec.json.encode(message), self._name))
            self.leave()
            self._sink.finish()

    def shutdown(self) -> None:
        self._say_goodbye(b'"server_shutting_down"', "the server is shutting down; connect again")

    def leave(self) -> None:
        """The worker is gone, or nothing is left to say. Safe to repeat."""
        if not self.open:
            return
        self.open = False
        self._sink.on_gone = None
        self._service.live.leave(self)
        with self._service.broker.store.lock:
            if self._work.nap is not None:
                self._work.nap.release()
