"""Damage that a store refuses to start on, and salvage: what it keeps, what it says, and that all is whole again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from tests.crash.probe import ROOT, contents, manifest_firsts, newest_snapshot, proven_frames
from topics.format.checksum import shard_of
from topics.format.control import RouterCursor
from topics.format.frame import BadFrame, Frame, Kind, decode_frame
from topics.format.staged import StageVerdict
from topics.host.clock import Clock
from topics.model.errors import CorruptFile
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.paths import Paths, group_key
from topics.testing.disk import FakeDisk
from topics.testing.ids import FakeIds
from topics.testing.oracle import Violation
from topics.testing.order import OrderFs

_ROUTERS = (Kind.ROUTER_CREATE, Kind.ROUTER_DELETE, Kind.ROUTER_CURSOR)


@dataclass(frozen=True, slots=True)
class Damage:
    """What was spoilt below a proven sync."""

    what: str
    path: str
    topics: frozenset[int]
    """Whose frames lie there: of them only honesty is asked."""
    routers: bool = False
    """So do frames of routers."""
    cursors: frozenset[int] = frozenset()
    """The routers whose progress is said there: they may be back where they were before."""
    group: str = ""
    shards: int = 0
    """Of a WAL file: its group, and how many there were."""
    prepared: frozenset[int] = frozenset()
    """Topics whose Prepares may have had their verdict there."""

    def doubts(self, topic_id: int) -> bool:
        """Might records of this topic have been there, or what made them count, for all that a start can tell?"""
        if self.shards > 0 and group_key(shard_of(topic_id, self.shards), self.shards) == self.group:
            return True
        return topic_id in self.prepared


def spoil_proven(disk: FakeDisk, rng: Random, options: StoreOptions, clock: Clock) -> Damage | None:
    """Damage bytes that were synced and that a start needs; None if there are none. Tried on a twin of the disk: what
    nobody needs today may be needed once a cut has taken an un-synced delete away, so that is left alone."""
    spoil, state = rng.choice((_rot, _rot, _lose_segment)), rng.getstate()
    twin = disk.clone()
    damage = spoil(twin, rng)
    if damage is None or not _refused(twin, damage, options, clock):
        return None
    rng.setstate(state)
    return spoil(disk, rng)


def _rot(disk: FakeDisk, rng: Random) -> Damage | None:
    choices = proven_frames(disk)
    if not choices:
        return None
    path, offset, size = rng.choice(choices)
    damage = _of_file("a rotten frame", disk, path)
    disk.corrupt(path, offset + rng.randrange(size), 1 + rng.randrange(255))
    return damage


def _frames(disk: FakeDisk, path: str) -> Iterator[Frame]:
    """The whole ones from the front."""
    data, at = disk.read(path), 0
    with contextlib.suppress(BadFrame):
        while True:
            yield (frame := decode_frame(data, at, len(data)))
            at = frame.end


def _of_file(what: str, disk: FakeDisk, path: str) -> Damage:
    topics: set[int] = set()
    cursors: set[int] = set()
    routers = False
    for frame in _frames(disk, path):
        topics.add(frame.topic_id)
        routers = routers or frame.kind in _ROUTERS
        if frame.kind == Kind.ROUTER_CURSOR:
            cursors.add(RouterCursor.decode(frame.body).router_id)
        if frame.kind == Kind.STAGE_VERDICT:  # without it the Prepares of these topics count for nothing
            topics.update(topic_id for topic_id, _, _ in StageVerdict.decode(frame.body).rows)
    snapshot = newest_snapshot(disk)
    group = path.removeprefix(f"{ROOT}/wal/").rpartition("/")[0]
    shards = snapshot.shards if snapshot is not None else 0
    prepared: set[int] = set()
    if shards and group == group_key(0, shards):
        files = [name for name in disk.files() if name.endswith(".log")]
        prepared = {f.topic_id for name in files for f in _frames(disk, name) if f.kind == Kind.STAGE_PREPARE}
    return Damage(what, path, frozenset(topics - {0}), routers, frozenset(cursors), group, shards, frozenset(prepared))


def _lose_segment(disk: FakeDisk, rng: Random) -> Damage | None:
    snapshot = newest_snapshot(disk)
    rows = [(row.id, segment) for row in snapshot.topics for segment in row.segments] if snapshot is not None else []
    if not rows:
        return None
    topic_id, segment = rng.choice(rows)
    path = f"{Paths(ROOT).topic(topic_id)}/seg-{segment.first:016d}.data"
    if path not in disk.files():
        return None
    if rng.random() < 0.5:
        disk.remove(path)
        disk.sync_dir(path.rpartition("/")[0])
        return Damage("a lost segment", path, frozenset((topic_id,)))
    file = disk.open(path, write=True)
    file.truncate(rng.randrange(max(segment.data_len, 1)))
    file.sync()
    return Damage("a shortened segment", path, frozenset((topic_id,)))


def _refused(twin: FakeDisk, damage: Damage, options: StoreOptions, clock: Clock) -> bool:
    """A strict start on it names the file and changes nothing. False: a segment was spoilt that nobody needs."""
    before = contents(twin)
    strict = replace(options, recovery="strict")
    try:
        open_store(OrderFs(twin, manifest_firsts), ROOT, strict, clock, FakeIds(0), contextlib.nullcontext())
    except CorruptFile as error:
        if error.facts.get("path") != damage.path:
            raise Violation(f"{damage.what}, {damage.path}, is called: {error}") from error
        if contents(twin) != before:
            raise Violation("a start that was refused changed files") from error
        return True
    if damage.what == "a rotten frame":
        raise Violation(f"{damage.what} in {damage.path}, below what was proven synced, is taken for a torn tail")
    return False
