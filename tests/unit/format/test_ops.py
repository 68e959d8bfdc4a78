from __future__ import annotations

import mmap
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.format.twins import NOW, TOPIC, needs_kernel
from topics.format import batchops, ops
from topics.model.record import Record

FUNCTIONS = [name for name in batchops.__all__ if name.islower()]


@needs_kernel
def test_kernel_has_every_function_of_the_reference() -> None:
    assert ops.kernel is not None
    for name in FUNCTIONS:
        assert getattr(ops, name) is getattr(ops.kernel, name)
        assert callable(getattr(batchops, name))


def test_package_works_without_the_kernel_and_says_so_once() -> None:
    script = """
import sys, warnings
sys.modules["topics.format.kernel"] = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from topics.format import ops, checksum
    import topics.format.ops
checksum.self_test()
assert not ops.KERNEL and ops.kernel is None
assert ops.scan_wal is ops.reference.scan_wal
prepared = ops.prepare([{"data": 1}])
ops.stamp(prepared.frames, prepared.entries, 1, 1, 1, 1, True, False)
assert ops.scan_wal(prepared.frames, 0, len(prepared.frames), bytearray()).frames == 1
assert [str(w.message).startswith("topics runs without its compiled kernel") for w in caught] == [True]
"""
    paths = [str(Path(ops.__file__).parents[2]), *sys.path]
    code = f"import sys; sys.path[:0] = {paths!r}\n{script}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_mappings_and_views_serve_as_buffers(ops: ModuleType) -> None:
    prepared = ops.prepare([{"data": i, "tag": "t"} for i in range(5)])
    ops.stamp(prepared.frames, prepared.entries, 5, TOPIC, 1, NOW, True, False)
    size = len(prepared.frames)
    with mmap.mmap(-1, 4096) as mapped:
        mapped[:size] = bytes(prepared.frames)
        for buf in (mapped, memoryview(mapped), memoryview(mapped).toreadonly()):
            entries = bytearray()
            assert ops.scan_wal(buf, 0, 4096, entries).reason == "zeros"
            assert ops.verify(buf, entries, 0, 5, 1, 0, TOPIC, 0) == 5
            assert len(ops.make_records(buf, memoryview(entries), 0, 5, 1, 0, 0, None, Record)) == 5
            data, idx = bytearray(), bytearray()
            assert ops.restamp(buf, bytes(entries), 0, 5, 1, TOPIC, None, data, idx) == 5
            assert ops.find_frames(buf, 0, 4096) == 0
            assert ops.find_sync_marks(buf, 0, 4096, 1) == []
            if isinstance(buf, memoryview):
                buf.release()


def test_buffers_are_free_again_after_an_error(ops: ModuleType) -> None:
    frames, entries = bytearray(b"x" * 100), bytearray(20)
    entries[4] = 60
    assert ops.verify(frames, entries, 0, 1, 1, 0, 1, 0) == 0
    with pytest.raises(ValueError):
        ops.make_records(frames, entries, 0, 1, 1, 0, 0, None, Record)
    with pytest.raises(ValueError):
        ops.stamp(frames, entries, 9, 1, 1, 1, True, False)
    with pytest.raises(ValueError):
        ops.scan_wal(frames, 5, 500, entries)
    frames.append(0)
    entries.append(0)


def test_threads_may_work_at_the_same_time(ops: ModuleType) -> None:
    prepared = ops.prepare([{"data": "x" * 400}] * 1500)
    ops.stamp(prepared.frames, prepared.entries, 1500, TOPIC, 1, NOW, True, False)
    frames = bytes(prepared.frames)
    results: list[tuple[int, int, int]] = []

    def work() -> None:
        entries, data, idx = bytearray(), bytearray(), bytearray()
        scan = ops.scan_wal(frames, 0, len(frames), entries)
        copied = ops.restamp(frames, entries, 0, 1500, 1, TOPIC, None, data, idx)
        results.append((scan.frames, copied, ops.rebuild_idx(data, 1, len(data))[2]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(1500, 1500, 1500)] * 4
