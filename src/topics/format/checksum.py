"""The one checksum of every file and the choice of a shard: XXH3-64, seed 0, default secret.

The fastest implementation at hand is taken: the kernel, else the `xxhash` package, else our own plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from topics.format import xxh3

Buffer = bytes | bytearray | memoryview

portable: Callable[[Buffer], int]
"""Without the kernel: what the Python twins of the kernel functions are compared with."""

_seeded: Callable[[Buffer, int], int]

try:
    import xxhash
except ImportError:  # pragma: no cover - the package is a dependency, its absence a broken installation
    portable = xxh3.xxh3_64
    _seeded = xxh3.xxh3_64
else:
    portable = xxhash.xxh3_64_intdigest
    _seeded = xxhash.xxh3_64_intdigest

xxh3_64: Callable[[Buffer], int]
try:
    from topics.format.kernel import xxh3_64
except ImportError:
    xxh3_64 = portable

GOLDEN: Final = (
    (0, 0x2D06800538D394C2),
    (8, 0x3A1C2D7C85AF88F8),
    (17, 0x9EF341A99DE37328),
    (129, 0xEC7642B431BA3E5A),
    (241, 0x02E8CD95421C6D02),
    (4096, 0xEB4B7C3707879151),
)
"""(n, checksum of the bytes 0..n-1 mod 256): one per branch of the algorithm."""

GOLDEN_SHARDS: Final = ((1, 6), (2, 3), (3, 5), (10, 5))
"""(topic_id, its shard of 8)."""


def seeded(data: Buffer, seed: int) -> int:
    return _seeded(data, seed)


def shard_of(topic_id: int, shards: int) -> int:
    """The WAL shard of a topic. Frames of no topic (id 0) live in shard 0."""
    if shards == 1 or topic_id == 0:
        return 0
    return xxh3_64(topic_id.to_bytes(8, "little")) % shards


def self_test() -> None:
    """Raise RuntimeError if this build computes another checksum than the one on disk: it would call all data bad."""
    for size, expected in GOLDEN:
        data = bytes(i % 256 for i in range(size))
        for name, found in (("xxh3_64", xxh3_64(data)), ("portable", portable(data)), ("seeded", seeded(data, 0))):
            if found != expected:
                raise RuntimeError(f"{name} of {size} bytes is {found:016x}, not {expected:016x}: broken build")
    for topic_id, shard in GOLDEN_SHARDS:
        if shard_of(topic_id, 8) != shard:
            raise RuntimeError(f"topic {topic_id} falls into shard {shard_of(topic_id, 8)} of 8, not {shard}")
