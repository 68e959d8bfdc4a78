from __future__ import annotations

from types import ModuleType

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from topics.format import checksum, xxh3


def test_golden_vectors_hold_for_every_implementation() -> None:
    for size, expected in checksum.GOLDEN:
        data = bytes(i % 256 for i in range(size))
        assert {f(data) for f in (checksum.xxh3_64, checksum.portable, xxh3.xxh3_64)} == {expected}


def test_golden_shards_hold() -> None:
    assert [checksum.shard_of(topic_id, 8) for topic_id in (1, 2, 3, 10)] == [6, 3, 5, 5]
    assert checksum.shard_of(12345, 1) == 0
    assert checksum.shard_of(0, 8) == 0


def test_plain_python_equals_the_c_library_at_every_length() -> None:
    data = bytes((i * 131 + (i >> 8)) & 0xFF for i in range(3000))
    lengths = [*range(300), 511, 512, 513, 1023, 1024, 1025, 1087, 1088, 1089, 2047, 2048, 2049, 3000]
    for size in lengths:
        for seed in (0, 1, 0x9E3779B185EBCA87, (1 << 64) - 1):
            assert xxh3.xxh3_64(data[:size], seed) == xxhash.xxh3_64_intdigest(data[:size], seed)


@given(st.binary(max_size=2000))
def test_any_buffer_has_the_same_checksum(ops: ModuleType, data: bytes) -> None:
    expected = xxh3.xxh3_64(data)
    assert ops.xxh3_64(data) == expected
    assert ops.xxh3_64(bytearray(data)) == expected
    assert ops.xxh3_64(memoryview(b"x" + data)[1:]) == expected


def test_large_buffer_is_hashed_with_the_gil_released(ops: ModuleType) -> None:
    data = bytes(range(256)) * 4096
    assert ops.xxh3_64(data) == xxhash.xxh3_64_intdigest(data)


def test_seed_changes_the_checksum() -> None:
    assert checksum.seeded(b"12345678", 0) == checksum.xxh3_64(b"12345678")
    assert checksum.seeded(b"12345678", 1) == xxh3.xxh3_64(b"12345678", 1) != checksum.xxh3_64(b"12345678")


def test_self_test_refuses_another_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    checksum.self_test()
    monkeypatch.setattr(checksum, "xxh3_64", lambda data: 1)
    with pytest.raises(RuntimeError, match="broken build"):
        checksum.self_test()
