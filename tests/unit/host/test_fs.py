"""The helpers around the seam, and what only the real file system can show."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from topics.host.fs import Buffer, Lock, OsFile, OsFs, parent, replace_file, write_all
from topics.testing.disk import FakeDisk, FakeFile, PowerOff


class StingyFile(FakeFile):
    """Takes at most `most` bytes at a time."""

    most = 0

    def write_at(self, offset: int, buffers: Sequence[Buffer], *, dsync: bool = False) -> int:
        return super().write_at(offset, [b"".join(buffers)[: self.most]], dsync=dsync)


def stingy(most: int) -> tuple[FakeDisk, StingyFile]:
    disk = FakeDisk()
    file = StingyFile(disk, disk.open("/a", write=True, create=True).node, "/a", True)
    file.most = most
    return disk, file


@pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
def test_write_all_goes_on_after_every_short_write(most: int) -> None:
    disk, file = stingy(most)
    write_all(file, 1, [b"ab", b"", bytearray(b"cde"), memoryview(b"fghij")[1:4], b"k"])
    assert disk.read("/a") == b"\0abcdeghik"


def test_write_all_counts_the_bytes_of_a_wider_view() -> None:
    disk, file = stingy(3)
    write_all(file, 0, [memoryview(b"abcdefgh").cast("I"), b"ij"])
    assert disk.read("/a") == b"abcdefghij"


def test_write_all_gives_up_where_no_progress_is_made() -> None:
    _, file = stingy(0)
    with pytest.raises(OSError) as caught:
        write_all(file, 0, [b"abc"])
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize(
    ("path", "above"), [("/a/b", "/a"), ("/a/b/", "/a"), ("/a", "/"), ("a", "."), ("a/b", "a"), ("/", "/")]
)
def test_parent_is_the_directory_that_holds_a_path(path: str, above: str) -> None:
    assert parent(path) == above


def test_replace_file_leaves_the_old_file_or_the_new_one_after_a_crash_in_any_call() -> None:
    ready = FakeDisk()
    replace_file(ready, "/a", b"old" * 500)
    done = ready.clone()
    replace_file(done, "/a", b"new" * 700)
    for n in range(ready.calls + 1, done.calls + 1):
        for seed in range(20):
            disk = ready.clone()
            disk.rng.seed(seed)
            disk.crash_at(n, "power" if seed % 2 else "kill")
            with pytest.raises(PowerOff):
                replace_file(disk, "/a", b"new" * 700)
            disk.restart()
            assert disk.read("/a") in (b"old" * 500, b"new" * 700)
            replace_file(disk, "/a", b"newest")
            disk.power_cut()
            assert disk.read("/a") == b"newest"


def test_replace_file_spares_a_file_whose_tmp_is_its_second_name() -> None:
    tried = 0
    for seed in range(100):
        disk = FakeDisk(seed)
        replace_file(disk, "/a", b"old")
        file = disk.open("/a.tmp", write=True, create=True)
        write_all(file, 0, [b"new"])
        file.sync()
        disk.rename("/a.tmp", "/a")
        disk.power_cut()
        disk.restart()
        if not disk.counters["rename_both"] or not disk.exists("/a.tmp"):
            continue
        tried += 1
        # Stop as soon as the next tmp is written: the file under the real name must still be whole.
        before = disk.read("/a")
        disk.crash_at(disk.calls + 3, "kill")
        with pytest.raises(PowerOff):
            replace_file(disk, "/a", b"another")
        assert disk.read("/a") == before
    assert tried > 3


def test_new_files_and_directories_are_private(tmp_path: Path) -> None:
    fs = OsFs()
    fs.mkdir(f"{tmp_path}/d")
    fs.open(f"{tmp_path}/d/a", write=True, create=True)
    fs.lock(f"{tmp_path}/d/lock").release()
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "d/a").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "d/lock").stat().st_mode & 0o777 == 0o600


def test_descriptors_are_not_inherited_by_programs(tmp_path: Path) -> None:
    file = OsFs().open(f"{tmp_path}/a", write=True, create=True)
    assert isinstance(file, OsFile)
    assert not os.get_inheritable(file.fd)


def test_a_read_is_short_at_the_end_of_the_file_only(tmp_path: Path) -> None:
    file = OsFs().open(f"{tmp_path}/a", write=True, create=True)
    file.truncate(10)
    assert file.read_at(4, 100) == bytes(6)
    assert file.read_at(10, 1) == b""
    assert file.read_at(1 << 40, 1) == b""


_HOLD = """
import sys
from topics.host.fs import OsFs
try:
    lock = OsFs().lock(sys.argv[1])
except BlockingIOError:
    print("refused")
else:
    print("held", flush=True)
    sys.stdin.readline()
"""


_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def _holder(path: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _HOLD, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_ENVIRONMENT,
    )


def _run(script: str, path: str) -> str:
    command = [sys.executable, "-c", script, path]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=_ENVIRONMENT, input=""
    ).stdout.strip()


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.realdisk
def test_a_lock_keeps_other_processes_out_until_its_holder_is_killed(tmp_path: Path) -> None:
    path = f"{tmp_path}/lock"
    with _holder(path) as first:
        assert _answer(first) == "held"
        assert (tmp_path / "lock").read_text() == f"pid={first.pid}\n"
        with _holder(path) as second:
            assert _answer(second) == "refused"
        with pytest.raises(BlockingIOError):
            OsFs().lock(path)
        first.kill()
    held = OsFs().lock(path)
    with _holder(path) as third:
        assert _answer(third) == "refused"
    held.release()


_FORK = """
import os, sys
from topics.host.fs import OsFs
held = OsFs().lock(sys.argv[1])
child = os.fork()
if child == 0:
    held.release()
    os._exit(0)
os.waitpid(child, 0)
try:
    OsFs().lock(sys.argv[1])
except BlockingIOError:
    print("still held")
"""


@pytest.mark.realdisk
def test_a_forked_child_cannot_end_its_parents_lock(tmp_path: Path) -> None:
    # In a process of its own: a fork of this one would copy whatever threads the test runner has.
    assert _run(_FORK, f"{tmp_path}/lock") == "still held"


_FORK_AND_RELEASE = """
import os, sys
from topics.host.fs import OsFs
held = OsFs().lock(sys.argv[1])
if os.fork() == 0:
    sys.stdin.readline()
    os._exit(0)
held.release()
OsFs().lock(sys.argv[1])
print("free")
"""


@pytest.mark.realdisk
def test_a_forked_child_that_lives_on_does_not_keep_a_released_lock(tmp_path: Path) -> None:
    assert _run(_FORK_AND_RELEASE, f"{tmp_path}/lock") == "free"


@pytest.mark.realdisk
def test_identity_names_the_boot_and_the_mount(tmp_path: Path) -> None:
    fs = OsFs()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert fs.identity(str(tmp_path)).startswith(boot + " ")
    assert fs.identity(str(tmp_path)) != fs.identity("/proc")


def test_errors_name_the_paths_of_the_call_and_nothing_else(tmp_path: Path) -> None:
    fs, there, gone = OsFs(), str(tmp_path), str(tmp_path / "gone")
    with pytest.raises(FileNotFoundError) as one:
        fs.open(gone)
    assert str(one.value) == f"[Errno 2] No such file or directory: {gone!r}"
    with pytest.raises(FileNotFoundError) as two:
        fs.rename(gone, f"{there}/new")
    assert str(two.value) == f"[Errno 2] No such file or directory: {gone!r} -> {there + '/new'!r}"


class _Overtaken(OsFs):
    """Something happens between the looking up of the directory and the call in it."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None

    def _at(self, path: str) -> tuple[str, int | None]:
        found = super()._at(path)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return found


@pytest.mark.parametrize("call", ["open", "list", "exists"])
def test_a_call_whose_lock_is_released_meanwhile_finds_its_own_directory(tmp_path: Path, call: str) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
        (tmp_path / name / "data").write_text(name)
        (tmp_path / name / f"of {name}").touch()
    fs, others = _Overtaken(), OsFs()
    before = set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()
    lock = fs.lock(f"{tmp_path}/mine/lock")
    taken: list[Lock] = []

    def meanwhile() -> None:
        lock.release()
        taken.append(others.lock(f"{tmp_path}/other/lock"))  # it gets the number that is free, if one is

    fs.meanwhile = meanwhile
    if call == "open":
        file = fs.open(f"{tmp_path}/mine/data")
        assert file.read_at(0, 10) == b"mine"
        file.close()
    elif call == "list":
        assert fs.list(f"{tmp_path}/mine") == ["data", "lock", "of mine"]
    else:
        assert fs.exists(f"{tmp_path}/mine/of mine")
    OsFs().lock(f"{tmp_path}/mine/lock").release()
    taken.pop().release()
    if sys.platform == "linux":
        assert set(os.listdir("/proc/self/fd")) == before, "a descriptor is left"


def test_a_directory_is_free_again_though_a_call_in_it_is_under_way(tmp_path: Path) -> None:
    fs = OsFs()
    lock = fs.lock(f"{tmp_path}/lock")
    _, at = fs._at(f"{tmp_path}/a")
    assert at is not None
    lock.release()
    OsFs().lock(f"{tmp_path}/lock").release()
    os.fstat(at)
    number = int(at)
    del at
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(number)
