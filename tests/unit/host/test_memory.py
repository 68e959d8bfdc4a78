"""The allocator's settings."""

from __future__ import annotations

from topics.host.memory import MMAP_BYTES, TRIM_BYTES, keep_freed_memory


def test_memory_can_be_kept_more_than_once() -> None:
    keep_freed_memory()
    keep_freed_memory()
    assert len(bytes(2 * MMAP_BYTES)) == 2 * MMAP_BYTES
    assert TRIM_BYTES > MMAP_BYTES
