"""A running server: sealed history comes from segment files, unparsed, the rest from the server's own reading.

Where a task can open the files that the server names, it reads them itself; else it takes their bytes through the
server. Before it believes a file it asks the server about that segment once more: what was deleted until then is left
out, a file that was replaced is opened again, and one that is gone is read by seq, which tells the loss.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from topics.client.answers import Segment, SegmentList
from topics.client.sync import Client, RecordStream
from topics.format.decode import COLUMN_DATA, COLUMN_KEY, COLUMN_META, COLUMN_TAG
from topics.format.segment import ENTRY_DTYPE, ENTRY_SIZE
from topics.host.fs import Fs, OsFs, parent
from topics.model.errors import CorruptFile, GenerationChanged, Recreated, SegmentGone, StorageError, StreamCut
from topics.spark.frames import Frames, Wanted, read_rows, slices
from topics.spark.options import TIMEOUT_MS
from topics.spark.places import Damage, Head, Loss, Plan, SegmentPlace, ServerPlace, Span
from topics.spark.ranges import clipped, without
from topics.spark.reaching import client_for
from topics.spark.rest_state import store_id
from topics.spark.rows import TEXTS, TIME, Rows
from topics.spark.segment_files import REMEDIES, SegmentFiles
from topics.spark.words import OPTIONS, Words

_TRIES: Final = 4
"""How often a segment that keeps changing is opened again before the server is asked for its records instead."""
_READ_BYTES: Final = 1 << 20
_CUTS: Final = 5
"""How often in a row a stream may break off without a record: a server cuts the stream of a slow reader, too."""
_RECORD_BYTES: Final = 256
"""What a record is taken to weigh where nothing tells."""

_INCLUDE: Final = ((COLUMN_TAG, "tags"), (COLUMN_META, "meta"), (COLUMN_KEY, "keys"), (COLUMN_DATA, "data"))


class ServerOrigin:
    def __init__(
        self,
        url: str,
        token: str | None,
        store: str | None = None,
        fs: Fs | None = None,
        timeout_ms: int = TIMEOUT_MS,
        words: Words = OPTIONS,
    ) -> None:
        self._url = url
        self._token = token
        self._timeout_ms = timeout_ms
        self._words = words
        self._fs: Fs = fs or OsFs()
        self._client: Client | None = None
        self._stores: dict[str, str | None] = {}
        """By directory, the store in it as far as this machine sees it."""
        self.store = store

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerOrigin, (self._url, self._token, self.store, None, self._timeout_ms, self._words)

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = client_for(self._url, self._token, self._timeout_ms, self._words)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    # -- what there is -------------------------------------------------------------------------------------------------

    def topic_names(self) -> list[str]:
        return [topic.topic for topic in self.client.topics()]

    def heads(self, asked: dict[str, int], wait_ms: int = 0) -> dict[str, Head]:
        """Those of the asked topics that exist, all at one instant; with `wait_ms` once one has a safe record there."""
        found = self.client.heads(asked, wait_ms=wait_ms)
        self.store = found.store
        return {
            name: Head(
                f"{found.store}-{head.epoch}", head.epoch, head.head_seq, head.durable_seq, head.earliest_seq,
                head.bytes_ahead or 0,
            )
            for name, head in found.topics.items()
        }  # fmt: skip

    def seq_at(self, name: str, ts: int) -> int:
        """The first live seq whose time is `ts` or later, or head + 1."""
        return self.client.at(name, ts).seq

    # -- planning ------------------------------------------------------------------------------------------------------

    def plan(self, name: str, topic_id: int, start: int, end: int) -> Plan:
        """Where the seqs start..end of a topic are; what is lost of them; Recreated if it is another instance now."""
        listed = self.client.segments(name, from_seq=start, to_seq=end)
        if listed.topic_id != topic_id:
            raise Recreated(f"topic {name!r} was created again while the query was planned: load it again", topic=name)
        losses = _losses(listed, start, end)
        told = [(loss.gap_from, loss.gap_to) for loss in losses]
        # One answer of the server, made under its lock: what is neither in a segment nor in the tail of that answer is
        # nowhere, because all of it was deleted. A server that does not tell its tail is asked for every seq.
        tail = 0 if listed.tail is None else listed.tail.from_seq
        spans: list[Span] = []
        for low, high in without(max(start, listed.earliest_seq), end, told):
            at = low
            for row in listed.segments:
                first, last = max(low, row.first_seq), min(high, row.end_seq)
                if first >= last:
                    continue
                spans += self._unlisted(name, topic_id, max(at, tail), first)
                share = row.bytes * (last - first) // max(row.end_seq - row.first_seq, 1)
                spans.append(Span(name, topic_id, first, last, share, _place(row)))
                at = last
            spans += self._unlisted(name, topic_id, max(at, tail), high)
        return Plan(spans, losses)

    @staticmethod
    def _unlisted(name: str, topic_id: int, start: int, end: int) -> list[Span]:
        """Seqs in no segment yet: the server's WAL or memory has them."""
        return [Span(name, topic_id, start, end, (end - start) * _RECORD_BYTES, ServerPlace())] if start < end else []

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, spans: list[Span], wanted: Wanted) -> Iterator[Rows | Loss | Damage]:
        try:
            for span in spans:
                if isinstance(span.place, SegmentPlace):
                    yield from _told_once(self._segment(span, span.place, wanted))
                else:
                    yield from self._records(span, wanted)
        finally:
            self.close()

    def _segment(self, span: Span, place: SegmentPlace, wanted: Wanted) -> Iterator[Rows | Loss | Damage]:
        at = span.start_seq
        for _ in range(_TRIES):
            # Opened first, then asked about: what the answer says holds for what is open.
            files, damage = self._local(place)
            listed = self.client.segments(span.topic, from_seq=at, to_seq=span.end_seq)
            if listed.topic_id != span.topic_id:
                yield Loss(span.topic, at, span.end_seq - 1, "recreated")
                return
            row = next((row for row in listed.segments if row.first_seq == place.first_seq), None)
            if row is None or row.end_seq < span.end_seq:
                break
            if row.generation != place.generation or row.sealed != place.sealed:
                place = _place(row)
                if files is not None or damage is not None:
                    continue
            if damage is not None:
                raise damage
            losses = _losses(listed, at, span.end_seq)
            for loss in losses:
                yield loss
                if loss.gap_from == at:
                    at = loss.gap_to + 1  # told: whoever has to ask again asks behind it
            if at >= span.end_seq:
                return
            gone = [(1, listed.earliest_seq - 1), *row.deleted, *((loss.gap_from, loss.gap_to) for loss in losses)]
            part = span.cut(at, span.end_seq)
            dead = clipped(gone, at, span.end_seq)
            items = files.read(part, dead, wanted) if files is not None else self._fetched(part, place, dead, wanted)
            try:
                for item in items:
                    yield item
                    at = item.seq + 1 if isinstance(item, Damage) else item.seq[-1].as_py() + 1
                return
            except (GenerationChanged, SegmentGone):
                continue
        yield from self._records(span.cut(at, span.end_seq), wanted)

    def _local(self, place: SegmentPlace) -> tuple[SegmentFiles | None, CorruptFile | None]:
        """The segment's files, if they are on this machine and of this store; what is wrong with them, if they are
        still those of the place."""
        if place.path is None:
            return None, None
        root = parent(parent(parent(place.path)))
        if root not in self._stores:
            try:
                self._stores[root] = store_id(self._fs, root)
            except (OSError, StorageError):
                self._stores[root] = None
        if self.store is None or self._stores[root] != self.store:
            return None, None
        try:
            return SegmentFiles(self._fs, place), None
        except CorruptFile as error:
            return None, error
        except OSError:  # the server has the bytes, or says what became of them
            return None, None

    def _fetched(
        self, span: Span, place: SegmentPlace, dead: tuple[tuple[int, int], ...], wanted: Wanted
    ) -> Iterator[Rows | Damage]:
        """The segment's bytes by way of the server, slice by slice."""
        etag = f'"{span.topic_id}-{place.generation}"'
        name, first = span.topic, place.first_seq
        low, high = (span.start_seq - first) * ENTRY_SIZE, (span.end_seq - first) * ENTRY_SIZE
        index = self._part(name, first, "idx", low, high, etag)
        path = f"{self._url}/v0/topics/{name}/segments/{first}/data"
        for start, stop in slices(index):
            entries = index[start * ENTRY_SIZE : stop * ENTRY_SIZE]
            column = np.frombuffer(entries, dtype=ENTRY_DTYPE)
            column = column[column["length"] > 0]
            if not len(column):
                continue
            base = int(column["offset"].min())
            end = int((column["offset"].astype(np.int64) + column["length"]).max())
            data = self._part(name, first, "data", base, end, etag)
            frames = Frames(name, span.topic_id, path, span.start_seq + start, data, entries, base)
            yield from read_rows(frames, dead, wanted)

    def _part(self, name: str, first_seq: int, part: str, start: int, end: int, etag: str) -> bytes:
        try:
            return self.client.segment_part(name, first_seq, part, start=start, end=end, if_match=etag).data
        except CorruptFile as error:
            file = error.facts.get("file", f"/v0/topics/{name}/segments/{first_seq}/{part}")
            why = f"the server has no whole file for topic {name!r} from seq {first_seq} on: {REMEDIES}"
            raise CorruptFile(f"{file} of {self._url}", int(error.facts.get("offset", 0)), why) from None

    def _records(self, span: Span, wanted: Wanted) -> Iterator[Rows | Loss]:
        """The records as the server reads them; a stream that breaks off is taken up where it broke."""
        at = span.start_seq
        cuts = 0
        while at < span.end_seq:
            began = at
            try:
                with self.client.records_arrow(
                    span.topic,
                    from_seq=at,
                    to_seq=span.end_seq,
                    epoch=span.topic_id,
                    tag=wanted.filter.tag,
                    node=wanted.filter.node,
                    key=wanted.filter.key,
                    include=[word for bit, word in _INCLUDE if wanted.want & bit],
                ) as stream:
                    for item in _items(span.cut(at, span.end_seq), stream, wanted.want):
                        if isinstance(item, Loss):  # it may reach, or lie, beyond what was asked for
                            if item.gap_from >= span.end_seq:
                                return
                            item = replace(item, gap_to=min(item.gap_to, span.end_seq - 1))
                        yield item
                        at = item.gap_to + 1 if isinstance(item, Loss) else item.seq[-1].as_py() + 1
                return
            except Recreated:
                yield Loss(span.topic, at, span.end_seq - 1, "recreated")
                return
            except StreamCut:
                cuts = cuts + 1 if at == began else 1
                if cuts > _CUTS:
                    raise


def _place(row: Segment) -> SegmentPlace:
    index = None if row.idx_xxh3 is None else int(row.idx_xxh3, 16)
    return SegmentPlace(row.first_seq, row.end_seq, int(row.parts["data"]), row.generation, row.sealed, row.path, index)


def _losses(listed: SegmentList, start: int, end: int) -> list[Loss]:
    return [
        Loss(listed.topic, max(first, start), min(last, end - 1), reason)
        for first, last, reason in listed.gaps
        if first < end and last >= start
    ]


def _told_once(items: Iterator[Rows | Loss | Damage]) -> Iterator[Rows | Loss | Damage]:
    """What is lost in a span is heard again with every question about it."""
    told: list[tuple[int, int]] = []
    for item in items:
        if not isinstance(item, Loss):
            yield item
            continue
        for low, high in without(item.gap_from, item.gap_to + 1, sorted(told)):
            yield replace(item, gap_from=low, gap_to=high - 1)
        told.append((item.gap_from, item.gap_to))


def _items(span: Span, stream: RecordStream[bytes], want: int) -> Iterator[Rows | Loss]:
    """A head below the span, which was planned up to a higher one, is that of an older copy of the topic."""
    topic = span.topic
    # Arrow takes a short read for the end, so somebody has to read until there is enough.
    with pa.ipc.open_stream(io.BufferedReader(_Pieces(stream), _READ_BYTES)) as reader:
        for batch in reader:
            kind = batch.column("kind")[0].as_py()
            if kind == "end":
                head = batch.column("gap_to")[0].as_py()
                if head + 1 < span.end_seq:
                    yield Loss(topic, max(head + 1, span.start_seq), span.end_seq - 1, "recreated")
                continue
            if kind == "gap":
                first, last = batch.column("gap_from")[0].as_py(), batch.column("gap_to")[0].as_py()
                yield Loss(topic, first, last, batch.column("reason")[0].as_py())
                continue
            texts = {name: batch.column(name) for number, name in enumerate(TEXTS) if want & 1 << number}
            yield Rows(topic, batch.num_rows, batch.column("seq"), batch.column("ts").cast(TIME), texts)


class _Pieces(io.RawIOBase):
    """A streamed answer as a file."""

    def __init__(self, stream: RecordStream[bytes]) -> None:
        self._stream = stream
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._stream, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._rest))
        view[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
