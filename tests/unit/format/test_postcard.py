"""Postcard: what the Rust program's encoder writes is read, and nothing else is."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.storage.rust.directory import number, signed, text
from topics.format.postcard import BadPostcard, PostcardReader


def reader(data: bytes) -> PostcardReader:
    return PostcardReader(memoryview(data))


@given(st.integers(0, (1 << 64) - 1))
def test_every_unsigned_number_is_read_back(value: int) -> None:
    found = reader(number(value))
    assert found.unsigned() == value
    found.finish()


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_every_signed_number_is_read_back(value: int) -> None:
    assert reader(signed(value)).signed() == value


def test_numbers_have_the_bytes_that_the_encoding_says() -> None:
    assert [reader(data).unsigned() for data in (b"\x00", b"\x7f", b"\x80\x01", b"\xff\x7f")] == [0, 127, 128, 16383]
    assert [reader(data).signed() for data in (b"\x00", b"\x01", b"\x02", b"\x03")] == [0, -1, 1, -2]
    assert reader(b"\xff" * 9 + b"\x01").unsigned() == (1 << 64) - 1


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x00"])
def test_a_number_that_ends_early_or_is_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(BadPostcard):
        reader(data).unsigned()


def test_a_count_beyond_the_bytes_that_are_left_is_refused_before_anything_is_made() -> None:
    with pytest.raises(BadPostcard, match="do not fit"):
        reader(number(1 << 60) + b"abc").raw()
    with pytest.raises(BadPostcard, match="do not fit"):
        reader(number(4) + b"abc").count()


def test_text_flags_and_options_are_checked() -> None:
    assert reader(text("grün")).text() == "grün"
    assert reader(b"\x00").optional_raw() is None
    assert reader(b"\x01\x02ab").optional_raw() == b"ab"
    for data in (b"\x02", b""):
        with pytest.raises(BadPostcard):
            reader(data).flag()
    with pytest.raises(BadPostcard, match="UTF-8"):
        reader(b"\x01\xff").text()
    with pytest.raises(BadPostcard, match="follow the last field"):
        reader(b"\x00").finish()


@given(st.binary(max_size=64))
def test_hostile_bytes_are_read_or_refused(data: bytes) -> None:
    for read in ("unsigned", "signed", "raw", "text", "flag", "optional_raw", "count", "u8"):
        found = reader(data)
        with suppress(BadPostcard):
            getattr(found, read)()
        assert found.at <= len(data)
