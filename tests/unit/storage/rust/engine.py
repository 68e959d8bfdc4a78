"""Opening a directory of the Rust program with our engine, on a fake disk."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.crash.ledger import read_all
from tests.unit.storage.rust.directory import RustDirectory
from topics.host.fs import Fs
from topics.model.record import Gap, Record
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.rust.report import Finding, ImportReport, decode_report
from topics.storage.store import Store
from topics.testing.clock import FakeClock
from topics.testing.disk import FakeDisk
from topics.testing.ids import FakeIds

ROOT = "/data"


def rust() -> RustDirectory:
    return RustDirectory(FakeDisk(1, sector=64))


def disk_of(made: RustDirectory) -> FakeDisk:
    assert isinstance(made.fs, FakeDisk)
    return made.fs


def opened(fs: Fs, clock: FakeClock | None = None, **options: Any) -> Store:
    chosen = StoreOptions(**{"segment_max_events": 3, "wal_file_bytes": 2048, "reserve_seqs": 4, **options})
    return open_store(fs, ROOT, chosen, clock or FakeClock(), FakeIds(1), contextlib.nullcontext())


def imported(made: RustDirectory, **options: Any) -> Store:
    return opened(made.fs, **options)


def report_of(fs: Fs) -> ImportReport:
    file = fs.open(f"{ROOT}/meta/import.json")
    return decode_report(file.read_at(0, file.size()))


def findings(made: RustDirectory, kind: str) -> list[Finding]:
    return [finding for finding in report_of(made.fs).findings if finding.kind == kind]


def values(store: Store, name: str) -> dict[int, bytes]:
    """What a reader gets, by seq."""
    return {item.seq: item.raw for item in read_all(store, name) if isinstance(item, Record)}


def gaps(store: Store, name: str) -> list[tuple[int, int, str]]:
    """What a reader is told to have missed."""
    found = [item for item in read_all(store, name) if isinstance(item, Gap)]
    return [(gap.gap_from, gap.gap_to, gap.reason) for gap in found]


def image(store: Store) -> dict[str, object]:
    """Everything that an import decides, but for ids that are drawn."""
    topics = {
        name: (
            topic.id, topic.head, topic.live, topic.bytes, topic.evict_floor, topic.expiry_floor, topic.trim_floor,
            topic.delete_below, topic.config, topic.last_ts, [str(item) for item in read_all(store, name)],
            topic.tokens.ceiling,
        )
        for name, topic in sorted(store.topics.items())
    }  # fmt: skip
    routers = {
        name: (router.source_id, router.dest_id, router.cursor, router.forwarded, router.bits, router.filter)
        for name, router in sorted(store.routers.by_name.items())
    }
    return {"topics": topics, "routers": routers, "next": store.next_topic_id}
