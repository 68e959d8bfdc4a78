"""Content codings: the choice by q-values, and inflating under a cap."""

from __future__ import annotations

import gzip

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from topics.api.compress import (
    GZIP,
    ZSTD,
    InflateError,
    InflatesTooLarge,
    choose,
    coding_of,
    deflate,
    inflate,
    is_compressible,
)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        (b"", None),
        (b"gzip", GZIP),
        (b"zstd", ZSTD),
        (b"gzip, deflate, br, zstd", ZSTD),
        (b"gzip, deflate", GZIP),
        (b"x-gzip", GZIP),
        (b"GZip", GZIP),
        (b"br, deflate", None),
        (b"*", ZSTD),
        (b"*;q=0", None),
        (b"zstd;q=0, *", GZIP),
        (b"gzip;q=0", None),
        (b"gzip;q=1.0, zstd;q=0.5", GZIP),
        (b"gzip;q=0.5;x=1 , zstd ; q=0.7", ZSTD),
        (b"gzip;q=0.2, identity;q=0.9", None),
        (b"gzip;q=nan", None),
        (b"gzip;q=7", None),
        (b"gzip;q=", None),
        (b";;;,,,=,q=1", None),
    ],
)
def test_coding_of_highest_weight_is_chosen(accepted: bytes, chosen: bytes | None) -> None:
    assert choose(accepted) == chosen


@given(st.binary(max_size=200))
def test_any_accept_encoding_is_survived(accepted: bytes) -> None:
    assert choose(accepted) in (None, GZIP, ZSTD)


@pytest.mark.parametrize(
    ("said", "coding"),
    [(b"gzip", GZIP), (b" X-GZIP ", GZIP), (b"zstd", ZSTD), (b"identity", b""), (b"", b""), (b"br", None)],
)
def test_content_encoding_names_one_coding(said: bytes, coding: bytes | None) -> None:
    assert coding_of(said) == coding


@pytest.mark.parametrize("coding", [GZIP, ZSTD])
@given(body=st.binary(max_size=5000), repeats=st.integers(1, 50))
def test_what_was_deflated_inflates_to_the_same(coding: bytes, body: bytes, repeats: int) -> None:
    whole = body * repeats
    assert inflate(coding, deflate(coding, whole), len(whole)) == whole


@pytest.mark.parametrize("coding", [GZIP, ZSTD])
def test_cap_is_exact(coding: bytes) -> None:
    packed = deflate(coding, b"a" * 100_000)
    assert len(inflate(coding, packed, 100_000)) == 100_000
    with pytest.raises(InflatesTooLarge):
        inflate(coding, packed, 99_999)
    with pytest.raises(InflatesTooLarge):
        inflate(coding, packed, 0)


@pytest.mark.parametrize("coding", [GZIP, ZSTD])
def test_several_members_are_joined_under_one_cap(coding: bytes) -> None:
    packed = deflate(coding, b"one") + deflate(coding, b"") + deflate(coding, b"two")
    assert inflate(coding, packed, 6) == b"onetwo"
    with pytest.raises(InflatesTooLarge):
        inflate(coding, packed, 5)


@pytest.mark.parametrize("coding", [GZIP, ZSTD])
def test_every_early_end_is_found(coding: bytes) -> None:
    packed = deflate(coding, bytes(range(256)) * 4)
    for length in range(1, len(packed)):
        with pytest.raises(InflateError):
            inflate(coding, packed[:length], 10_000)


@pytest.mark.parametrize("coding", [GZIP, ZSTD])
def test_bytes_behind_the_last_member_are_refused(coding: bytes) -> None:
    with pytest.raises(InflateError):
        inflate(coding, deflate(coding, b"abc") + b"tail", 10_000)


@given(st.sampled_from([GZIP, ZSTD]), st.binary(min_size=1, max_size=200))
def test_nonsense_is_refused_and_nothing_else(coding: bytes, body: bytes) -> None:
    try:
        inflate(coding, body, 1000)
    except (InflateError, InflatesTooLarge):
        pass


def test_zstd_without_a_size_in_its_head_is_capped_too() -> None:
    packer = zstandard.ZstdCompressor().compressobj()
    packed = packer.compress(b"\0" * (50 << 20)) + packer.flush()
    with pytest.raises(InflatesTooLarge):
        inflate(ZSTD, packed, 1 << 20)


def test_zstd_with_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(b"a") + packer.flush()
    with pytest.raises(InflateError):
        inflate(ZSTD, packed, 1000)


def test_foreign_gzip_is_read() -> None:
    assert inflate(GZIP, gzip.compress(b"abc", 9), 3) == b"abc"


@pytest.mark.parametrize(
    ("content_type", "compressible"),
    [
        (b"application/json", True),
        (b"application/json; charset=utf-8", True),
        (b"text/plain; version=0.0.4", True),
        (b"application/octet-stream", False),
        (b"", False),
    ],
)
def test_only_text_like_types_are_compressible(content_type: bytes, compressible: bool) -> None:
    assert is_compressible(content_type) is compressible
