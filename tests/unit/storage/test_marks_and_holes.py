"""What a checkpoint leaves for others to read: the rows of its mark, and the times of holes in an index."""

from __future__ import annotations

from tests.crash.life import ROOT, Life
from topics.format.control import MarkRow, SnapshotMark, decode_mark
from topics.format.frame import BadFrame, Kind, decode_frame
from topics.format.ops import rebuild_idx
from topics.format.segment import ENTRY
from topics.storage.timesearch import first_at


def marks(life: Life) -> list[SnapshotMark]:
    found: list[SnapshotMark] = []
    for path in life.disk.files():
        if not path.endswith(".log"):
            continue
        data, at = life.disk.read(path), 0
        while True:
            try:
                frame = decode_frame(data, at, len(data))
            except BadFrame:
                break
            mark = decode_mark(frame.body) if frame.kind == Kind.CHECKPOINT_MARK else None
            if isinstance(mark, SnapshotMark):
                found.append(mark)
            at = frame.end
    return found


def test_mark_of_a_checkpoint_tells_where_its_changed_topics_stand() -> None:
    life = Life(wal_file_bytes=65536, segment_max_events=5)
    life.open()
    life.create("a", durability="fsync", cap_records=3)
    life.create("b", durability="fsync")
    life.append("a", 4)
    assert life.store.checkpoint()
    life.append("a", 2)
    life.delete("a", before_seq=5)
    assert life.store.checkpoint()
    assert life.store.checkpoint()
    a, b = life.store.topic("a").id, life.store.topic("b").id
    size = len(life.disk.read(f"{ROOT}/topics/{a:08X}/seg-{2:016d}.data"))
    first, second, third = marks(life)
    assert first.rows == (MarkRow(a, 4, 1, 0, 0, 0, 0, 0), MarkRow(b, 0, 0, 0, 0, 0, 0, 0))
    (row,) = second.rows
    assert (row.topic_id, row.ckpt_seq, row.evict_floor, row.delete_below) == (a, 6, 3, 5)
    assert (row.segment_first, row.idx_entries) == (2, 3)
    assert 0 < row.data_len < size
    assert third.rows == ()
    assert [mark.snapshot_id for mark in (first, second, third)] == [2, 3, 4]


def test_mark_counts_what_is_ordered_in_front_of_it_and_not_committed_yet() -> None:
    life = Life(wal_file_bytes=65536)
    life.open()
    life.create("a", durability="fsync")
    life.store.checkpoint()
    deleted, _ = life.store.delete("a", 1, None)
    assert deleted is None
    life.append("a", 2)
    later = life.store.delete("a", 2, None)[0]
    assert later is not None
    assert life.store.checkpoint()
    assert [(row.ckpt_seq, row.delete_below) for row in marks(life)[-1].rows] == [(2, 2)]


def test_hole_in_an_index_carries_the_time_of_the_record_before_it() -> None:
    life = Life(segment_max_events=20)
    life.open()
    life.create("a", durability="fsync")
    for tag in ("keep", "gone", "gone", "keep", "gone"):
        life.append("a", 1, tag)
        life.clock.advance(100)
    life.delete("a", tag="gone")
    life.store.checkpoint()
    life.append("a", 1, "gone")
    life.clock.advance(100)
    life.append("a", 1, "keep")
    life.delete("a", tag="gone")
    life.store.checkpoint()
    topic = life.store.topic("a")
    base = f"{ROOT}/topics/{topic.id:08X}/seg-{1:016d}"
    data, idx = life.disk.read(f"{base}.data"), life.disk.read(f"{base}.idx")
    assert idx == rebuild_idx(data, 1, len(data))[0]
    times = [ENTRY.unpack_from(idx, at)[2] for at in range(0, len(idx), ENTRY.size)]
    assert [time - times[0] for time in times] == [0, 0, 0, 300, 300, 300, 600]
    assert first_at(topic, times[3]) == 4
    assert first_at(topic, times[3] + 1) == 7
