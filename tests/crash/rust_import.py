"""An import of a directory of the Rust program that fails or is interrupted anywhere, and what must come of it.

Whatever happens, the directory ends as the store that an undisturbed import makes of it; and until that store is whole
on disk, the Rust program's own files are byte for byte as they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random

from tests.crash.life import listed
from tests.crash.sweeps import ERRORS
from tests.unit.storage.rust.directory import (
    RustDirectory,
    Topic,
    append,
    create,
    delete,
    head_watermark,
    lease,
    record,
    route,
    segment_frame,
    snapshot,
    snapshot_router,
)
from tests.unit.storage.rust.engine import ROOT, image, opened
from topics.format.ops import prepare
from topics.model.errors import TopicsError
from topics.storage.store import Store
from topics.testing.disk import CrashKind, FakeDisk, PowerOff
from topics.testing.faults import Fault, FaultFs
from topics.testing.order import OrderFs

KEPT = (
    "rust-topics-00000001-seg-0000000000000007.data",
    "rust-topics-00000001-seg-0000000000000007.idx",
    "rust-wal-wal-0000000000000003.log",
)
"""What holds something that is not taken over: a payload where the snapshot has null, a seq that comes again."""


@cache
def _base() -> FakeDisk:
    """A bit of everything: a snapshot, three groups, files that are absorbed, findings that set files aside."""
    disk = FakeDisk(1, sector=64)
    made = RustDirectory(disk, ROOT)
    records = [record(seq, {"n": seq}, tag=f"t{seq % 2}") for seq in (2, 3, 4, 7, 8)] + [record(9, None)]
    topics = [Topic("a", 1, 9, records, base=2, evict=1), Topic("old", 2, 3, [record(1, 1)])]
    router = snapshot_router("r", "a", "b", cursor=7, total=3)
    keys = ["", "shard-00"]
    made.snapshot(snapshot(topics, [router], number_id=3, next_id=5, positions=[(2, 0), (1, 0)], keys=keys), file=3)
    made.wal(append(1, 1, "absorbed"))
    made.wal(append(1, 10, 10), append(1, 12, 12, tag="t0"), delete(1, match=(0, "t0"), bound=13), file=2)
    made.wal(append(1, 12, "again"), append(1, 13, 13), head_watermark(1, 20), file=3)
    made.wal(create(3, "b", durable=True), append(3, 1, "copy"), group="shard-00")
    made.wal(
        create(4, "q", type="queue", leases_durable=True), append(4, 1, 1), append(4, 2, 2),
        lease(4, 1, 0, 7, 1 << 50, 1, "w"), route("s", "a", "q", cursor=9), group="shard-01",
    )  # fmt: skip
    made.segment(1, 7, segment_frame(7, 7), segment_frame(8, 8), segment_frame(9, "what null was"))
    return disk


def start() -> FakeDisk:
    disk = _base().clone()
    disk.restart()
    return disk


@cache
def _expected() -> str:
    return str(image(opened(start())))


@cache
def _rust_files() -> dict[str, bytes]:
    disk = start()
    return {path: disk.read(path) for path in disk.files()}


def check_untouched(disk: FakeDisk) -> None:
    """Until our store is whole on disk, every file of the other program is what it was."""
    files = set(disk.files())
    if {f"{ROOT}/meta/FORMAT", f"{ROOT}/.topics.import/FORMAT"} & files:
        return
    for path, data in _rust_files().items():
        assert path in files, f"{path} went before our own store was there"
        assert disk.read(path) == data, f"{path} was changed"


def check(store: Store) -> None:
    assert str(image(store)) == _expected()


def go_on(disk: FakeDisk, shards: int = 1) -> None:
    """Open what is there, write to it, cut the power, and look again."""
    disk.restart()
    check_untouched(disk)
    order = OrderFs(disk, listed)
    store = opened(order, wal_shards=shards)
    check(store)
    done = store.append("b", prepare([{"data": "after"}]))
    store.drive(done.submission)
    assert not order.violations, order.violations
    disk.power_cut()
    disk.restart()
    again = opened(disk, wal_shards=shards)
    assert again.topics["b"].head == done.first_seq
    assert again.report == []
    assert not [path for path in disk.files() if ".topics.import" in path]
    kept = {path.rsplit("/", 1)[1]: disk.read(path) for path in disk.files() if "/quarantine/" in path}
    wanted = {"rust-" + path[len(ROOT) + 1 :].replace("/", "-"): data for path, data in _rust_files().items()}
    assert kept == {name: wanted[name] for name in KEPT}


def count_calls() -> Counter[str]:
    fs = FaultFs(OrderFs(start(), listed))
    opened(fs)
    return Counter(fs.counts)


def faults() -> Iterator[Fault]:
    for call, count in sorted(count_calls().items()):
        for error in ERRORS[call]:
            for nth in range(1, count + 1):
                yield Fault(call, nth, error, forever=nth % 3 == 0)


def try_fault(fault: Fault) -> None:
    disk = start()
    order = OrderFs(disk, listed)
    fs = FaultFs(order, [fault])
    try:
        opened(fs)
    except TopicsError:
        check_untouched(disk)
    assert fs.fired, "the fault never came"
    assert not order.violations, order.violations
    disk.power_cut()
    go_on(disk)


def count_mutations() -> int:
    disk = start()
    before = disk.calls
    opened(disk)
    return disk.calls - before


def try_crash(*points: int, kind: CrashKind, seed: int, reshard: bool = False) -> None:
    """A crash in the middle of the n-th change to the disk; with several points, again in the opening after it, which
    may ask for another number of shards."""
    disk = start()
    disk.rng.seed(seed * 100_003 + sum(points))
    shards = Random(seed)
    for nth in points:
        disk.crash_at(disk.calls + nth, kind)
        try:
            opened(OrderFs(disk, listed), wal_shards=shards.randint(1, 3) if reshard else 1)
        except PowerOff:
            pass
        disk.crash_at(None)
        if not disk.off:
            disk.kill() if kind == "kill" else disk.power_cut()
        check_untouched(disk)
        disk.restart()
    go_on(disk, shards.randint(1, 3) if reshard else 1)
