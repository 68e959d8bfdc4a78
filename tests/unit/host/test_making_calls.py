"""The system calls of the compiled twin, seen by a library in front of the system's: what it returns says nothing of
whether it synced."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from topics.host import making

_SCRIPT = """
import os, sys
from topics.host.making import make_all
folder, hot, log = sys.argv[1], sys.argv[2] == "hot", sys.argv[3]
files = [(f"{folder}/{name}", None, bytes([65 + at]) * 10_000) for at, name in enumerate("abc")]
os.environ["WATCHED_LOG"] = log
try:
    make_all(files, hot)
except OSError as error:
    print(error.errno, os.path.basename(error.filename))
else:
    print("made")
del os.environ["WATCHED_LOG"]
"""
_CONTENTS = {name: bytes([65 + at]) * 10_000 for at, name in enumerate("abc")}
Call = tuple[str, str]


@pytest.fixture(scope="module")
def watcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("there is no C compiler here, or no Linux")
    if making.make_all is making.make_all_plain:
        pytest.skip("the compiled twin was not built")
    library = tmp_path_factory.mktemp("watcher") / "watched.so"
    source = Path(__file__).parent / "watched_calls.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def watch(watcher: Path, folder: Path, hot: bool, fail: str = "") -> tuple[str, list[Call]]:
    """What the script said, and the calls in order, each with the file it was made for."""
    log = folder / "calls"
    (folder / "files").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(folder / "files"), "hot" if hot else "cold", str(log)],
        env={**os.environ, "LD_PRELOAD": str(watcher), **({"WATCHED_FAIL": fail} if fail else {})},
        capture_output=True,
        text=True,
        check=True,
    )
    names: dict[str, str] = {}
    calls: list[Call] = []
    for line in log.read_text().splitlines():
        call, fd, _size, path, _error = line.split()
        name = os.path.basename(path)
        if call == "opened":
            names[fd] = name
        elif name != "-" or fd in names:
            calls.append((call, names[fd] if name == "-" else name))
    return done.stdout.strip(), calls


def made(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "files").iterdir()}


@pytest.mark.parametrize("hot", [True, False])
def test_every_file_is_synced_behind_its_last_write_and_all_are_begun_before(
    watcher: Path, tmp_path: Path, hot: bool
) -> None:
    said, calls = watch(watcher, tmp_path, hot)
    assert said == "made"
    assert made(tmp_path) == _CONTENTS
    begins = [("begin", name) for name in "abc"]
    syncs = [("sync", name) for name in "abc"]
    assert [call for call in calls if call[0] == "begin"] == begins
    assert [call for call in calls if call[0] == "sync"] == syncs
    assert max(at for at, call in enumerate(calls) if call[0] == "write") < calls.index(begins[0])
    assert calls.index(begins[-1]) < calls.index(syncs[0])
    assert calls[-3:] == [("close", name) for name in "abc"]


@pytest.mark.parametrize("call", ["sync", "begin"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_a_sync_or_its_beginning_meets_is_told_of_that_file(
    watcher: Path, tmp_path: Path, call: str, number: int
) -> None:
    said, calls = watch(watcher, tmp_path, True, f"{call}:{number}:{errno.EIO}")
    assert said == f"{errno.EIO} {'abc'[number - 1]}"
    assert calls.count((call, "abc"[number - 1])) == 1, "what failed is not asked again"
    assert {name for done, name in calls if done == "close"} == set("abc")


def test_a_system_that_begins_nothing_syncs_all_the_same(watcher: Path, tmp_path: Path) -> None:
    said, calls = watch(watcher, tmp_path, True, f"begin:2:{errno.ENOSYS}")
    assert said == "made"
    assert [name for call, name in calls if call == "sync"] == ["a", "b", "c"]


@pytest.mark.parametrize("fail", [f"open_direct:2:{errno.EINVAL}", f"write:3:{errno.EINVAL}", f"open:1:{errno.EINTR}"])
def test_files_are_whole_where_the_way_past_the_cache_is_refused(watcher: Path, tmp_path: Path, fail: str) -> None:
    said, calls = watch(watcher, tmp_path, fail.startswith("open:"), fail)
    assert said == "made"
    assert made(tmp_path) == _CONTENTS
    assert [name for call, name in calls if call == "sync"] == ["a", "b", "c"]


def test_a_failed_write_is_told_and_nothing_is_synced(watcher: Path, tmp_path: Path) -> None:
    said, calls = watch(watcher, tmp_path, True, f"write:2:{errno.ENOSPC}")
    assert said == f"{errno.ENOSPC} b"
    assert not [call for call in calls if call[0] in ("sync", "begin")]
    assert {name for call, name in calls if call == "close"} == {"a", "b"}
