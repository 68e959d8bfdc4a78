"""A signal, or our own mistake, breaks off a call at any place: nobody hangs, nothing acknowledged is lost, and what is
half-done is never built upon."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import topics
from topics.host.clock import SystemClock
from topics.host.fs import File, OsFs
from topics.storage.topic import Topic
from topics.testing.disk import FakeDisk
from topics.testing.faults import Fault, FaultFs
from topics.testing.ids import FakeIds
from topics.testing.wrap import WrappedFile, WrappedFs

ROOT = Path(__file__).resolve().parents[2]


class InterruptFs(WrappedFs):
    """Raises KeyboardInterrupt in the n-th file call of the thread that made it, before or after the call itself."""

    def __init__(self, nth: int, after: bool) -> None:
        super().__init__(OsFs())
        self.left = nth
        self.after = after
        self.thread = threading.current_thread()
        self.armed = False

    def call(self, act: Callable[[], Any]) -> Any:
        hit = False
        if self.armed and threading.current_thread() is self.thread:
            self.left -= 1
            hit = self.left == 0
        if hit and not self.after:
            raise KeyboardInterrupt
        answer = act()
        if hit:
            raise KeyboardInterrupt
        return answer

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        inner = self.call(lambda: self.inner.open(path, write=write, create=create, exclusive=exclusive))
        return InterruptFile(inner, self)

    def rename(self, source: str, target: str) -> None:
        self.call(lambda: self.inner.rename(source, target))

    def sync_dir(self, path: str) -> None:
        self.call(lambda: self.inner.sync_dir(path))

    def remove(self, path: str) -> None:
        self.call(lambda: self.inner.remove(path))


class InterruptFile(WrappedFile):
    def __init__(self, inner: File, fs: InterruptFs) -> None:
        super().__init__(inner)
        self.fs = fs

    def write_at(self, offset: int, buffers: Any, *, dsync: bool = False) -> int:
        written: int = self.fs.call(lambda: self.inner.write_at(offset, buffers, dsync=dsync))
        return written

    def sync(self) -> None:
        self.fs.call(self.inner.sync)


def in_a_thread(act: Callable[[], object]) -> BaseException | None:
    """Run `act` in another thread; its error, or None. Fails if it does not come back."""
    errors: list[BaseException | None] = []

    def run() -> None:
        try:
            act()
            errors.append(None)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert errors, "a call hangs"
    return errors[0]


OPTIONS: dict[str, Any] = {
    "wal_shards": 1,
    "wal_file_bytes": 4096,
    "segment_max_events": 8,
    "checkpoint_gap_ms": 1 << 40,
}


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
@pytest.mark.parametrize("nth", range(1, 49))
def test_an_interrupt_at_any_file_call_hangs_nobody_and_loses_nothing(data: Path, nth: int, after: bool) -> None:
    """publish_guard_releases_gate_on_panic: whoever holds the turn breaks off; others go on or are refused, and of a
    batch all or nothing is there."""
    fs = InterruptFs(nth, after)
    log = topics.Log(fs, str(data), SystemClock(), FakeIds(nth), **OPTIONS)
    acked: dict[int, int] = {}
    fired = False
    try:
        log.create("orders", durability="fsync")
        fs.armed = True
        for n in range(60):
            done = log.append("orders", [{"data": n, "tag": "x" * 200}] * 3)
            acked.update(dict.fromkeys(range(done.first_seq, done.last_seq + 1), n))
            if n % 20 == 19:
                log.checkpoint()
    except KeyboardInterrupt:
        fired = True
    fs.armed = False
    error = in_a_thread(lambda: log.append("orders", [{"data": -1}]))
    assert error is None or isinstance(error, (topics.ReadOnly, topics.DiskFull)), error
    assert in_a_thread(log.checkpoint) is None
    assert in_a_thread(log.close) is None
    assert fired
    with topics.open(data) as again:
        items = list(again.read("orders"))
        found = {item.seq: item.data for item in items if isinstance(item, topics.Record)}
        assert len(found) == len(items), items
        assert {seq: found.get(seq) for seq in acked} == acked
        assert sum(value != -1 for value in found.values()) % 3 == 0, "a part of a batch"


STORM = """
import itertools, json, random, signal, sys, threading, time
import topics

class Interrupt(BaseException): pass
stopped_by = (topics.ReadOnly, topics.WriteFailed)

def ring(*_): raise Interrupt
signal.signal(signal.SIGALRM, ring)
data, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)
acked, stopped = {}, 0
deadline = time.monotonic() + float(sys.argv[3])
lives = itertools.count(1)
while time.monotonic() < deadline:
    life = next(lives)
    log = topics.open(data, wal_shards=2, wal_file_bytes=16384, segment_max_events=16)
    for name in ("a", "b"):
        log.create(name, durability=rng.choice(("disk", "fsync")))
    found = {}
    for name in ("a", "b"):
        for item in log.read(name):
            assert isinstance(item, topics.Record), (item, life)
            found[name, item.seq] = item.data
    missing = {key for key, value in acked.items() if found.get(key) != value}
    assert not missing, (life, sorted(missing)[:5])
    assert len(set(map(tuple, found.values()))) == len(found), life
    other = {}

    def work(life=life, log=log, other=other):
        for n in itertools.count():
            try:
                done = log.append("b", [{"data": ["other", life, n]}])
            except (topics.StoreClosed, topics.ReadOnly, topics.WriteFailed):
                return
            other["b", done.first_seq] = ["other", life, n]

    thread = threading.Thread(target=work)
    thread.start()
    for n in range(200):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00005, 0.004))
                for i in range(300):  # Python swallows what a handler raises inside a finaliser
                    done = log.append("ab"[i % 2], [{"data": ["main", life, n, i]}])
                    acked["ab"[i % 2], done.first_seq] = ["main", life, n, i]
                    if i % 40 == 39:
                        log.checkpoint()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            continue
        except stopped_by:
            stopped += 1
            break
    closer = threading.Thread(target=log.close)
    closer.start()
    closer.join(20)
    assert not closer.is_alive(), "close hangs"
    thread.join(20)
    assert not thread.is_alive(), "a writer hangs"
    acked.update(other)
print(json.dumps({"lives": life, "acked": len(acked), "stopped": stopped}))
"""


@pytest.mark.slow
@pytest.mark.realdisk
def test_a_storm_of_signals_hangs_nobody_and_loses_nothing(data: Path) -> None:
    seed = int.from_bytes(os.urandom(3), "big")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STORM, str(data), str(seed), "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}\n{done.stderr}"


# -- faults of the disk ------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(data: Path) -> tuple[topics.Log, FaultFs]:
    fs = FaultFs(FakeDisk(1))
    return topics.Log(fs, "/data", SystemClock(), FakeIds(1), wal_shards=1), fs


class SignalledFs(WrappedFs):
    """A sync of the main thread fails while a signal is on its way to it."""

    left = 0
    """Which one from now on; 0 = none."""

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        return SignalledFile(self.inner.open(path, write=write, create=create, exclusive=exclusive), self)

    def sync(self) -> None:
        if not self.left or threading.current_thread() is not threading.main_thread():
            return
        self.left -= 1
        if not self.left:
            # One call of C that sets the signal off and then fails: nothing of Python runs between the two.
            fail = ctypes.pythonapi.PyErr_SetInterruptEx
            fail.argtypes, fail.restype = [ctypes.c_int], os.listdir
            fail(signal.SIGINT)


class SignalledFile(WrappedFile):
    def __init__(self, inner: File, fs: SignalledFs) -> None:
        super().__init__(inner)
        self.fs = fs

    def write_at(self, offset: int, buffers: Any, *, dsync: bool = False) -> int:
        if dsync:
            self.fs.sync()
        return self.inner.write_at(offset, buffers, dsync=dsync)

    def sync(self) -> None:
        self.fs.sync()
        self.inner.sync()


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "behind bytes that are not synced"])
def test_a_sync_that_fails_while_a_signal_comes_is_as_final_as_any(behind: bool) -> None:
    """Somebody breaks off a program that hangs on a dying disk. A second sync would succeed and prove nothing."""
    fs = SignalledFs(FakeDisk(1))
    log = topics.Log(fs, "/data", SystemClock(), FakeIds(1), wal_shards=1, sync_ms=60_000)
    log.create("quick", durability="memory")
    log.create("orders", durability="fsync")
    if behind:
        log.append("quick", [{"data": 0}])
    fs.left = 1
    with pytest.raises((KeyboardInterrupt, topics.WriteFailed)):
        log.append("orders", [{"data": 1}])
    assert not fs.left
    with pytest.raises(topics.ReadOnly):
        log.append("orders", [{"data": 2}])
    with pytest.raises(topics.WriteFailed, match="acknowledged writes may be lost") if behind else nullcontext():
        log.close()


class HidingFs(WrappedFs):
    """A sync of the main thread fails, or succeeds, and something breaks in before it is noted."""

    breaks_in: type[BaseException] | None = None
    fails = True

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        return HidingFile(self.inner.open(path, write=write, create=create, exclusive=exclusive), self)


class HidingFile(WrappedFile):
    def __init__(self, inner: File, fs: HidingFs) -> None:
        super().__init__(inner)
        self.fs = fs

    def sync(self) -> None:
        breaks_in = self.fs.breaks_in
        if breaks_in is None or threading.current_thread() is not threading.main_thread():
            self.inner.sync()
            return
        self.fs.breaks_in = None
        try:
            if self.fs.fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.inner.sync()
        finally:
            raise breaks_in


def hiding(breaks_in: type[BaseException], fails: bool) -> tuple[topics.Log, HidingFs]:
    """A log whose next sync is hidden so."""
    fs = HidingFs(FakeDisk(1))
    log = topics.Log(fs, "/data", SystemClock(), FakeIds(1), wal_shards=1, sync_ms=60_000)
    log.create("quick", durability="memory")
    log.create("orders", durability="fsync")
    log.append("quick", [{"data": 0}])
    fs.breaks_in, fs.fails = breaks_in, fails
    return log, fs


@pytest.mark.parametrize("breaks_in", [KeyboardInterrupt, MemoryError])
def test_a_sync_that_failed_is_final_whatever_breaks_in_before_it_is_noted(breaks_in: type[BaseException]) -> None:
    log, fs = hiding(breaks_in, fails=True)
    with pytest.raises((breaks_in, topics.WriteFailed)):
        log.append("orders", [{"data": 1}])
    with pytest.raises(topics.ReadOnly):
        log.append("orders", [{"data": 2}])
    assert not fs.exists("/data/meta/BOOT")
    with pytest.raises(topics.WriteFailed, match="acknowledged writes may be lost"):
        log.close()


def test_an_error_that_the_caller_is_handling_is_none_of_a_sync_that_a_signal_came_behind() -> None:
    log, _ = hiding(KeyboardInterrupt, fails=False)
    try:
        raise OSError(errno.ENOENT, "somebody else's")
    except OSError:
        with pytest.raises(KeyboardInterrupt):
            log.append("orders", [{"data": 1}])
    assert log.append("orders", [{"data": 2}]).first_seq == 2
    log.close()


TWO_SIGNALS = """
import os, signal, sys
import topics

def raising(number, frame):
    raise SystemExit(number)

signal.signal(signal.SIGTERM, raising)
log = topics.open(sys.argv[1], wal_shards=1, sync_ms=60_000)
log.create("quick", durability="memory")
log.create("orders", durability="fsync")
log.append("quick", [{"data": 0}])
shard = log._store.shards[0]
shard.file.file._reserved = sys.argv[2] == "reserved"
os.environ["SIGNALLED"] = "yes"
for n in range(2):
    try:
        print(log.append("orders", [{"data": n}]))
    except BaseException as error:
        print(type(error).__name__)
print(shard.failed.message, os.path.exists(sys.argv[1] + "/meta/BOOT"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a library in front of the system's, as Linux has it")
@pytest.mark.parametrize("blocks", ["written", "reserved"])
def test_a_sync_that_fails_while_two_signals_come_is_as_final_as_any(data: Path, tmp_path: Path, blocks: str) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    library, source = tmp_path / "signalled.so", ROOT / "tests/unit/host/signalled_sync.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TWO_SIGNALS, str(data), blocks],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stdout.splitlines()
    assert told[0] in ("SystemExit", "KeyboardInterrupt", "WriteFailed"), done.stdout + done.stderr
    assert told[1:] == ["ReadOnly", "WAL shard 0 failed: [Errno 5] Input/output error False"], done.stdout + done.stderr


def test_a_rotation_whose_sync_fails_while_a_signal_comes_ends_the_trust_in_the_page_cache() -> None:
    """The next start would take a record that the system let go of for one that nobody had been told of."""
    fs = SignalledFs(FakeDisk(1))
    log = topics.Log(fs, "/data", SystemClock(), FakeIds(1), wal_shards=1, sync_ms=60_000, wal_file_bytes=4096)
    log.create("quick", durability="memory")
    log.append("quick", [{"data": 0}])
    log._background.stop()  # it would make the next file
    fs.left = 2  # that of the next file, which holds nothing yet, and that of the file before
    with pytest.raises((KeyboardInterrupt, topics.WriteFailed)):
        log.append("quick", [{"data": "x" * 5000}])
    assert not fs.left
    with pytest.raises(topics.ReadOnly):
        log.append("quick", [{"data": 2}])
    assert not fs.exists("/data/meta/BOOT")
    log._store.release()


def test_a_failed_write_makes_its_shard_read_only_and_says_so(broken: tuple[topics.Log, FaultFs]) -> None:
    log, fs = broken
    log.create("orders", durability="fsync")
    log.append("orders", [{"data": 1}])
    fs.add(Fault("write", path="/wal/"))
    with pytest.raises(topics.WriteFailed, match="WAL shard 0 failed: "):
        log.append("orders", [{"data": 2}])
    fs.heal()
    with pytest.raises(topics.ReadOnly, match=r"WAL shard 0 is read-only since .*; reopen the store to write again"):
        log.append("orders", [{"data": 3}])
    info = log.info("orders")
    assert (info.read_only, info.head_seq) == (True, 1)
    assert info.trouble is not None
    assert log.trouble == [info.trouble]
    assert [item.data for item in log.read("orders") if isinstance(item, topics.Record)] == [1]
    log.close()


@pytest.mark.parametrize("call", ["create", "drop"])
def test_a_drop_that_failed_makes_nobody_wait_for_ever(broken: tuple[topics.Log, FaultFs], call: str) -> None:
    log, fs = broken
    log.create("orders")
    fs.add(Fault("sync", path="/wal/"))
    with pytest.raises(topics.WriteFailed):
        log.drop("orders")
    fs.heal()
    error = in_a_thread(lambda: getattr(log, call)("orders"))
    assert isinstance(error, (topics.ReadOnly, topics.WriteFailed))
    log.close()


def test_a_class_change_that_failed_makes_no_append_wait_for_ever(broken: tuple[topics.Log, FaultFs]) -> None:
    log, fs = broken
    log.create("orders")
    fs.add(Fault("sync", path="/wal/"))
    with pytest.raises(topics.WriteFailed):
        log.configure("orders", durability="ephemeral")
    fs.heal()
    error = in_a_thread(lambda: log.append("orders", [{"data": 1}]))
    assert isinstance(error, (topics.ReadOnly, topics.WriteFailed))
    log.close()


def test_a_checkpoint_that_breaks_off_is_made_up_for_by_the_next(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends it: topics it had captured still need a snapshot."""
    log = topics.open(data, wal_shards=1, wal_file_bytes=4096)
    log.create("orders")
    log.create("other")
    log.append("orders", [{"data": n, "tag": "x" * 200} for n in range(50)])
    with monkeypatch.context() as patch:
        patch.setattr("topics.storage.copy.TopicCopy.run", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            log.checkpoint()
    for _ in range(4):
        log.append("other", [{"data": "y" * 200}] * 50)
        assert log.checkpoint()
    log._store.guard.release()  # leave it as a kill would
    with topics.open(data) as again:
        assert [item.data for item in again.read("orders") if isinstance(item, topics.Record)] == list(range(50))
    log._background.stop()


def test_a_mistake_of_our_own_stops_the_shard_and_not_the_callers(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with topics.open(data, wal_shards=1) as log:
        log.create("orders", durability="fsync")
        with monkeypatch.context() as patch:
            patch.setattr(Topic, "apply_append", lambda *_: 1 / 0)
            assert isinstance(in_a_thread(lambda: log.append("orders", [{"data": 1}])), ZeroDivisionError)
        assert isinstance(in_a_thread(lambda: log.append("orders", [{"data": 2}])), topics.ReadOnly)
        assert log.trouble == ["WAL shard 0 failed: division by zero"]
    with topics.open(data) as log:
        assert [item.data for item in log.read("orders") if isinstance(item, topics.Record)] == [1]


def test_an_interrupted_wait_for_records_leaves_the_store_writable(data: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with topics.open(data) as log:
        log.create("t")
        group = log.group("t", "g")
        group.create()
        group.join("m")
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                group.fetch("m", wait_ms=20_000)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert log.trouble == []
        log.append("t", [{"data": 1}])
        assert [item.seq for item in group.fetch("m").records] == [1]
