"""Content codings: which one to answer with, and both directions with a cap on what inflating may give."""

from __future__ import annotations

import zlib
from functools import lru_cache

import zstandard

GZIP = b"gzip"
ZSTD = b"zstd"

# Levels where a core still deflates faster than most networks carry; the sizes gained above them are small.
GZIP_LEVEL = 2
ZSTD_LEVEL = 1
GZIP_WINDOW = 31
# RFC 9659: a decoder of `zstd` content need not accept windows above 8 MiB.
ZSTD_WINDOW_MAX = 8 << 20
# Four bytes can stand for a block of 128 KiB.
ZSTD_GAIN_MAX = 32 << 10
ZSTD_STEP_MIN = 128

COMPRESSIBLE = (
    b"application/json",
    b"application/x-ndjson",
    b"application/openapi+json",
    b"application/vnd.apache.arrow",
    b"application/javascript",
    b"text/",
    b"image/svg+xml",
)


class InflateError(Exception):
    """The body is not what its Content-Encoding says."""


class InflatesTooLarge(Exception):
    """Inflated, the body would exceed the cap."""


def is_compressible(content_type: bytes) -> bool:
    return content_type.startswith(COMPRESSIBLE)


@lru_cache(maxsize=256)
def choose(accept_encoding: bytes) -> bytes | None:
    """The coding to answer with: the one of highest q that we have, zstd before gzip; None for none."""
    weights: dict[bytes, float] = {}
    for item in accept_encoding.lower().split(b","):
        name, *parameters = (part.strip() for part in item.split(b";"))
        weights[name] = quality_of(parameters)
    other = weights.get(b"*", 0.0)
    gzip = weights.get(GZIP, weights.get(b"x-gzip", other))
    zstd = weights.get(ZSTD, other)
    plain = weights.get(b"identity", 0.0)
    best = max(gzip, zstd)
    if best <= 0 or plain > best:
        return None
    return ZSTD if zstd >= gzip else GZIP


def quality_of(parameters: list[bytes]) -> float:
    """How much a client likes what these parameters belong to; 0 = not at all."""
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            try:
                quality = float(value)
            except ValueError:
                return 0.0
            return quality if 0.0 <= quality <= 1.0 else 0.0
    return 1.0


def deflate(coding: bytes, body: bytes) -> bytes:
    if coding == ZSTD:
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(body)
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WINDOW)
    return packer.compress(body) + packer.flush()


def coding_of(content_encoding: bytes) -> bytes | None:
    """The one coding of a request body: empty for none, None for one (or a pile of them) that we do not have."""
    name = content_encoding.strip().lower()
    if name in (b"", b"identity"):
        return b""
    if name in (GZIP, b"x-gzip"):
        return GZIP
    return ZSTD if name == ZSTD else None


def inflate(coding: bytes, body: bytes, cap: int) -> bytes:
    """`body` without its coding, of at most `cap` bytes."""
    return _inflate_zstd(body, cap) if coding == ZSTD else _inflate_gzip(body, cap)


def _inflate_gzip(body: bytes, cap: int) -> bytes:
    pieces: list[bytes] = []
    room = cap
    rest = body
    while True:
        opener = zlib.decompressobj(GZIP_WINDOW)
        try:
            piece = opener.decompress(rest, room + 1)
        except zlib.error as error:
            raise InflateError(f"the body is not gzip: {error}") from error
        room -= len(piece)
        if room < 0:
            raise InflatesTooLarge
        if not opener.eof:
            raise InflateError("the gzip body ends early")
        pieces.append(piece)
        rest = opener.unused_data
        if not rest:
            return b"".join(pieces)


def _inflate_zstd(body: bytes, cap: int) -> bytes:
    pieces: list[bytes] = []
    room = cap
    rest = memoryview(body)
    while True:
        opener = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX).decompressobj()
        while rest and not opener.eof:
            # The decoder has no cap of its own, so it gets no more input than may fill the room that is left.
            step = max(ZSTD_STEP_MIN, room // ZSTD_GAIN_MAX)
            try:
                piece = opener.decompress(rest[:step])
            except zstandard.ZstdError as error:
                raise InflateError(f"the body is not zstd: {error}") from error
            room -= len(piece)
            if room < 0:
                raise InflatesTooLarge
            pieces.append(piece)
            rest = rest[step:]
        if not opener.eof:
            raise InflateError("the zstd body ends early")
        if opener.unused_data:
            rest = memoryview(opener.unused_data + bytes(rest))
        if not rest:
            return b"".join(pieces)
