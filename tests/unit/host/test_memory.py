"""The allocator's settings, and what the kernel keeps of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from topics.host.fs import OsFs
from topics.host.memory import MMAP_BYTES, TRIM_BYTES, is_resident, keep_freed_memory


def test_memory_can_be_kept_more_than_once() -> None:
    keep_freed_memory()
    keep_freed_memory()
    assert len(bytes(2 * MMAP_BYTES)) == 2 * MMAP_BYTES
    assert TRIM_BYTES > MMAP_BYTES


def test_pages_that_the_kernel_let_go_are_not_resident(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 4096)
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
        view = OsFs().open(str(path)).map()
        assert is_resident(view, 0, len(view))
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        if is_resident(view, 0, len(view)):
            pytest.skip("this file system keeps its files in memory")
    finally:
        os.close(file)
    assert is_resident(view, 5, 5), "nothing is always there"
    assert view[500_000] == 500_000 % 256
    assert is_resident(view, 500_000, 500_001)


def test_memory_that_is_no_mapping_is_resident() -> None:
    assert is_resident(memoryview(b"abc" * 10_000), 10, 20_000)
