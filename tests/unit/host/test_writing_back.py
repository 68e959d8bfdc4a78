from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from topics.host.fs import OsFs, write_all
from topics.host.writing_back import write_back, write_back_plain

_SIGNALLED = """
import os, signal, sys
from topics.host import writing_back

def raising(number, frame):
    raise SystemExit(f"signal {number}")

call = getattr(writing_back, sys.argv[1])
signal.signal(signal.SIGTERM, raising)
signal.signal(signal.SIGINT, raising)
error = None
with open(sys.argv[2], "wb") as file:
    os.environ["SIGNALLED"] = "yes"
    try:
        try:
            call(file.fileno())
        except OSError as failed:
            error = failed
    except BaseException:
        pass
    while True:
        try:
            os.write(1, b"failed\\n" if error is not None else b"believed\\n")
            break
        except BaseException:
            pass
"""


def test_a_file_is_written_back_and_reads_as_before(tmp_path: Path) -> None:
    file = OsFs().open(str(tmp_path / "a"), write=True, create=True)
    file.allocate(100_000)
    write_all(file, 5000, [b"abc"], dsync=True)
    write_all(file, 9000, [b"def"])
    file.sync()
    assert file.read_at(4999, 5) == b"\0abc\0"
    assert file.read_at(9000, 3) == b"def"
    assert file.size() == 100_000


@pytest.mark.parametrize("call", [write_back, write_back_plain])
def test_trouble_is_told_as_that_of_a_sync_is(call: Callable[[int], None]) -> None:
    with pytest.raises(OSError, match="Bad file") as caught:
        call((1 << 31) - 1)
    assert caught.value.errno == errno.EBADF
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match=r"seek|Invalid argument"):
            call(writing)
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("twin", ["write_back", "write_back_plain"])
def test_trouble_is_told_though_two_signals_break_in(tmp_path: Path, twin: str) -> None:
    """The next call would hear nothing of it any more."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("there is no C compiler here, or no Linux")
    library, source = tmp_path / "signalled.so", Path(__file__).parent / "signalled_sync.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", _SIGNALLED, twin, str(tmp_path / "a")],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split()[-1:] == ["failed"], done.stdout + done.stderr
