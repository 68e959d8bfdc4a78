"""The fault catalogue, devices that do not keep their word: syncs that lie or come late, handles that go stale,
directories that cannot be synced."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence

import pytest

from tests.crash.ledger import read_all
from tests.crash.life import Life, listed
from topics.host.fs import Buffer, File
from topics.model.errors import CorruptFile, StorageError, TopicsError, WriteFailed
from topics.model.record import Record
from topics.testing.disk import FakeDisk, FakeFile, PowerOff
from topics.testing.faults import Fault
from topics.testing.order import OrderFs
from topics.testing.wrap import WrappedFile, WrappedFs


class LateFs(WrappedFs):
    """Every sync returns at once and is done `late` calls later, if the machine lives that long."""

    def __init__(self, disk: FakeDisk, late: int) -> None:
        super().__init__(disk)
        self.disk = disk
        self.late = late
        self.calls = 0
        self._owed: deque[tuple[int, Callable[[], None]]] = deque()

    def call(self) -> None:
        self.calls += 1
        while self._owed and self._owed[0][0] <= self.calls:
            with contextlib.suppress(FileNotFoundError):  # a directory that went away meanwhile
                self._owed.popleft()[1]()

    def owe(self, sync: Callable[[], None]) -> None:
        self._owed.append((self.calls + self.late, sync))

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        self.call()
        return LateFile(self.disk.open(path, write=write, create=create, exclusive=exclusive), self)

    def rename(self, source: str, target: str) -> None:
        self.call()
        super().rename(source, target)

    def sync_dir(self, path: str) -> None:
        self.call()
        self.owe(lambda: self.inner.sync_dir(path))


class LateFile(WrappedFile):
    def __init__(self, inner: FakeFile, fs: LateFs) -> None:
        super().__init__(inner)
        self._fs = fs
        self._late_sync = inner.node.sync
        """Of the file, whether or not this handle is still open."""

    def write_at(self, offset: int, buffers: Sequence[Buffer], *, dsync: bool = False) -> int:
        self._fs.call()
        count = super().write_at(offset, buffers)
        if dsync:
            self._fs.owe(self._late_sync)
        return count

    def sync(self) -> None:
        self._fs.call()
        self._fs.owe(self._late_sync)


def found_in(life: Life) -> list[Record]:
    return [item for item in read_all(life.store, "a") if isinstance(item, Record)]


def sent_in(life: Life) -> set[bytes]:
    return {payload for payloads in life.ledger.topics[1].sent.values() for payload in payloads}


def test_a_device_that_lies_about_syncs_invents_nothing() -> None:
    """F-NFS-FSYNC-LIES: loss is allowed then, an invented or garbled record is not."""
    for seed in range(20):
        life = Life(FakeDisk(seed, sector=64))
        life.open()
        life.create("a", durability="fsync")
        life.disk.lying_fsync = True
        for _ in range(4):
            life.append("a", 2)
        life.power_cut()
        life.disk.lying_fsync = False
        with contextlib.suppress(StorageError):  # what was proven and is not there may refuse
            life.open()
            found = found_in(life)
            assert {record.raw for record in found} <= sent_in(life)
            assert [record.seq for record in found] == list(range(1, len(found) + 1))


@pytest.mark.parametrize("late", [1, 4, 12])
def test_a_device_whose_syncs_come_late_loses_no_more_than_what_it_still_owed(late: int) -> None:
    """F-NFS-DELAYED-DURABILITY: a sync counts some calls after it returned. A cut takes what was owed, no more; nothing
    is invented, and there is no hole."""
    opened = lost = 0
    for seed in range(30):
        life = Life(FakeDisk(seed, sector=64), wal_file_bytes=1 << 16)
        life.open()
        life.create("a", durability="fsync")
        life.kill()
        fs = LateFs(life.disk, 0)
        life.open(OrderFs(fs, listed))
        fs.late = late
        acked_at = {}
        for _ in range(16):
            first = life.append("a", 2)
            acked_at[first], acked_at[first + 1] = fs.calls, fs.calls
        firm = {seq for seq, call in acked_at.items() if call + late <= fs.calls}
        assert firm
        assert firm != set(acked_at)
        life.power_cut()
        with contextlib.suppress(StorageError):  # a mark may state bytes that were still owed
            life.open()
            found = found_in(life)
            assert {record.raw for record in found} <= sent_in(life)
            assert [record.seq for record in found] == list(range(1, len(found) + 1))
            assert firm <= {record.seq for record in found}
            opened += 1
            lost += len(found) < len(acked_at)
    assert opened
    assert lost, "no cut took what a sync still owed"


@pytest.mark.parametrize("error", ["ESTALE", "EAGAIN"])
@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_stale_handle_refuses_and_a_reopened_store_goes_on(call: str, error: str) -> None:
    """F-NFS-ESTALE-WAL-FD, F-NFS-EAGAIN-RETRY: in a write or in its sync, as any other failure of them; reopened by
    path later."""
    life = Life()
    life.open()
    life.create("a", durability="fsync")
    life.append("a", 2)
    life.kill()
    fs = life.open_faulty()
    fs.add(Fault(call, 1, error, path="/wal/"))
    with pytest.raises(WriteFailed):
        life.append("a", 1)
    assert fs.hits == {f"{call} {error}": 1}
    assert life.seqs("a") == [1, 2]
    with pytest.raises(TopicsError):
        life.append("a", 1)
    life.kill()
    life.reopen()
    life.append("a", 1)
    life.power_cut()
    life.reopen()


class LooseFs(WrappedFs):
    """A file system that cannot sync a directory whose path contains `loose`: the call returns and does nothing."""

    loose: str | None = None

    def sync_dir(self, path: str) -> None:
        if self.loose is None or self.loose not in path:
            super().sync_dir(path)


def loose_life(base: Life, loose: str) -> Life:
    life = base.clone()
    fs = LooseFs(life.disk)
    life.open(OrderFs(fs, listed))
    fs.loose = loose
    return life


def names_a_missing_segment(life: Life) -> bool:
    """Whether a start of this disk is refused, for a segment that is not there; any other refusal is raised."""
    twin = life.clone()
    try:
        twin.open()
    except CorruptFile as error:
        if error.path.endswith(".data") and not twin.disk.exists(error.path):
            return True
        raise
    return False


@pytest.mark.parametrize("loose", ["/meta", "/data"], ids=["meta", "all"])
def test_a_snapshot_whose_directory_is_never_synced_leaves_one_that_loads(loose: str) -> None:
    """F-NFS-DIRFSYNC-UNSUPPORTED: after a cut in any call of it, or behind it, at worst the old one loads. Where no
    directory is synced at all, its name may also survive those of the segments in it; that start refuses by name."""
    base = Life(segment_max_events=4)
    base.open()
    base.create("a", durability="fsync")
    base.append("a", 3, "x")
    base.store.checkpoint()
    base.append("a", 3)
    newest = base.store.snapshots.kept[-1][0]
    base.kill()
    probe = loose_life(base, loose)
    before = probe.disk.calls
    assert probe.store.checkpoint()
    made = probe.disk.calls - before
    loaded = set()
    for nth in range(1, made + 2):
        for seed in range(4):
            life = loose_life(base, loose)
            life.disk.rng.seed(nth * 100 + seed)
            if nth <= made:
                life.disk.crash_at(life.disk.calls + nth, "power")
                with pytest.raises(PowerOff):
                    life.store.checkpoint()
            else:
                assert life.store.checkpoint()
            life.power_cut()
            names = [path for path in life.disk.files() if "/meta/snapshot-" in path and path.endswith(".bin")]
            is_new = max(names).rpartition("-")[2] > f"{newest:016d}.bin"
            missing = names_a_missing_segment(life)
            if missing:
                assert loose == "/data"
                assert is_new
                continue
            loaded.add(is_new)
            life.reopen()
            assert life.seqs("a") == [1, 2, 3, 4, 5, 6]
    assert loaded == {False, True}, "one cut took the new name, and another one left it"
