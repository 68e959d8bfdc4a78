"""The short way of claims and acks: those of one turn of the loop to one queue travel together, as appends do. So do
the fetches and acks of a group (`groupjobs.py`).

    bytes -> tickets -> [end of the turn] -> one order for all, one write -> an answer for each

Only what every call of it has in common goes this way: the queue is on disk and nothing has to be evicted first; the
jobs of an ack are all the node's own. Whoever has anything else to be told is sent the usual way.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

import msgspec

from topics.api.auth import ANYONE, Key
from topics.api.call import JSON
from topics.api.convoy import Convoy
from topics.api.exchange import INLINE_BYTES_MAX, coded
from topics.api.express import Terminal
from topics.api.http import Response, Rider
from topics.api.known import Known
from topics.api.problems import fault, told
from topics.api.queues import check_node, read_tokens, synced_in
from topics.api.render import start_of
from topics.api.service import Service
from topics.api.wire import U32, U64, AckIn, ClaimIn, bounded, decode
from topics.broker.jobs import render_hands
from topics.broker.queue import CLAIM_MAX
from topics.broker.together import Done, Wish, ack_together, claim_together, count_jobs, shares_jobs
from topics.model.errors import TopicsError

if TYPE_CHECKING:
    from topics.model.config import TopicConfig
    from topics.storage.topic import Topic

log = logging.getLogger("topics.api")

T = TypeVar("T")

_JOBS_MAX: Final = 10_000
"""In one convoy: more would keep the loop from others for long."""

Ticket = tuple[Rider, "JobExpress[T]", Known, bytes, int, int, T]
"""Who rides, by what, known head, head and body, start of the body, when it came, what is asked for."""


class JobConvoy(Convoy, Generic[T]):
    """Calls of one kind to one queue."""

    __slots__ = ("_names", "jobs", "tickets")

    def __init__(self, service: Service, names: tuple[str, ...]) -> None:
        super().__init__(service)
        self._names = names
        """A queue, or a topic and its group."""
        self.tickets: list[Ticket[T]] = []
        self.jobs = 0

    def depart(self) -> int | None:
        tickets, failed = self.tickets, False
        try:
            self.tickets = self._order(tickets)
        except TopicsError:
            self.tickets = []  # the usual way finds it again, and the words for it
        except Exception:
            # Our own mistake; how far it got is not known, so nobody may try again.
            log.exception("jobs of %s failed", "/".join(self._names))
            self.tickets, failed = [], True
        if len(self.tickets) < len(tickets):
            staying = set(map(id, self.tickets))
            self._send_back([ticket for ticket in tickets if id(ticket) not in staying], failed)
        if self.submission is None:
            self.resume()
            return None
        assert self.submission.shard is not None
        return self.submission.shard.index

    @abstractmethod
    def _order(self, tickets: list[Ticket[T]]) -> list[Ticket[T]]:
        """Those that go on from here."""

    @abstractmethod
    def _answers(self, now_ns: int) -> list[bytes]:
        """The bodies for them, up to the performance block."""

    def _spent(self, now_ns: int) -> bytes:
        """What the performance block says besides the whole time."""
        return b""

    def resume(self) -> None:
        if not self.tickets:
            return
        now_ns = self._service.now_ns()
        error = None if self.submission is None else self.submission.error
        answers: list[bytes] = []
        more = b""
        if error is None:
            try:
                answers, more = self._answers(now_ns), self._spent(now_ns)
            except TopicsError as trouble:
                error = trouble
            except Exception:
                log.exception("jobs of %s failed", "/".join(self._names))
        for at, (rider, express, known, _, _, received_ns, _) in enumerate(self.tickets):
            express.give_slot()
            try:
                if error is not None or not answers:
                    rider.arrived_late(known, fault() if error is None else told(error))
                    continue
                spent = b'"performance":{"server_total_ms":%.6f%b}}' % ((now_ns - received_ns) / 1e6, more)
                body = answers[at] + spent
                if len(body) >= express.plain_max:
                    self._code(rider, known, Response(200, body))
                elif rider.ending:
                    rider.arrived_late(known, Response(200, body))
                else:
                    rider.arrived(b"%b%d\r\n\r\n%b" % (start_of(rider.ticker, 200, JSON), len(body), body))
            except Exception as trouble:
                self._undelivered(trouble)

    def _code(self, rider: Rider, known: Known, answer: Response) -> None:
        """In a thread, if it is large."""
        accepted = known.headers[b"accept-encoding"]
        if len(answer.body) <= INLINE_BYTES_MAX:
            rider.arrived_late(known, coded(answer, accepted))
            return

        def tell(done: asyncio.Future[Response]) -> None:
            rider.arrived_late(known, answer if done.cancelled() or done.exception() else done.result())

        self._service.loop.run_in_executor(self._service.readers, coded, answer, accepted).add_done_callback(tell)


class ClaimConvoy(JobConvoy[Wish]):
    __slots__ = ("_hands",)

    def _order(self, tickets: list[Ticket[Wish]]) -> list[Ticket[Wish]]:
        broker = self._service.broker
        hands = claim_together(broker.store, broker.queues, self._names[0], [ticket[6] for ticket in tickets], self)
        if hands is None:
            return []
        self._hands = hands
        return tickets

    def _answers(self, now_ns: int) -> list[bytes]:
        store, hands = self._service.broker.store, self._hands
        ready, _ = count_jobs(store, hands[0].topic)
        topic = msgspec.json.encode(self._names[0])
        return [
            b'{"topic":%b,"claimed":[%b],"count":%d,"ready":%d,' % (topic, text, count, ready)
            for text, count in render_hands(store, hands)
        ]


class AckConvoy(JobConvoy[Done]):
    __slots__ = ("_ordered_ns", "_topic")

    def _order(self, tickets: list[Ticket[Done]]) -> list[Ticket[Done]]:
        broker = self._service.broker
        acked = ack_together(broker.store, broker.queues, self._names[0], [ticket[6] for ticket in tickets], self)
        if acked is None:
            return []
        self._topic: Topic = acked.topic
        self._ordered_ns = self._service.now_ns()
        return [ticket for ticket, taken in zip(tickets, acked.taken, strict=True) if taken]

    def _answers(self, now_ns: int) -> list[bytes]:
        broker = self._service.broker
        ready, in_flight = count_jobs(broker.store, self._topic)
        topic = msgspec.json.encode(self._names[0])
        answers = []
        for ticket in self.tickets:
            node, seqs, _ = ticket[6]
            broker.queues.wake(self._names[0], node)
            answers.append(
                b'{"topic":%b,"acked":%d,"skipped":[],"why":{},"ready":%d,"in_flight":%d,'
                % (topic, len(seqs), ready, in_flight)
            )
        return answers

    def _spent(self, now_ns: int) -> bytes:
        submission = self.submission
        synced = submission is not None and submission.needs_sync
        return synced_in(now_ns - self._ordered_ns) if synced else b""


class JobExpress(ABC, Generic[T]):
    """Calls of one kind to one queue, by heads that ask for the same."""

    __slots__ = ("_config", "_fits", "_names", "_terminal", "key", "plain_max")
    alone = True
    kind: ClassVar[str]
    convoy: ClassVar[type[JobConvoy[T]]]

    def __init__(self, terminal: Terminal, names: tuple[str, ...], key: Key, answer_max: int | None) -> None:
        self._terminal = terminal
        self._names = names
        self.key = key
        self.plain_max = sys.maxsize if answer_max is None else answer_max
        """Answers that are not smaller are coded as the client accepts it."""
        self._config: TopicConfig | None = None
        self._fits = False

    @abstractmethod
    def read(self, body: bytes) -> tuple[T, int]:
        """What is asked for, and how many jobs that may be; raises TopicsError where the usual way has to say why."""

    def is_there(self, topic: Topic) -> bool:
        """Whether the topic has what such calls are about."""
        return topic.queue is not None

    def take(self, rider: Rider, known: Known, data: bytes, start: int) -> bool:
        terminal, names = self._terminal, self._names
        station = terminal.station
        if station is None or terminal.stopping:
            return False
        topic = station.topics.get(names[0])
        if topic is None or not self.is_there(topic):
            return False
        config = topic.ordered.config
        if config is not self._config:
            self._config, self._fits = config, shares_jobs(config)
        if not self._fits:
            return False
        try:
            asked, jobs = self.read(data[start:])
        except TopicsError:
            return False
        convoy = station.others.get((self.kind, names))
        if convoy is None:
            convoy = self.convoy(station.service, names)
        assert isinstance(convoy, self.convoy)
        if convoy.jobs + jobs > _JOBS_MAX:
            return False
        if self.key is not ANYONE and not terminal.slots.take(self.key):
            return False
        if not convoy.tickets:
            station.add(self.kind, names, convoy)
        convoy.jobs += jobs
        convoy.tickets.append((rider, self, known, data, start, station.now_ns(), asked))
        return True

    def give_slot(self) -> None:
        if self.key is not ANYONE:
            self._terminal.slots.give(self.key)


class ClaimExpress(JobExpress[Wish]):
    kind = "claim"
    convoy = ClaimConvoy

    def read(self, body: bytes) -> tuple[Wish, int]:
        asked, _ = decode(body, ClaimIn)
        most = bounded(asked.max, "max", U32)
        lease_ms = None if asked.lease_ms is None else bounded(asked.lease_ms, "lease_ms", U64)
        check_node(asked.node)
        return (asked.node, most, lease_ms), min(most, CLAIM_MAX)


class AckExpress(JobExpress[Done]):
    kind = "ack"
    convoy = AckConvoy

    def read(self, body: bytes) -> tuple[Done, int]:
        asked, _ = decode(body, AckIn)
        tokens = read_tokens(asked.node, asked.seqs, asked.lease_ids)
        return (asked.node, asked.seqs, tokens), len(asked.seqs)
