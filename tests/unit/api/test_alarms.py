"""What a server writes into its log about trouble of its store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.api.alarms import QUIET_S, Alarms
from topics.host.clock import SystemClock
from topics.host.fs import OsFs
from topics.host.ids import SystemIds
from topics.model.errors import DiskFull
from topics.storage.opening import open_store
from topics.storage.options import StoreOptions
from topics.storage.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    options = StoreOptions(wal_shards=2)
    opened = open_store(OsFs(), str(tmp_path / "data"), options, SystemClock(), SystemIds(), threading.Lock())
    yield opened
    opened.release()


@pytest.fixture
def alarms(store: Store) -> Iterator[Alarms]:
    loop = asyncio.new_event_loop()
    yield Alarms(store, loop)
    loop.close()


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "topics.trouble"]
    caplog.clear()
    return lines


def test_trouble_is_said_when_it_begins_and_when_it_is_over(
    store: Store, alarms: Alarms, caplog: pytest.LogCaptureFixture
) -> None:
    alarms.step(0)
    assert said(caplog) == []
    store.shards[1].refusing = DiskFull("WAL shard 1 cannot make its next file", shard=1)
    store.trouble = OSError("no space")
    alarms.step(1)
    assert said(caplog) == [
        ("ERROR", "WAL shard 1 cannot make its next file"),
        ("ERROR", "the last checkpoint failed and will be tried again: no space"),
    ]
    alarms.step(2)
    assert said(caplog) == []
    store.shards[1].refusing = store.trouble = None
    alarms.step(2 + QUIET_S)
    assert said(caplog) == [("WARNING", "WAL shard 1 works again"), ("WARNING", "the checkpoint works again")]
    alarms.step(3 + QUIET_S)
    assert said(caplog) == []


def test_a_disk_that_is_full_by_turns_does_not_fill_the_log(
    store: Store, alarms: Alarms, caplog: pytest.LogCaptureFixture
) -> None:
    for now in range(1000):
        store.shards[0].refusing = DiskFull("full", shard=0) if now % 20 == 0 else None
        alarms.step(now)
    assert said(caplog) == [("ERROR", "full")]
