"""XXH3-64 in plain Python, for machines with neither the kernel nor the `xxhash` package.

The algorithm has four ranges of length, each with its own mixing; the names below follow the public specification.
About 20 MB/s: slow, but a store stays readable.
"""

from __future__ import annotations

import struct
from typing import Final

SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)

_MASK: Final = (1 << 64) - 1
_P32_1: Final = 0x9E3779B1
_P32_2: Final = 0x85EBCA77
_P32_3: Final = 0xC2B2AE3D
_P64_1: Final = 0x9E3779B185EBCA87
_P64_2: Final = 0xC2B2AE3D27D4EB4F
_P64_3: Final = 0x165667B19E3779F9
_P64_4: Final = 0x85EBCA77C2B2AE63
_P64_5: Final = 0x27D4EB2F165667C5
_PMX_1: Final = 0x165667919E3779F9
_PMX_2: Final = 0x9FB21C651E98DF25

_STRIPE: Final = 64
_STRIPES_PER_BLOCK: Final = (len(SECRET) - _STRIPE) // 8
_BLOCK: Final = _STRIPE * _STRIPES_PER_BLOCK
_LANES: Final = struct.Struct("<8Q")


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product & _MASK) ^ (product >> 64)


def _avalanche(h: int) -> int:
    h ^= h >> 37
    h = h * _PMX_1 & _MASK
    return h ^ (h >> 32)


def _avalanche_xxh64(h: int) -> int:
    h ^= h >> 33
    h = h * _P64_2 & _MASK
    h ^= h >> 29
    h = h * _P64_3 & _MASK
    return h ^ (h >> 32)


def _swap32(x: int) -> int:
    return int.from_bytes(x.to_bytes(4, "little"), "big")


def _rotate(x: int, bits: int) -> int:
    return ((x << bits) | (x >> (64 - bits))) & _MASK


def _up_to_16(data: bytes, size: int, seed: int) -> int:
    if size > 8:
        low = _u64(data, 0) ^ ((_u64(SECRET, 24) ^ _u64(SECRET, 32)) + seed & _MASK)
        high = _u64(data, size - 8) ^ ((_u64(SECRET, 40) ^ _u64(SECRET, 48)) - seed & _MASK)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(size + swapped + high + _fold(low, high) & _MASK)
    if size >= 4:
        seed ^= _swap32(seed & 0xFFFFFFFF) << 32
        both = _u32(data, size - 4) + (_u32(data, 0) << 32)
        h = both ^ ((_u64(SECRET, 8) ^ _u64(SECRET, 16)) - seed & _MASK)
        h ^= _rotate(h, 49) ^ _rotate(h, 24)
        h = h * _PMX_2 & _MASK
        h ^= (h >> 35) + size
        h = h * _PMX_2 & _MASK
        return h ^ (h >> 28)
    if size:
        both = (data[0] << 16) | (data[size >> 1] << 24) | data[size - 1] | (size << 8)
        return _avalanche_xxh64(both ^ ((_u32(SECRET, 0) ^ _u32(SECRET, 4)) + seed & _MASK))
    return _avalanche_xxh64(seed ^ _u64(SECRET, 56) ^ _u64(SECRET, 64))


def _mix16(data: bytes, at: int, secret_at: int, seed: int) -> int:
    return _fold(
        _u64(data, at) ^ (_u64(SECRET, secret_at) + seed & _MASK),
        _u64(data, at + 8) ^ (_u64(SECRET, secret_at + 8) - seed & _MASK),
    )


def _up_to_128(data: bytes, size: int, seed: int) -> int:
    total = size * _P64_1
    for i in range((size - 1) // 32, -1, -1):
        total += _mix16(data, 16 * i, 32 * i, seed) + _mix16(data, size - 16 * (i + 1), 32 * i + 16, seed)
    return _avalanche(total & _MASK)


def _up_to_240(data: bytes, size: int, seed: int) -> int:
    total = size * _P64_1
    for i in range(8):
        total += _mix16(data, 16 * i, 16 * i, seed)
    total = _avalanche(total & _MASK)
    for i in range(8, size // 16):
        total += _mix16(data, 16 * i, 16 * (i - 8) + 3, seed)
    return _avalanche(total + _mix16(data, size - 16, 136 - 17, seed) & _MASK)


def _seeded_secret(seed: int) -> bytes:
    if not seed:
        return SECRET
    words = struct.unpack("<24Q", SECRET)
    return struct.pack("<24Q", *((w + (-seed if i & 1 else seed)) & _MASK for i, w in enumerate(words)))


def _stripe(lanes: list[int], words: tuple[int, ...], keys: tuple[int, ...]) -> None:
    for i in range(8):
        word = words[i]
        keyed = word ^ keys[i]
        lanes[i ^ 1] += word
        lanes[i] += (keyed & 0xFFFFFFFF) * (keyed >> 32)
    # Python integers grow without bound: cut once per stripe, not once per addition.
    for i in range(8):
        lanes[i] &= _MASK


def _long(data: bytes, size: int, seed: int) -> int:
    secret = _seeded_secret(seed)
    keys = [_LANES.unpack_from(secret, 8 * i) for i in range(_STRIPES_PER_BLOCK)]
    scramble = _LANES.unpack_from(secret, len(secret) - _STRIPE)
    lanes = [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1]
    blocks = (size - 1) // _BLOCK
    for block in range(blocks):
        at = block * _BLOCK
        for n in range(_STRIPES_PER_BLOCK):
            _stripe(lanes, _LANES.unpack_from(data, at + n * _STRIPE), keys[n])
        for i in range(8):
            lane = lanes[i]
            lanes[i] = (lane ^ (lane >> 47) ^ scramble[i]) * _P32_1 & _MASK
    at = blocks * _BLOCK
    for n in range((size - 1 - at) // _STRIPE):
        _stripe(lanes, _LANES.unpack_from(data, at + n * _STRIPE), keys[n])
    _stripe(lanes, _LANES.unpack_from(data, size - _STRIPE), _LANES.unpack_from(secret, len(secret) - _STRIPE - 7))
    total = size * _P64_1
    for i in range(4):
        total += _fold(lanes[2 * i] ^ _u64(secret, 11 + 16 * i), lanes[2 * i + 1] ^ _u64(secret, 19 + 16 * i))
    return _avalanche(total & _MASK)


def xxh3_64(data: bytes | bytearray | memoryview, seed: int = 0) -> int:
    data = bytes(data)
    size = len(data)
    if size <= 16:
        return _up_to_16(data, size, seed)
    if size <= 128:
        return _up_to_128(data, size, seed)
    if size <= 240:
        return _up_to_240(data, size, seed)
    return _long(data, size, seed)
