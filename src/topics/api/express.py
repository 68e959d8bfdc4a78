"""The short way of appends: those of one turn of the loop to one topic travel together.

    bytes -> Gather (frames) -> [end of the turn] -> one order, one write, one sync -> an answer for each

Only what is the same for all of them goes this way: the body has the usual form and nothing in it but records, the
topic exists, has no cap and is on disk. Everything else takes the usual way, and so does a whole convoy that cannot be
ordered: whatever there is to say about it is said there, to each by itself.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from topics.api.auth import ANYONE, Key, Slots
from topics.api.call import JSON
from topics.api.convoy import Convoy
from topics.api.http import Response, Rider
from topics.api.known import Known
from topics.api.problems import told
from topics.api.render import start_of
from topics.api.service import Service
from topics.format.ops import Gather, render_ack
from topics.model import limits
from topics.model.errors import TopicsError
from topics.storage.append import Append, shares_submission

if TYPE_CHECKING:
    from topics.model.config import TopicConfig

log = logging.getLogger("topics.api")

_CONVOY_BYTES_MAX = 1024 * 1024
_SPARES_MAX = 64
_ANSWER_BYTES = 512
"""An answer without seqs has less, and each seq takes at most 21 more."""


class Departing(Protocol):
    """What waits for the end of the turn."""

    def depart(self) -> int | None:
        """Order it; the shard to be written then. Raises nothing."""
        ...


class Station:
    """Where convoys wait for the end of the turn."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.topics = service.broker.store.topics
        self.now_ns = service.clock.monotonic_ns
        self.waiting: dict[str, AppendConvoy] = {}
        self.others: dict[tuple[str, tuple[str, ...]], Departing] = {}
        """Of other kinds than appends, by kind and what they are about."""
        self._spares: list[Gather] = []

    def convoy(self, name: str) -> AppendConvoy:
        self._call()
        gather = self._spares.pop() if self._spares else Gather()
        convoy = self.waiting[name] = AppendConvoy(self.service, name, gather)
        return convoy

    def add(self, kind: str, names: tuple[str, ...], convoy: Departing) -> None:
        self._call()
        self.others[kind, names] = convoy

    def _call(self) -> None:
        if not (self.waiting or self.others):
            self.service.loop.call_soon(self._depart)

    def _depart(self) -> None:
        waiting, self.waiting = self.waiting, {}
        others, self.others = self.others, {}
        shards = {shard for other in others.values() if (shard := other.depart()) is not None}
        for convoy in waiting.values():
            shard = convoy.depart()
            if shard is not None:
                shards.add(shard)
            if len(self._spares) < _SPARES_MAX:
                self._spares.append(convoy.gather)
        if shards:
            self.service.pump.write_now(shards)


Ticket = tuple[Rider, "AppendExpress", Known, bytes, int, int, int]
"""Who rides, by what, known head, head and body, start of the body, when it came, records."""


class AppendConvoy(Convoy):
    """Appends to one topic."""

    __slots__ = ("_name", "append", "gather", "tickets")

    def __init__(self, service: Service, name: str, gather: Gather) -> None:
        super().__init__(service)
        self._name = name
        self.gather = gather
        self.tickets: list[Ticket] = []
        self.append: Append | None = None

    def depart(self) -> int | None:
        """Order them; the shard to be written then."""
        prepared = self.gather.take()
        if not self.tickets:
            return None
        failed = False
        try:
            self._service.broker.append_together(self._name, prepared, self)
        except TopicsError:
            pass  # the usual way finds it again, and the words for it
        except Exception:
            # Our own mistake; how far it got is not known, so nobody may try again.
            log.exception("appends to %s failed", self._name)
            failed = True
        if self.append is not None:
            return self.append.topic.shard
        self._send_back(self.tickets, failed)
        return None

    def resume(self) -> None:
        append, submission = self.append, self.submission
        assert append is not None
        assert submission is not None
        now_ns = self._service.now_ns()
        waited = now_ns - append.ordered_ns
        if self._service.stats.watched:
            self._service.stats.appended(waited, len(self.tickets))
        synced, error, topic = submission.needs_sync, submission.error, append.topic.name.encode()
        first = append.first_seq
        ticker, start = None, b""
        for rider, express, known, _, _, received_ns, count in self.tickets:
            if express.key is not ANYONE:
                express.give_slot()
            try:
                if error is not None:
                    rider.arrived_late(known, told(error))
                    continue
                if rider.ticker is not ticker:
                    ticker = rider.ticker
                    start = start_of(ticker, 200, JSON)
                spent = now_ns - received_ns
                if rider.ending:
                    body = render_ack(b"", topic, first, count, express.seqs, False, False, synced, waited, spent)
                    rider.arrived_late(known, Response(200, body))
                else:
                    rider.arrived(
                        render_ack(start, topic, first, count, express.seqs, False, False, synced, waited, spent)
                    )
            except Exception as trouble:
                self._undelivered(trouble)
            first += count


class Terminal:
    """What all expresses of a server share."""

    __slots__ = ("slots", "station", "stopping")

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.station: Station | None = None
        """None until the server is ready."""
        self.stopping = False


class AppendExpress:
    """Appends to one topic, by heads that ask for the same."""

    __slots__ = ("_config", "_count_max", "_fits", "_name", "_terminal", "key", "seqs")
    alone = False

    def __init__(self, terminal: Terminal, name: str, key: Key, seqs: bool, answer_max: int | None) -> None:
        self._terminal = terminal
        self._name = name
        self.key = key
        self.seqs = seqs
        """The answer lists them."""
        self._count_max = limits.RECORDS_PER_APPEND
        if answer_max is not None and seqs:
            self._count_max = min((answer_max - _ANSWER_BYTES - len(name.encode())) // 21, self._count_max)
        self._config: TopicConfig | None = None
        self._fits = False

    def take(self, rider: Rider, known: Known, data: bytes, start: int) -> bool:
        terminal, name = self._terminal, self._name
        station = terminal.station
        if station is None or terminal.stopping:
            return False
        topic = station.topics.get(name)
        if topic is None:
            return False
        config = topic.ordered.config
        if config is not self._config:
            self._config, self._fits = config, shares_submission(config)
        if not self._fits:
            return False
        convoy = station.waiting.get(name)
        if convoy is None:
            convoy = station.convoy(name)
        elif convoy.gather.size > _CONVOY_BYTES_MAX:
            return False
        if self.key is not ANYONE and not terminal.slots.take(self.key):
            return False
        count = convoy.gather.add(data, start, self._count_max)
        if count:
            convoy.tickets.append((rider, self, known, data, start, station.now_ns(), count))
            return True
        self.give_slot()
        return False

    def give_slot(self) -> None:
        if self.key is not ANYONE:
            self._terminal.slots.give(self.key)
