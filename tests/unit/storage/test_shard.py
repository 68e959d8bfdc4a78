"""A WAL shard by itself: order, lanes, barriers, limits, refusal and healing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from topics.format.frame import Kind, decode_frame, encode_frame
from topics.format.ops import scan_wal
from topics.host.fs import read_file
from topics.model.errors import DiskFull, ReadOnly, Throttled, WriteFailed
from topics.storage.options import StoreOptions
from topics.storage.submission import State, Submission
from topics.storage.turn import Numbers, Write
from topics.storage.wal import Shard
from topics.testing.clock import FakeClock
from topics.testing.disk import FakeDisk
from topics.testing.faults import Fault, FaultFs
from topics.testing.order import OrderFs

FRAME = encode_frame(Kind.HEAD_WATERMARK, 1, bytes(8))


class Bench:
    def __init__(self, **options: Any) -> None:
        self.disk = FakeDisk(1)
        self.disk.mkdir("/wal")
        self.disk.sync_dir("/")
        self.fs = FaultFs(OrderFs(self.disk))
        self.clock = FakeClock(monotonic=10**12)
        self.done: list[str] = []
        self.failed_syncs = 0
        chosen = StoreOptions(**{"wal_file_bytes": 1024, "evidence_ms": 1000, **options})
        self.shard = Shard(0, "", "/wal", self.fs, self.clock, chosen, Numbers(1), [], self._failed_sync)

    def _failed_sync(self) -> None:
        self.failed_syncs += 1

    def put(
        self,
        name: str,
        lane: int = 1,
        *,
        sync: bool = False,
        barrier: bool = False,
        detached: bool = False,
        ceiling: Callable[[], bool] | None = None,
        frames: int = 1,
    ) -> Submission:
        submission = Submission(
            lane,
            [FRAME] * frames,
            lambda _: self.done.append(name),
            needs_sync=sync,
            barrier=barrier,
            detached=detached,
            ceiling=ceiling,
            on_fail=lambda _: self.done.append(f"{name} failed"),
        )
        return self.shard.submit(submission)

    def step(self) -> Write:
        write = self.shard.take()
        assert write is not None
        self.shard.run(write)
        self.shard.finish(write)
        return write

    def sync(self) -> None:
        sync = self.shard.take_sync()
        assert sync is not None
        sync.run()
        self.shard.finish_sync(sync)


def test_all_that_queued_is_one_write_in_order() -> None:
    bench = Bench()
    for name in "abc":
        bench.put(name, lane=ord(name))
    bench.step()
    assert bench.done == ["a", "b", "c"]
    assert bench.shard.stats.batches == 1
    assert bench.shard.take() is None


def test_a_submission_that_needs_a_sync_waits_for_it_and_blocks_its_lane_alone() -> None:
    bench = Bench()
    write = bench.put("first")
    bench.step()
    bench.put("needs", lane=2, sync=True, detached=True)
    late = bench.put("needs too", lane=3, sync=True, detached=True)
    bench.put("free", lane=4)
    bench.step()
    assert write.settled
    assert bench.done == ["first", "free"]
    assert late.state == State.WRITTEN
    bench.sync()
    assert bench.done == ["first", "free", "needs", "needs too"]


def test_an_urgent_submission_is_synced_with_its_write() -> None:
    bench = Bench()
    bench.put("a", sync=True)
    write = bench.step()
    assert write.sync
    assert write.error is None
    assert bench.done == ["a"]
    assert bench.shard.file is not None
    assert bench.shard.file.synced == bench.shard.file.written
    assert bench.shard.dirty_since_ns is None


def test_what_is_being_applied_is_not_settled_yet() -> None:
    """Others look without the lock, and its caller would be told that it is done though applying it may still fail."""
    bench = Bench()
    seen: list[bool] = []
    submission = Submission(1, [FRAME], lambda one: seen.append(one.settled), needs_sync=False)
    bench.shard.submit(submission)
    bench.step()
    assert seen == [False]
    assert submission.settled


def test_a_lane_completes_in_order_even_if_a_later_one_is_ready() -> None:
    bench = Bench()
    open_gate = False
    bench.put("waits", lane=1, ceiling=lambda: open_gate)
    bench.put("ready", lane=1)
    bench.put("other", lane=2)
    bench.step()
    assert bench.done == ["other"]
    open_gate = True
    bench.put("more", lane=2)
    bench.step()
    assert bench.done == ["other", "waits", "ready", "more"]


def test_a_detached_submission_does_not_block_its_lane() -> None:
    bench = Bench()
    bench.put("reservation", lane=1, sync=True, detached=True)
    bench.put("append", lane=1)
    bench.step()
    assert bench.done == ["append"]
    bench.sync()
    assert bench.done == ["append", "reservation"]


def test_nothing_behind_a_barrier_completes_before_it() -> None:
    bench = Bench()
    gate = False
    bench.put("before")
    bench.put("barrier", lane=0, barrier=True, ceiling=lambda: gate)
    bench.put("behind", lane=9)
    bench.step()
    assert len(bench.shard.queue) == 1, "a barrier ends its write"
    bench.step()
    assert bench.done == ["before"]
    gate = True
    bench.put("last", lane=8)
    bench.step()
    assert bench.done == ["before", "barrier", "behind", "last"]


def test_one_write_is_under_way_at_a_time() -> None:
    bench = Bench()
    bench.put("a")
    write = bench.shard.take()
    assert write is not None
    bench.put("b")
    assert bench.shard.take() is None
    bench.shard.run(write)
    bench.shard.finish(write)
    assert bench.shard.take() is not None


def test_a_full_queue_refuses_by_count_and_by_bytes() -> None:
    bench = Bench(queue_submissions=3)
    for name in "abc":
        bench.shard.check(10)
        bench.put(name)
    with pytest.raises(Throttled):
        bench.shard.check(10)
    assert bench.shard.stats.submit_full == 1
    bench = Bench(queue_bytes=100)
    bench.shard.check(10_000)
    bench.put("d")
    with pytest.raises(Throttled):
        bench.shard.check(100)


def test_a_rotation_chains_its_files_and_keeps_submissions_whole() -> None:
    bench = Bench()
    for n in range(30):
        bench.put(str(n), sync=True, frames=2)
        bench.step()
    assert bench.shard.stats.rotations > 3
    numbers = [number for number, _ in bench.shard.sealed]
    assert numbers == sorted(numbers)
    for number, length in bench.shard.sealed:
        data = bench.disk.read(f"/wal/wal-{number:016d}.log")
        scan = scan_wal(data, 0, length, bytearray())
        assert scan.reason == "end"
        assert not any(data[length:]), "nothing but zeros lies behind the valid length"
    assert decode_frame(data, 0, len(data)).kind == Kind.CHECKPOINT_MARK


def test_an_oversize_submission_gets_its_own_file() -> None:
    bench = Bench()
    bench.put("small")
    bench.step()
    bench.put("huge", frames=60)
    bench.step()
    assert bench.done == ["small", "huge"]
    assert bench.shard.file is not None
    assert bench.shard.file.capacity > 1024


def test_a_failed_write_fails_everything_that_is_not_resolved() -> None:
    bench = Bench()
    bench.put("resolved")
    bench.step()
    bench.put("pending", lane=2, sync=True, detached=True)
    bench.step()
    bench.fs.add(Fault("write", 1, "EIO"))
    bench.put("a")
    write = bench.shard.take()
    assert write is not None
    bench.put("queued")
    bench.shard.run(write)
    bench.shard.finish(write)
    assert bench.done == ["resolved", "pending failed", "a failed", "queued failed"]
    assert bench.failed_syncs == 1
    with pytest.raises(ReadOnly):
        bench.shard.check()
    assert bench.shard.take() is None
    assert bench.shard.take_sync() is None
    assert not bench.shard.wants_spare()


def test_what_a_stopped_shard_is_given_fails_at_once() -> None:
    bench = Bench()
    bench.shard.abandon(OSError(5, "the device is gone"))
    late = bench.put("late", sync=True)
    assert late.settled
    assert isinstance(late.error, WriteFailed)
    assert bench.done == ["late failed"]


def test_a_background_sync_that_fails_takes_the_write_beside_it_along() -> None:
    bench = Bench()
    bench.put("a")
    bench.step()
    sync = bench.shard.take_sync()
    assert sync is not None
    assert bench.shard.take_sync() is None, "one sync at a time"
    bench.put("b")
    write = bench.shard.take()
    assert write is not None
    bench.fs.add(Fault("sync", 1, "EIO"))
    sync.run()
    bench.shard.run(write)
    bench.shard.finish_sync(sync)
    bench.shard.finish(write)
    assert bench.done == ["a", "b failed"]
    assert isinstance(bench.shard.failed, WriteFailed)


def test_what_needs_a_sync_is_not_taken_while_another_sync_runs() -> None:
    """Of two syncs at once the kernel may tell only one that it failed: the other must not be believed."""
    bench = Bench()
    bench.put("a")
    bench.step()
    sync = bench.shard.take_sync()
    assert sync is not None
    bench.put("b", lane=2)
    bench.put("c", lane=3, sync=True)
    bench.step()
    assert bench.done == ["a", "b"]
    assert bench.shard.take() is None, "c syncs, and so does a rotation for it"
    bench.fs.add(Fault("sync", 1, "EIO"))
    sync.run()
    assert bench.shard.take() is None
    bench.shard.finish_sync(sync)
    assert bench.done == ["a", "b", "c failed"]


def test_a_rotation_waits_for_the_sync_of_the_file_it_leaves() -> None:
    bench = Bench()
    bench.put("a")
    bench.step()
    sync = bench.shard.take_sync()
    assert sync is not None
    bench.put("b", lane=2, frames=16)
    assert bench.shard.take() is None
    sync.run()
    bench.shard.finish_sync(sync)
    assert bench.step().rotation is not None
    assert bench.done == ["a", "b"]


def test_no_background_sync_starts_beside_a_write_that_syncs() -> None:
    bench = Bench()
    bench.put("a")
    bench.step()
    bench.put("b", sync=True)
    write = bench.shard.take()
    assert write is not None
    assert bench.shard.take_sync() is None
    bench.shard.run(write)
    bench.shard.finish(write)
    assert bench.done == ["a", "b"]


def test_a_background_sync_covers_only_what_was_written_when_it_began() -> None:
    bench = Bench()
    bench.put("a", lane=1, sync=True, detached=True)
    bench.step()
    sync = bench.shard.take_sync()
    assert sync is not None
    bench.put("b", lane=2, sync=True, detached=True)
    bench.step()
    sync.run()
    bench.shard.finish_sync(sync)
    assert bench.done == ["a"]
    assert bench.shard.dirty_since_ns is not None
    bench.sync()
    assert bench.done == ["a", "b"]


def test_a_shard_that_cannot_make_its_file_refuses_until_it_has_one() -> None:
    bench = Bench()
    bench.put("first", sync=True)
    bench.step()
    bench.fs.add(Fault("open", 1, "ENOSPC", forever=True))
    bench.put("big", frames=40)
    bench.put("queued")
    bench.step()
    assert bench.done == ["first", "big failed", "queued failed"]
    with pytest.raises(DiskFull):
        bench.shard.check()
    assert bench.shard.failed is None
    assert bench.shard.wants_spare()
    with pytest.raises(OSError, match="ENOSPC"):
        bench.shard.plan_spare().run()
    bench.fs.heal()
    bench.shard.adopt_spare(bench.shard.plan_spare().run())
    bench.shard.check()
    bench.put("again")
    bench.step()
    assert bench.done[-1] == "again"


def test_the_next_file_leaves_the_room_that_a_checkpoint_needs() -> None:
    bench = Bench(wal_file_bytes=65_536)
    bench.shard.room = lambda: 5000
    bench.disk.room = 5000 + 65_536 + 98_304 - 1  # one byte less than a file and its copy in segments
    bench.put("first", frames=18)
    bench.step()
    assert bench.done == ["first"]
    assert bench.shard.file is not None
    assert bench.shard.file.capacity == 20_480, "a start makes do with less"
    bench.put("refused", frames=400)
    bench.step()
    assert bench.done == ["first", "refused failed"]
    with pytest.raises(DiskFull, match="5000 bytes that a checkpoint may need"):
        bench.shard.check()
    bench.shard.check(frees=True)
    bench.put("mark", sync=True, barrier=True, frames=400)
    bench.step()
    assert bench.done[-1] == "mark"
    assert bench.shard.file.capacity == 24_576, "so does what makes room"
    with pytest.raises(OSError, match="No space left"):
        bench.shard.plan_spare().run()
    bench.disk.room += 1
    bench.shard.adopt_spare(bench.shard.plan_spare().run())
    bench.shard.check()


def test_a_disk_without_room_for_a_whole_file_gets_smaller_ones() -> None:
    bench = Bench(wal_file_bytes=64 << 20)
    bench.disk.room = 32 << 20
    spare = bench.shard.plan_spare().run()
    assert spare.capacity == (32 << 20) // 5 // 4096 * 4096


def test_a_file_is_not_recycled_where_its_records_could_not_be_copied() -> None:
    bench = Bench(wal_file_bytes=65_536)
    old = bench.disk.open("/wal/old", write=True, create=True)
    old.write_at(0, [bytes(65_536)])
    bench.shard.old_files.kept.append((65_536, "/wal/old"))
    bench.disk.room = 98_304 - 1
    with pytest.raises(OSError, match="No space left"):
        bench.shard.plan_spare().run()
    assert not bench.disk.exists("/wal/old"), "it is room again"
    assert bench.shard.old_files.kept == []


def test_a_batch_too_large_for_a_full_disk_leaves_the_spare_to_smaller_ones() -> None:
    bench = Bench()
    bench.put("first")
    bench.step()
    bench.shard.adopt_spare(bench.shard.plan_spare().run())
    bench.fs.add(Fault("write", 1, "ENOSPC", path=".pre"))
    bench.put("large", frames=100)
    bench.step()
    bench.shard.check()
    bench.put("small", frames=18)
    bench.step()
    assert bench.done == ["first", "large failed", "small"]


def test_a_spare_that_comes_while_the_writer_finds_no_room_ends_the_refusal() -> None:
    bench = Bench()
    bench.put("first", frames=18)
    bench.step()
    bench.put("refused", frames=18)
    write = bench.shard.take()
    assert write is not None
    bench.fs.add(Fault("write", 1, "ENOSPC", path=".pre"))
    bench.shard.run(write)
    bench.shard.adopt_spare(bench.shard.plan_spare().run())
    bench.shard.finish(write)
    bench.shard.check()
    bench.put("next", frames=18)
    bench.step()
    assert bench.done == ["first", "refused failed", "next"]


def test_an_apply_that_fails_leaves_nobody_waiting() -> None:
    bench = Bench()

    def broken(_: Submission) -> None:
        raise WriteFailed("the index cannot be read")

    bench.put("a")
    submission = bench.shard.submit(Submission(5, [FRAME], broken, needs_sync=False))
    bench.put("b")
    bench.step()
    assert submission.state == State.FAILED
    assert bench.done == ["a", "b failed"]
    with pytest.raises(ReadOnly):
        bench.shard.check()


def test_the_timer_asks_for_a_sync_after_its_time_and_not_before() -> None:
    bench = Bench(sync_ms=10)
    assert not bench.shard.sync_due(bench.clock.monotonic_ns())
    bench.put("a")
    bench.step()
    bench.clock.advance(9)
    assert not bench.shard.sync_due(bench.clock.monotonic_ns())
    bench.clock.advance(1)
    assert bench.shard.sync_due(bench.clock.monotonic_ns())
    bench.sync()
    assert not bench.shard.sync_due(bench.clock.monotonic_ns())


def test_evidence_is_written_at_most_once_per_interval() -> None:
    bench = Bench(wal_file_bytes=8192)
    for _ in range(5):
        bench.put("a", sync=True)
        bench.step()
    bench.clock.advance(1000)
    bench.put("b", sync=True)
    assert bench.step().evidence is not None
    bench.put("c", sync=True)
    assert bench.step().evidence is None


def wal_path(number: int) -> str:
    return f"/wal/wal-{number:016d}.log"


def test_as_many_files_are_kept_for_recycling_as_were_begun_since_the_last_time() -> None:
    shard = Bench().shard
    shard.stats.rotations = 5
    assert shard.retire([(1, 200), *((number, 1000) for number in range(2, 9))]) == [
        wal_path(2),
        wal_path(3),
        wal_path(1),  # half empty: too small for the next one
    ]
    assert shard.old_files.kept == [(1000, wal_path(number)) for number in range(4, 9)]


def test_a_shard_that_went_quiet_keeps_two_files_for_recycling() -> None:
    shard = Bench().shard
    shard.stats.rotations = 5
    shard.retire([(number, 1000) for number in range(1, 6)])
    assert shard.retire([]) == [wal_path(1), wal_path(2), wal_path(3)]
    assert shard.old_files.kept == [(1000, wal_path(4)), (1000, wal_path(5))]


def test_a_shard_that_stops_keeps_two_files_however_busy_it_was() -> None:
    shard = Bench().shard
    shard.stats.rotations = 5
    assert len(shard.retire([(number, 1000) for number in range(1, 6)], stopping=True)) == 3
    assert shard.old_files.kept == [(1000, wal_path(4)), (1000, wal_path(5))]


def test_the_next_file_is_made_of_one_that_nobody_needs() -> None:
    bench = Bench()
    bench.put("a", frames=18)
    bench.step()
    bench.clock.advance(1000)
    bench.put("b", frames=18)
    bench.step()
    assert bench.shard.retire([bench.shard.sealed.pop(0)]) == []
    bench.shard.adopt_spare(bench.shard.plan_spare().run())
    assert bench.shard.old_files.kept == []
    assert not bench.fs.exists(wal_path(1))
    assert bench.shard.spare is not None
    assert bench.shard.spare.file.read_at(0, 1024) == bytes(1024)


@pytest.mark.parametrize("call", ["free", "rename", "sync_dir", "open", "write", "sync"])
def test_a_file_that_could_not_be_made_the_next_one_takes_no_room(call: str) -> None:
    """Too many open files, above all: the next try takes the next file, and in the end they would all lie about."""
    bench = Bench(wal_file_bytes=65_536)
    bench.disk.open("/wal/old", write=True, create=True).write_at(0, [bytes(65_536)])
    bench.shard.old_files.kept.append((65_536, "/wal/old"))
    plan = bench.shard.plan_spare()
    bench.fs.add(Fault(call, error="EMFILE"))
    with pytest.raises(OSError, match="EMFILE"):
        plan.run()
    assert bench.disk.files() == []


def test_a_hurried_writer_gets_a_longer_file_whose_blocks_are_only_reserved() -> None:
    bench = Bench(wal_file_bytes=8 << 20)
    assert (bench.shard.plan_spare().fill, bench.shard.plan_spare().capacity) == (True, 8 << 20)
    for written in (0, 8 << 20):
        bench.shard.pace.rotated(written, bench.clock.monotonic_ns(), 0)
    bench.shard.old_files.kept.append((8 << 20, "/wal/old"))
    plan = bench.shard.plan_spare()
    assert (plan.fill, plan.capacity, plan.old) == (False, 32 << 20, None), "half of it would be new"
    spare = plan.run()
    assert spare.file.size() == 32 << 20
    assert spare.file.read_at(0, 1 << 20) == bytes(1 << 20)


def test_a_file_that_is_small_enough_is_full_of_zeros_whoever_waits_for_it() -> None:
    for filled, fill in ((65_536, True), (65_535, False)):
        bench = Bench(wal_file_bytes=65_536, wal_filled_bytes=filled)
        bench.put("first")
        bench.step()
        assert bench.shard.file is not None
        assert bench.shard.file.capacity == filled, "the first is never larger than that"
        bench.put("second", frames=filled // len(FRAME) - 2)
        write = bench.shard.take()
        assert write is not None
        assert write.rotation is not None
        assert write.rotation.plan is not None
        assert (write.rotation.plan.fill, write.rotation.plan.capacity) == (fill, 65_536)


def old_files(bench: Bench, *lengths: int) -> list[str]:
    """WAL files that nobody needs any more, full of what they held."""
    paths = [wal_path(900 + at) for at in range(len(lengths))]
    for path, length in zip(paths, lengths, strict=True):
        bench.disk.open(path, write=True, create=True).write_at(0, [b"x" * length])
        bench.shard.old_files.kept.append((length, path))
    return paths


def test_a_hurried_writer_gets_a_long_file_of_before_without_a_zero_being_written() -> None:
    bench = Bench(wal_file_bytes=8192, wal_filled_bytes=4096)
    for written in (0, 8192):
        bench.shard.pace.rotated(written, bench.clock.monotonic_ns(), 0)
    usual, long, other = old_files(bench, 8192, 30_000, 9000)
    plan = bench.shard.plan_spare()
    assert (plan.fill, plan.capacity, plan.old) == (False, 32_768, long)
    writes = bench.fs.counts["write"]
    spare = plan.run()
    assert bench.fs.counts["write"] == writes
    assert spare.file.read_at(0, 32_768) == bytes(32_768)
    assert not bench.disk.exists(long)
    bench.disk.power_cut()
    bench.disk.restart()
    assert set(read_file(bench.disk, spare.path)) == {0}, "nothing of it comes back"
    assert [path for _, path in bench.shard.old_files.kept] == [usual, other]
    assert bench.shard.plan_spare().old is None, "none that is left is half as long"


def test_a_writer_that_waits_gets_a_file_of_before_as_it_is_long() -> None:
    bench = Bench(wal_file_bytes=8192, wal_filled_bytes=4096)
    usual, _ = old_files(bench, 8000, 30_000)
    plan = bench.shard.plan_spare(8192, waiting=True)
    assert (plan.fill, plan.old) == (False, usual), "to cut a long one takes time"


def test_a_long_file_is_cut_and_filled_with_zeros_for_a_writer_at_rest() -> None:
    bench = Bench(wal_file_bytes=8192, wal_filled_bytes=4096)
    (long,) = old_files(bench, 30_000)
    plan = bench.shard.plan_spare()
    assert (plan.fill, plan.old) == (True, long)
    assert read_file(bench.disk, plan.run().path) == bytes(8192)


def test_a_batch_that_needs_a_file_of_its_own_gets_a_new_one() -> None:
    bench = Bench(wal_file_bytes=8192, wal_filled_bytes=1 << 20)
    old_files(bench, 8192, 30_000)
    assert bench.shard.plan_spare(50_000, waiting=True).old is None


def test_a_file_is_kept_for_recycling_up_to_the_length_of_a_hurried_writers() -> None:
    shard = Bench().shard
    shard.stats.rotations = 5
    assert shard.retire([(1, 4 * 1024 + 1), (2, 1000), (3, 4 * 1024)]) == [wal_path(1)]
    assert shard.old_files.kept == [(1000, wal_path(2)), (4096, wal_path(3))]


def test_a_file_whose_records_were_all_copied_is_named_once() -> None:
    shard = Bench().shard
    shard.sealed = [(1, 1000), (3, 1000), (5, 1000)]
    assert shard.copied_files(5) == [wal_path(1), wal_path(3)]
    assert shard.copied_files(5) == []
    assert shard.copied_files(0) == []
    assert shard.copied_files(6) == [wal_path(5)]
