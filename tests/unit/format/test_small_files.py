"""CURRENT, MANIFEST and the container they share with the snapshot."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.format.container import BadContainer, unwrap, wrap
from topics.format.current import Current
from topics.format.manifest import Manifest, SegmentEntry, decode_manifest, encode_manifest

MANIFEST = Manifest(
    9,
    [
        SegmentEntry(1, 100, 5000, 2000, (1 << 64) - 1, True, "cold", 2),
        SegmentEntry(101, 150, 2500, 1000, 0, False),
    ],
)


@given(st.binary(max_size=100))
def test_container_gives_back_its_body(body: bytes) -> None:
    assert unwrap(b"PTS1", wrap(b"PTS1", body)) == body
    assert unwrap(b"PTS1", memoryview(wrap(b"PTS1", body))) == body


def test_container_has_the_documented_header() -> None:
    assert wrap(b"PTM1", b"")[:16] == b"PTM1" + b"\1\0\0\0" + bytes(8)
    assert wrap(b"PTM1", b"")[16:] == bytes.fromhex("2d06800538d394c2")[::-1]


def test_every_flipped_bit_of_a_container_is_noticed() -> None:
    whole = wrap(b"PTS1", b"some body")
    for at in range(len(whole)):
        for bit in range(8):
            broken = bytearray(whole)
            broken[at] ^= 1 << bit
            with pytest.raises(BadContainer):
                unwrap(b"PTS1", broken)


def test_cut_or_longer_container_is_refused() -> None:
    whole = wrap(b"PTS1", b"some body")
    for broken in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
        with pytest.raises(BadContainer):
            unwrap(b"PTS1", broken)


def test_container_of_another_kind_is_refused() -> None:
    with pytest.raises(BadContainer, match="magic"):
        unwrap(b"PTM1", wrap(b"PTS1", b""))


def test_manifest_decodes_to_what_was_encoded() -> None:
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST
    assert decode_manifest(encode_manifest(Manifest(1, []))) == Manifest(1, [])


def test_manifest_body_is_the_documented_json() -> None:
    body = msgspec.json.decode(unwrap(b"PTS1", encode_manifest(MANIFEST)))
    assert body["topic_id"] == 9
    assert body["segments"][1] == {
        "first": 101,
        "last": 150,
        "data_len": 2500,
        "idx_len": 1000,
        "idx_xxh3": 0,
        "sealed": False,
        "tier": "hot",
        "generation": 0,
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"topic_id":1}',
        b'{"topic_id":-1,"segments":[]}',
        b'{"topic_id":"1","segments":[]}',
        b'{"topic_id":1,"segments":[{"first":1}]}',
        msgspec.json.encode(Manifest(1, [SegmentEntry(2, 3, 0, 0, 0, True), SegmentEntry(2, 3, 0, 0, 0, True)])),
        msgspec.json.encode(Manifest(1, [SegmentEntry(2, -3, 0, 0, 0, True)])),
        msgspec.json.encode(Manifest(1, [SegmentEntry(2, 3, 0, 0, 1 << 64, True)])),
        b"\xff",
    ],
)
def test_manifest_of_doubtful_content_is_refused(body: bytes) -> None:
    with pytest.raises(BadContainer):
        decode_manifest(wrap(b"PTS1", body))


def test_current_is_the_documented_text() -> None:
    current = Current("wal-0000000000000007.log", (("wal-0000000000000005.log", 67108351),))
    text = b"wal-0000000000000007.log\nsealed wal-0000000000000005.log 67108351\n"
    assert current.encode() == text
    assert Current.decode(text) == current


@given(st.sets(st.integers(0, 10**16 - 1), min_size=1, max_size=5), st.integers(0, 1 << 40))
def test_current_decodes_to_what_was_encoded(numbers: set[int], length: int) -> None:
    first, *rest = (f"wal-{number:016d}.log" for number in sorted(numbers, reverse=True))
    current = Current(first, tuple((name, length) for name in rest))
    assert Current.decode(current.encode()) == current


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"wal-0000000000000007.log",
        b"wal-7.log\n",
        b"../wal-0000000000000007.log\n",
        b"wal-0000000000000007.log\nsealed wal-0000000000000006.log\n",
        b"wal-0000000000000007.log\nsealed wal-0000000000000006.log -1\n",
        b"wal-0000000000000007.log\nsealed wal-0000000000000006.log 01\n",
        b"wal-0000000000000007.log\nsealed wal-0000000000000006.log 1",
        b"wal-0000000000000007.log\nsealed wal-0000000000000007.log 1\n",
        b"wal-0000000000000007.log\nsealed wal-0000000000000006.log 1\n\n",
        b"wal-0000000000000007.log\r\n",
        b"wal-\xff000000000000007.log\n",
    ],
)
def test_current_of_doubtful_content_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        Current.decode(text)
