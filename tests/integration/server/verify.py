"""Whether a server that was killed and started again keeps what was promised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import msgspec

from tests.contract.http.client import Api
from tests.integration.server.load import Shown, send
from tests.integration.server.promises import (
    CAP,
    CAPPED,
    DEST,
    FAR,
    PICKED,
    PICKED_WORKER,
    SOURCE,
    Batch,
    Maker,
    Promises,
    maker_of,
    raw_of,
)

_record = msgspec.json.Decoder(Shown)


class _RouterKey(msgspec.Struct):
    source_seq: int
    idempotency_key: str


class _RouterMeta(msgspec.Struct):
    key: _RouterKey = msgspec.field(name="_topics_router")


@dataclass
class Content:
    """Everything that one topic holds."""

    name: str
    gaps: list[dict[str, object]] = field(default_factory=list)
    records: list[Shown] = field(default_factory=list)
    makers: dict[Maker, int] = field(default_factory=dict)
    """Maker -> seq, in seq order."""
    raws: dict[int, bytes] = field(default_factory=dict)


def read_all(api: Api, topic: str) -> Content:
    reply = api.call("GET", f"/v0/topics/{topic}/records?from_seq=1", headers={"accept": "application/x-ndjson"})
    content = Content(topic)
    if reply.status == 404:
        return content
    assert reply.status == 200, (topic, reply.status, reply.body)
    *lines, end = reply.body.splitlines()
    assert end.startswith(b'{"end":'), f"{topic} was cut off: {end!r}"
    for line in lines:
        if line.startswith(b'{"tombstone":'):
            content.gaps.append(msgspec.json.decode(line)["tombstone"])
            continue
        record = _record.decode(line)
        content.records.append(record)
    return content


def faults(api: Api, promises: Promises) -> Iterator[str]:
    names = [row["topic"] for row in api.call("GET", "/v0/topics?page_size=1000").json["topics"]]
    # A topic brings in what its direct feeders have: sources come before their dests.
    names.sort(key=lambda name: {SOURCE: 1, DEST: 2, PICKED: 3, FAR: 4}.get(name, 0))
    found = {name: read_all(api, name) for name in names}
    for content in found.values():
        yield from _well_formed(promises, content)
    for batch in promises.batches.values():
        content = found.get(batch.topic, Content(batch.topic))
        yield from _batch(api, promises, batch, content)
    if SOURCE in found:
        yield from _copies(promises, found[SOURCE], found[DEST])
        yield from _picked(found[SOURCE], found[PICKED])
        yield from _chained(promises, found[DEST], found[FAR])
        total = api.call("GET", "/v0/routers/source-%3Edest").json["forwarded_total"]
        if total != len(found[SOURCE].records):
            yield f"{total} records were forwarded of {len(found[SOURCE].records)} in the source"
    for (topic, seq), raw in promises.seen.items():
        yield from _still_there(promises, topic, seq, raw, found[topic])


def _well_formed(promises: Promises, content: Content) -> Iterator[str]:
    name, last = content.name, 0
    for gap in content.gaps:
        if name != CAPPED or gap["reason"] != "cap":
            yield f"{name} says that {gap} was lost"
    for record in content.records:
        raw = bytes(record.data)
        maker = maker_of(raw)
        batch = promises.batches.get(maker[:3])
        if batch is None or raw != raw_of(maker) or record.tag != batch.tag:
            yield f"{name} {record.seq} is not what was appended: {raw!r} {record.tag}"
        if record.seq <= last:
            yield f"{name} {record.seq} comes after {last}"
        last = record.seq
        if maker in content.makers:
            yield f"{name} holds {maker} twice: at {content.makers[maker]} and {record.seq}"
        content.makers[maker] = record.seq
        content.raws[record.seq] = raw
        if record.seq < promises.below.get(name, 0):
            yield f"{name} {record.seq} came back: all below {promises.below[name]} was deleted"
        if batch is not None and batch.fates.get(name) == "gone":
            yield f"{name} {record.seq} came back: {batch} was deleted"


def _batch(api: Api, promises: Promises, batch: Batch, content: Content) -> Iterator[str]:
    fate = batch.fates.get(batch.topic)
    present = {maker: content.makers[maker] for maker in batch.makers if maker in content.makers}
    for maker, seq in present.items():
        first = seq - maker[3]
        if batch.first_seq is not None and first != batch.first_seq and batch.topic == content.name:
            yield f"{batch}: record {maker} stands at {seq}"
        if batch.first_seq is None:
            batch.first_seq = first  # it was done, although nobody said so
    if fate is not None or batch.first_seq is None:
        return
    floor = promises.below_asked.get(batch.topic, 0)
    if batch.topic == CAPPED:
        floor = max(content.raws, default=0) - CAP + 1
    missing = [maker for maker in batch.makers if maker not in present and batch.first_seq + maker[3] >= floor]
    if missing:
        yield f"{batch} lacks {missing}"


def _copies(promises: Promises, source: Content, dest: Content) -> Iterator[str]:
    """Each record of the source once in the dest, in order, but for copies that were deleted there."""
    copied = [maker for maker in dest.makers if maker in source.makers]
    if copied != sorted(copied, key=source.makers.__getitem__):
        yield "copies stand in another order than in the source"
    for maker in source.makers:
        if maker not in dest.makers and DEST not in promises.batches[maker[:3]].fates:
            yield f"{maker} was not copied"
    for maker in dest.makers:
        if maker not in source.makers and promises.batches[maker[:3]].topic != DEST:
            yield f"{maker} is in the dest and not in the source"


def _picked(source: Content, picked: Content) -> Iterator[str]:
    wanted = [maker for maker in source.makers if maker[1] == PICKED_WORKER]
    if list(picked.makers) != wanted:
        yield f"the filtered router copied {len(picked.makers)} of {len(wanted)}"
    keys = set()
    for record in picked.records:
        key = msgspec.json.decode(record.meta, type=_RouterMeta).key
        keys.add(key.idempotency_key)
        if key.source_seq != source.makers.get(maker_of(bytes(record.data))):
            yield f"{PICKED} {record.seq} names the source seq {key.source_seq}"
    if len(keys) != len(picked.records):
        yield "two copies have one key"


def _chained(promises: Promises, dest: Content, far: Content) -> Iterator[str]:
    """The second hop: what was deleted in the dest may or may not have gone on before."""
    passed = [maker for maker in far.makers if maker in dest.makers]
    if passed != list(dest.makers):
        yield f"the second router passed on {len(passed)} of {len(dest.makers)}"
    for maker in far.makers:
        if maker not in dest.makers and DEST not in promises.batches[maker[:3]].fates:
            yield f"{maker} is in {FAR} and not in {DEST}"


def _still_there(promises: Promises, topic: str, seq: int, raw: bytes, content: Content) -> Iterator[str]:
    now = content.raws.get(seq)
    if now is None:
        batch = promises.batches[maker_of(raw)[:3]]
        if topic not in batch.fates and seq >= promises.below_asked.get(topic, 0):
            yield f"{topic} {seq} was read and is gone"
    elif now != raw:
        yield f"{topic} {seq} was read as {raw!r} and is {now!r}"


def repeat_some(api: Api, promises: Promises, rng: Random, count: int = 8) -> None:
    """Appends that were answered before are sent again: the same answer comes, and nothing is appended."""
    keyed = [
        batch
        for batch in promises.batches.values()
        if batch.key is not None and batch.first_seq is not None and not batch.topic.startswith("phoenix")
        and promises.unanswered.get(batch.worker) is not batch
    ]  # fmt: skip
    for batch in rng.sample(keyed, min(count, len(keyed))):
        answer = send(api, batch, as_lines=rng.random() < 0.5).json
        first = batch.first_seq
        assert first is not None
        assert answer["deduped"] is True, (batch, answer)
        assert answer["seqs"] == list(range(first, first + batch.count)), (batch, answer)


def check(api: Api, promises: Promises) -> None:
    found = list(faults(api, promises))
    assert not found, f"{len(found)} promises were broken:\n" + "\n".join(found[:8])
