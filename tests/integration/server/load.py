"""The mixed load: workers that append, delete, drop and read until the server under them dies."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import msgspec

from tests.contract.http.client import Api, Reply
from tests.contract.http.live import Http1, Http2, ServerProcess
from tests.integration.server.promises import (
    CAPPED,
    DEST,
    FAR,
    PICKED,
    SOURCE,
    WINDOW_MS,
    Batch,
    Promises,
    own,
    phoenix,
    raw_of,
)

GONE = (OSError, http.client.HTTPException)
"""How a client learns that the server has died."""


class Shown(msgspec.Struct):
    """A record in an answer."""

    seq: int = msgspec.field(name="$seq")
    data: msgspec.Raw
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: msgspec.Raw = msgspec.Raw(b"null")


class _Page(msgspec.Struct):
    records: list[Shown]
    tombstone: dict[str, object] | None


_page = msgspec.json.Decoder(_Page)


@dataclass
class Habits:
    deletes: int = 10
    """Of a hundred operations."""
    routed: int = 30


class Worker:
    def __init__(
        self, server: ServerProcess, promises: Promises, run: int, number: int, habits: Habits, seed: str
    ) -> None:
        self.promises, self.run_number, self.number, self.habits = promises, run, number, habits
        self.rng = Random(seed)
        self.next_batch = 1
        self.fault: BaseException | None = None
        self.done = 0
        wire = Http2(server.host, server.port) if number == 3 else Http1(server.host, server.port)
        self.api = Api(wire)
        self.topics = ["fsync", "disk", "memory", CAPPED, own(number), phoenix(number), DEST]
        self.unanswered = promises.unanswered.get(number)
        self.thread = threading.Thread(target=self.run, name=f"worker-{number}", daemon=True)

    def run(self) -> None:
        try:
            if self.unanswered is not None and self.unanswered.key is not None:
                self.append_again(self.unanswered)
            for work in self.plan():
                work()
                self.done += 1
        except GONE:
            pass
        except BaseException as error:
            self.fault = error

    def plan(self) -> Iterator[Callable[[], None]]:
        while True:
            dice = self.rng.randrange(100)
            if dice < self.habits.deletes:
                yield self.rng.choice((self.delete_by_tag, self.delete_by_seq, self.delete_copies))
            elif dice < self.habits.deletes + 2:
                yield self.drop
            elif dice < self.habits.deletes + 12:
                yield self.read
            elif dice < self.habits.deletes + 13:
                yield self.checkpoint
            else:
                yield self.append

    def good(self, reply: Reply) -> Reply:
        assert reply.status in (200, 201), (reply.status, reply.body)
        return reply

    def append(self) -> None:
        rng = self.rng
        topic = SOURCE if rng.randrange(100) < self.habits.routed else rng.choice(self.topics)
        number, self.next_batch = self.next_batch, self.next_batch + 1
        key = f"{self.run_number}.{self.number}.{number}" if rng.random() < 0.6 else None
        batch = Batch(topic, self.run_number, self.number, number, rng.choice((1, 1, 1, 3, 20)), key)
        self.promises.ask_append(batch)
        reply = self.good(send(self.api, batch, as_lines=rng.random() < 0.2))
        self.promises.answer_append(batch, reply.json["first_seq"])
        assert reply.json["count"] == batch.count
        assert reply.json["deduped"] is False

    def append_again(self, batch: Batch) -> None:
        """Nobody knows whether it was done; with its key it is done once, whatever happened."""
        self.promises.ask_append(batch)
        reply = self.good(send(self.api, batch, as_lines=False)).json
        if batch.first_seq is not None:
            assert (reply["deduped"], reply["first_seq"]) == (True, batch.first_seq), (batch, reply)
        self.promises.answer_append(batch, reply["first_seq"])

    def delete_by_tag(self) -> None:
        topic = self.rng.choice([topic for topic in self.topics if topic != CAPPED])
        some = self.rng.randrange(1, self.next_batch + 1)
        pattern = f"w{self.number}.{self.run_number}.{some}" + self.rng.choice(("", "*"))
        if topic == DEST and pattern.endswith("*"):
            pattern = pattern[:-1]  # copies of later batches with such a tag may be on their way
        self._delete(topic, pattern)

    def delete_copies(self) -> None:
        """A copy is deleted once it has been seen, so that it is known to be there."""
        mine = [batch for batch in self.promises.by_worker[self.number][-30:] if batch.topic == SOURCE]
        answered = [batch for batch in mine if batch.first_seq is not None]
        if answered:
            self.good(self.api.diff(DEST, limit=1))
            self._delete(DEST, self.rng.choice(answered).tag)

    def _delete(self, topic: str, pattern: str) -> None:
        if topic == phoenix(self.number) and self.api.call("GET", f"/v0/topics/{topic}").status == 404:
            return
        if topic == DEST:
            self.good(self.api.diff(DEST, limit=1))
        hit = self.promises.ask_delete(self.number, topic, pattern)
        match = pattern if self.rng.random() < 0.5 else ["tag", "Glob" if pattern.endswith("*") else "Eq", pattern]
        self.good(self.api.delete(topic, match=match))
        self.promises.answer_delete(topic, hit)

    def delete_by_seq(self) -> None:
        topic = own(self.number)
        head = self.good(self.api.call("GET", f"/v0/topics/{topic}")).json["head_seq"]
        before = max(head - self.rng.randrange(40), 0)
        promises = self.promises
        promises.ask_delete(self.number, topic, "-")  # hits nothing; the last append is no longer the last operation
        promises.below_asked[topic] = max(promises.below_asked.get(topic, 0), before)
        answer = self.good(self.api.delete(topic, before_seq=before)).json
        assert answer["earliest_seq"] >= before
        promises.below[topic] = max(promises.below.get(topic, 0), before)

    def drop(self) -> None:
        topic = phoenix(self.number)
        hit = self.promises.ask_delete(self.number, topic, f"w{self.number}.*")
        self.good(self.api.call("DELETE", f"/v0/topics/{topic}"))
        self.promises.answer_delete(topic, hit)

    def read(self) -> None:
        topic = self.rng.choice(("fsync", "disk", "memory", SOURCE, DEST, PICKED, FAR, own(self.number)))
        head = self.api.state(topic)["head_seq"]
        from_seq = self.rng.randrange(max(head - 200, 0), head + 1)
        reply = self.good(self.api.diff(topic, from_seq=from_seq, limit=self.rng.choice((1, 10, 100))))
        page = _page.decode(reply.body)
        assert page.tombstone is None, page.tombstone
        seqs = [record.seq for record in page.records]
        assert seqs == sorted(set(seqs))
        self.promises.saw(topic, [(record.seq, bytes(record.data)) for record in page.records])

    def checkpoint(self) -> None:
        self.good(self.api.call("POST", "/v0/admin/checkpoint"))


def send(api: Api, batch: Batch, as_lines: bool) -> Reply:
    lines = [b'{"data":%b,"tag":"%b"}' % (raw_of(maker), batch.tag.encode()) for maker in batch.makers]
    headers = {} if batch.key is None else {"idempotency-key": batch.key}
    target = f"/v0/topics/{batch.topic}"
    if as_lines and not batch.topic.startswith("phoenix"):
        return api.call("POST", target, b"\n".join(lines), {**headers, "content-type": "application/x-ndjson"})
    config = b""
    if batch.topic.startswith("phoenix"):
        config = b',"config":{"durability":"%b","idempotency_window_ms":%d}' % (
            (b"fsync", b"disk")[batch.worker % 2],
            WINDOW_MS,
        )
    body = b'{"records":[%b]%b}' % (b",".join(lines), config)
    return api.call("POST", target, body, {**headers, "content-type": "application/json"})
