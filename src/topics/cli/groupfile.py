"""A consumer group as the files of a data directory have it: the last snapshot, then what was done since, op by op.

Reads only; a running server may write meanwhile. Whoever applies the ops to the state, by their numbers, has the group.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from topics.format.control import TopicCreate
from topics.format.frame import BadFrame, Frame, Kind, decode_frame
from topics.format.group import GroupEvent, GroupOp
from topics.format.snapshot import GroupRow, Position
from topics.host.fs import Fs, OsFs
from topics.model.errors import InvalidRequest
from topics.rules.lease_columns import Packed, unpack
from topics.rules.lease_values import Kind as State
from topics.storage.paths import Paths, wal_name, wal_number
from topics.storage.snapshots import Snapshots

_OPS: Final = {
    GroupEvent.PUT: "put", GroupEvent.DROP: "drop", GroupEvent.JOINED: "join", GroupEvent.LEFT: "leave",
    GroupEvent.CLAIMED: "deliver", GroupEvent.RELEASED: "release", GroupEvent.EXTENDED: "extend",
    GroupEvent.SETTLED: "ack", GroupEvent.PARKED: "park", GroupEvent.DEAD: "dlq", GroupEvent.COMMITTED: "commit",
    GroupEvent.SOUGHT: "set_cursor", GroupEvent.KEPT: "state",
}  # fmt: skip


def lines_of(directory: str, topic: str, group: str) -> Iterator[dict[str, Any]]:
    """A `state`, then each `pending` record, then each `op` since."""
    fs, paths = OsFs(), Paths(directory)
    snapshot, _ = Snapshots(fs, paths).load()
    if snapshot is None:
        raise InvalidRequest(f"{directory} is no data directory: it has no snapshot")
    ids = {row.id for row in snapshot.topics if row.name == topic}
    for row in snapshot.topics:
        for found in row.groups if row.id in ids else ():
            if found.name == group:
                yield from _saved(topic, found)
    number = 0
    for key, position in sorted(snapshot.positions.items()):
        for frame in _frames(fs, paths.group(key), position):
            if frame.kind == Kind.TOPIC_CREATE and TopicCreate.decode(frame.body).name == topic:
                ids.add(frame.topic_id)
            elif frame.kind == Kind.GROUP and frame.topic_id in ids:
                op = GroupOp.decode(frame.body)
                if op.group == group:
                    number += 1
                    yield _op(number, frame.ts, op)


def _saved(topic: str, row: GroupRow) -> Iterator[dict[str, Any]]:
    names = ("delivered", "redelivered", "acked", "nacked", "dead_lettered", "lost")
    yield {
        "kind": "state", "topic": topic, "group": row.name, "ts": row.at_ms, "position": row.position,
        **dict(zip(names, row.counters, strict=True)), "members": dict(row.members),
        "config": msgspec.json.decode(row.config),
    }  # fmt: skip
    for seq, entry in sorted(unpack(Packed(row.position, row.holders, row.columns)).entries.items()):
        yield {
            "kind": "pending", "$seq": seq, "state": State(entry.kind).name.lower(), "member": entry.holder,
            "token": entry.token_of(seq), "until": entry.until or None, "count": entry.deliveries,
            "first_ts": entry.first_ms, "last_ts": entry.last_ms,
        }  # fmt: skip


def _op(number: int, ts: int, op: GroupOp) -> dict[str, Any]:
    name = _OPS[GroupEvent(op.event)]
    if op.event == GroupEvent.RELEASED and op.number:
        name = "nack"
    if op.event in (GroupEvent.SETTLED, GroupEvent.CLAIMED) and len(op.rows) > 1:
        name += "_batch"
    line: dict[str, Any] = {"kind": "op", "n": number, "ts": ts, "op": name}
    if op.member:
        line["member"] = op.member
    if op.number:
        line["number"] = op.number
    if op.text:
        line["text"] = msgspec.json.decode(op.text)
    if op.rows:
        line["rows"] = [list(row) for row in op.rows]
    return line | {"crc": zlib.crc32(msgspec.json.encode(line))}


def _frames(fs: Fs, directory: str, position: Position) -> Iterator[Frame]:
    """Whole frames behind the position, up to where each file makes no more sense."""
    if not fs.is_dir(directory):
        return
    for number in sorted(n for name in fs.list(directory) if (n := wal_number(name)) is not None):
        if number < position.file:
            continue
        file = fs.open(f"{directory}/{wal_name(number)}")
        size = file.size()
        view = file.map() if size else memoryview(b"")
        at = position.offset if number == position.file else 0
        while at < size:
            try:
                frame = decode_frame(view, at, size)
            except BadFrame:
                break
            yield frame
            at = frame.end
