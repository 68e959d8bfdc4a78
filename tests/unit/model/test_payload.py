from __future__ import annotations

import math
import sys
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.errors import StorageError
from topics.model.job import Job
from topics.model.payload import parse_json
from topics.model.record import Record

LONG = 5000


def record(raw: bytes, meta: bytes | None = None) -> Record:
    return Record(7, 1, None, None, None, meta, raw)


def job(raw: bytes, meta: bytes | None = None) -> Job:
    return Job(7, 1, None, raw, meta, "lease_a", 5, 1)


def whole(digits: str) -> int:
    """By another way than the code under test: a digit at a time."""
    value = 0
    for digit in digits:
        value = value * 10 + int(digit)
    return value


@pytest.mark.parametrize("make", [record, job])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"1e400", math.inf),
        (b"[-1e999]", [-math.inf]),
        (b'{"x":' + b"9" * LONG + b".5}", {"x": math.inf}),
        (b"1" * LONG, whole("1" * LONG)),
        (b"[-" + b"7" * LONG + b',{"a":"b"}]', [-whole("7" * LONG), {"a": "b"}]),
    ],
    ids=["float", "negative float", "digits before a point", "integer", "negative integer"],
)
def test_numbers_of_any_size_are_read(make: Any, text: bytes, value: Any) -> None:
    assert make(text).data == value
    assert make(b"1", b'{"m":' + text + b"}").meta == {"m": value}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_the_slow_way_reads_what_the_fast_one_reads(value: Any) -> None:
    text = msgspec.json.encode(value)
    assert parse_json(b"[1e400," + text + b"]") == [math.inf, msgspec.json.decode(text)]


@given(st.integers(1, 9), st.integers(0, 1600), st.booleans())
def test_integers_have_all_their_digits(first: int, more: int, negative: bool) -> None:
    digits = str(first) + "".join(str((first * at) % 10) for at in range(more))
    value = parse_json(b"[1e400," + (b"-" if negative else b"") + digits.encode() + b"]")[1]
    assert value == (-whole(digits) if negative else whole(digits))


def test_an_integer_as_long_as_a_record_may_be_takes_no_minutes() -> None:
    started = time.process_time()
    value = record(b"3" * (1 << 20)).data
    assert time.process_time() - started < 20
    assert value % 10**600 == whole("3" * 600)
    assert value.bit_length() == pytest.approx((1 << 20) * math.log2(10), rel=1e-5)


def test_the_digits_python_may_be_told_to_refuse_are_read_all_the_same() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert record(b"8" * 5000).data == whole("8" * 5000)
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("make", [record, job])
@pytest.mark.parametrize("text", [b"", b"{", b"nul", b"1 2", b'"\xff"', b"[1e400,NaN]", b"[1e400"])
def test_text_that_is_no_json_is_an_error_that_says_where_its_bytes_are(make: Any, text: bytes) -> None:
    with pytest.raises(StorageError, match=r"'data' of record 7 .*; \.raw has") as told:
        _ = make(text).data
    assert told.value.seq == 7
    with pytest.raises(StorageError, match=r"'meta' of record 7 .*; \.meta_raw has"):
        _ = make(b"1", text).meta


def test_parse_json_takes_text_and_bytes() -> None:
    assert parse_json("[1e400]") == parse_json(b"[1e400]") == [math.inf]
    with pytest.raises(ValueError, match="NaN"):
        parse_json("[1e400, NaN]")
