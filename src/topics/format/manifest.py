"""MANIFEST: a topic's segments, oldest first, and the tier each lives in. JSON in a container.

A sealed pair is trusted to the lengths given here; the active pair's trusted length is in the snapshot.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topics.format.checksum import Buffer
from topics.format.container import BadContainer, unwrap, wrap

MAGIC: Final = b"PTS1"
_U64_END: Final = 1 << 64


class SegmentEntry(msgspec.Struct):
    first: int
    """First seq; also the number in the file names."""
    last: int
    """Last seq; meaningful once sealed."""
    data_len: int
    idx_len: int
    idx_xxh3: int
    """Checksum of the whole `.idx`, which has none of its own."""
    sealed: bool
    tier: str = "hot"
    generation: int = 0
    """Rises with each pass that sets deleted flags in the sealed bytes."""


class Manifest(msgspec.Struct):
    topic_id: int
    segments: list[SegmentEntry]


_decoder: Final = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    return wrap(MAGIC, msgspec.json.encode(manifest))


def decode_manifest(buf: Buffer) -> Manifest:
    """The manifest, or BadContainer."""
    body = unwrap(MAGIC, buf)
    try:
        manifest = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadContainer(f"body is not a manifest: {error}") from None
    before = -1
    for entry in manifest.segments:
        numbers = (entry.first, entry.last, entry.data_len, entry.idx_len, entry.idx_xxh3, entry.generation)
        if not all(0 <= number < _U64_END for number in numbers):
            raise BadContainer(f"segment {entry.first} holds a number outside 0..2^64-1")
        if entry.first <= before:
            raise BadContainer(f"segment {entry.first} comes after segment {before}")
        before = entry.first
    if not 0 <= manifest.topic_id < _U64_END:
        raise BadContainer(f"topic_id is {manifest.topic_id}")
    return manifest
