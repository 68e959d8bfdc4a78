from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path

import pytest

from topics.host.fs import OsFs

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc to count mappings in")


def descriptors_of(path: Path) -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them is gone by now
            found += os.readlink(f"/proc/self/fd/{name}") == str(path)
    return found


def mappings_of(path: Path) -> int:
    return sum(line.endswith(str(path)) for line in Path("/proc/self/maps").read_text("utf-8").splitlines())


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "seg.data"
    path.write_bytes(b"abc" * 5000)
    return path


def test_a_mapping_keeps_no_descriptor_open(written: Path) -> None:
    views = [OsFs().open(str(written)).map() for _ in range(50)]
    assert descriptors_of(written) == 0
    assert mappings_of(written) == 50
    assert all(bytes(view[:6]) == b"abcabc" for view in views)


def test_a_mapping_ends_with_its_last_view(written: Path) -> None:
    view = OsFs().open(str(written)).map()
    part = view[100:200]
    del view
    gc.collect()
    assert mappings_of(written) == 1
    assert len(bytes(part)) == 100
    del part
    gc.collect()
    assert mappings_of(written) == 0


def test_a_mapping_outlives_its_file_and_its_name(written: Path) -> None:
    file = OsFs().open(str(written))
    view = file.map()
    file.close()
    written.unlink()
    assert bytes(view) == b"abc" * 5000


def test_a_mapping_cannot_be_written(written: Path) -> None:
    view = OsFs().open(str(written)).map()
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_closed_file_cannot_be_mapped(written: Path) -> None:
    file = OsFs().open(str(written))
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.map()
