"""The short way of fetches and acks of a consumer group, as `jobs.py` has it for queues."""

from __future__ import annotations

from typing import Any, Final

from topics.api import groups, queues
from topics.api.call import Handler
from topics.api.groups import records_json, tokens_of
from topics.api.jobs import AckExpress, ClaimExpress, JobConvoy, JobExpress, Ticket
from topics.api.wire import U32, U64, FetchIn, GroupAckIn, bounded, decode
from topics.broker.group import FETCH_MAX
from topics.broker.grouprecords import render_batches
from topics.broker.grouptogether import AckWish, FetchWish, Outcome, ack_group_together, fetch_together
from topics.model.errors import InvalidRequest
from topics.model.group import check_member
from topics.model.leaserows import in_a_row
from topics.storage.groupfetch import Fetched
from topics.storage.topic import Topic


class FetchConvoy(JobConvoy[FetchWish]):
    __slots__ = ("_fetched", "_outcome")

    def _order(self, tickets: list[Ticket[FetchWish]]) -> list[Ticket[FetchWish]]:
        broker = self._service.broker
        topic, group = self._names
        wishes = [ticket[6] for ticket in tickets]
        outcome = fetch_together(broker.store, broker.groups, (topic, group), wishes, self)
        if outcome is None:
            return []
        self._outcome: Outcome[Fetched] = outcome
        self._fetched = [fetched for fetched in outcome.found if fetched is not None]
        return [ticket for ticket, fetched in zip(tickets, outcome.found, strict=True) if fetched is not None]

    def _answers(self, now_ns: int) -> list[bytes]:
        broker, outcome = self._service.broker, self._outcome
        with broker.store.lock:
            batches = broker.groups.batches_of(outcome.place, self._fetched, outcome.now)
        texts = render_batches(broker.store, batches)
        return [records_json(batch, records) for batch, records in zip(batches, texts, strict=True)]


class GroupAckConvoy(JobConvoy[AckWish]):
    __slots__ = ("_group",)

    def _order(self, tickets: list[Ticket[AckWish]]) -> list[Ticket[AckWish]]:
        broker = self._service.broker
        topic, group = self._names
        wishes = [ticket[6] for ticket in tickets]
        outcome = ack_group_together(broker.store, broker.groups, (topic, group), wishes, self)
        if outcome is None:
            return []
        self._group = outcome.place.group
        return [ticket for ticket, verdict in zip(tickets, outcome.found, strict=True) if verdict is not None]

    def _answers(self, now_ns: int) -> list[bytes]:
        with self._service.broker.store.lock:
            committed = self._group.committed
        shape = b'{"acked":%d,"stale":[],"why":{},"committed":%d,'
        return [shape % (len(ticket[6].seqs), committed) for ticket in self.tickets]


class FetchExpress(JobExpress[FetchWish]):
    kind = "fetch"
    convoy = FetchConvoy

    def is_there(self, topic: Topic) -> bool:
        return topic.groups is not None

    def read(self, body: bytes) -> tuple[FetchWish, int]:
        asked, _ = decode(body, FetchIn)
        if asked.claim_idle_ms is not None:
            raise InvalidRequest("what is idle is looked for the usual way")
        most = bounded(asked.max, "max", U32)
        bytes_max = None if asked.max_bytes is None else bounded(asked.max_bytes, "max_bytes", U64)
        waits = bounded(asked.wait_ms, "wait_ms", U64) > 0
        check_member(asked.member)
        return FetchWish(asked.member, asked.generation, most, bytes_max, waits), min(most, FETCH_MAX)


class GroupAckExpress(JobExpress[AckWish]):
    kind = "group ack"
    convoy = GroupAckConvoy

    def is_there(self, topic: Topic) -> bool:
        return topic.groups is not None

    def read(self, body: bytes) -> tuple[AckWish, int]:
        asked, _ = decode(body, GroupAckIn)
        if asked.ranges:
            raise InvalidRequest("ranges are looked up the usual way")
        tokens = tokens_of(asked)
        check_member(asked.member)
        return AckWish(asked.member, asked.generation, in_a_row(asked.seqs), tokens), len(asked.seqs)


BY_EXPRESS: Final[dict[Handler | None, type[JobExpress[Any]]]] = {
    queues.claim: ClaimExpress,
    queues.ack: AckExpress,
    groups.fetch: FetchExpress,
    groups.ack: GroupAckExpress,
}
"""What has a short way of this kind."""
