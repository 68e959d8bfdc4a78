"""Stores on a real directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.integration.small_disk import Ballast, small_disk
from topics.host.fs import OsFs
from topics.testing.clock import FakeClock
from topics.testing.ids import FakeIds

Opener = Callable[..., topics.Log]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def reopen(data: Path) -> Iterator[Opener]:
    """Opens the store, closing it first where it is open: `log = reopen(wal_shards=2)`."""
    logs: list[topics.Log] = []

    def opened(**options: Any) -> topics.Log:
        for log in logs:
            log.close()
        logs[:] = [topics.open(data, **options)]
        return logs[0]

    yield opened
    for log in logs:
        log.close()


@pytest.fixture
def log(reopen: Opener) -> topics.Log:
    return reopen()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def timed(data: Path, clock: FakeClock) -> Iterator[topics.Log]:
    """A store whose time is `clock`."""
    with topics.Log(OsFs(), str(data), clock, FakeIds(1), ttl_grace_ms=0) as log:
        yield log


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one, that can really be full."""
    with small_disk(tmp_path / "disk") as place:
        yield place


@pytest.fixture
def ballast(disk: Path) -> Ballast:
    return Ballast(disk)
