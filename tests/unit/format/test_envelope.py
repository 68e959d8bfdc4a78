from __future__ import annotations

from types import ModuleType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.twins import assert_same, damaged, json_values, names, needs_kernel
from topics.format.envelope import encode_envelope

texts = json_values.map(msgspec.json.encode)
envelopes = st.builds(encode_envelope, texts, st.none() | texts, names)


@given(data=texts, meta=st.none() | texts, key=names)
def test_splitting_gives_back_what_was_joined(
    ops: ModuleType, data: bytes, meta: bytes | None, key: str | None
) -> None:
    assert ops.split_envelope(encode_envelope(data, meta, key)) == (key, meta, data)


@given(data=texts, meta=texts, key=names.filter(lambda key: key is not None), order=st.permutations("kmd"))
def test_fields_are_taken_in_any_order(ops: ModuleType, data: bytes, meta: bytes, key: str, order: list[str]) -> None:
    parts = {"k": msgspec.json.encode(key), "m": meta, "d": data}
    body = b"{" + b",".join(b'"%b":%b' % (name.encode(), parts[name]) for name in order) + b"}"
    assert ops.split_envelope(body) == (key, meta, data)


def test_data_that_looks_like_an_envelope_stays_data(ops: ModuleType) -> None:
    for data in (
        b'{"d":1,"m":2}',
        b'[{"a":0,"k":"x"}]',
        b'",\\"m\\":"',
        b'"a,\\"m\\":1"',
        b'{"a":1,"m":{"k":1,"d":2}}',
    ):
        assert ops.split_envelope(encode_envelope(data, None, None)) == (None, None, data)
        assert ops.split_envelope(encode_envelope(data, data, "k")) == ("k", data, data)
        assert ops.split_envelope(b'{"d":' + data + b',"m":' + data + b"}") == (None, data, data)


@pytest.mark.parametrize("size", [0, 1, 10, 4090, 4091, 4092, 4096, 8192, 8193])
def test_field_after_data_is_found_wherever_it_lies(ops: ModuleType, size: int) -> None:
    data = b'"' + b"x" * size + b'"'
    assert ops.split_envelope(b'{"d":' + data + b',"m":1}') == (None, b"1", data)
    assert ops.split_envelope(b'{"d":' + data + b',"k":"z"}') == ("z", None, data)


def test_field_after_data_is_found_however_much_is_before_and_behind_it(ops: ModuleType) -> None:
    for before in range(40):
        for behind in range(40):
            data, last = b'"' + b"x" * before + b'"', b'"' + b"y" * behind + b'"'
            assert ops.split_envelope(b'{"d":' + data + b',"m":' + last + b"}") == (None, last, data)
            assert ops.split_envelope(b'{"d":' + data + b',"k":' + last + b"}") == ("y" * behind, None, data)


def test_other_fields_of_one_letter_end_no_data(ops: ModuleType) -> None:
    for name in b"dijklmno":
        data = b'{"a":"some text in front","%c":1,"b":"and some behind it"}' % name
        assert ops.split_envelope(b'{"d":' + data + b"}") == (None, None, data)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"}",
        b"{}",
        b"[1]",
        b'{"d":}',
        b'{"d" :1}',
        b'{"d":1,"d":2,"m":3}',
        b'{"m":1}',
        b'{"k":"a"}',
        b'{"k":1,"d":2}',
        b'{"k":"\xff","d":2}',
        b'{"k":"a"b","d":2}',
        b'{"k":"\\ud800","d":2}',
        b'{"m":,"d":1}',
        b'{"m":[1,"d":1}',
        b'{"m":1],"d":1}',
        b'{"m":"a,"d":1}',
        b'{"m":1,}',
        b'{"x":1,"d":1}',
        b'{"m":1 "d":1}',
        b'{"m":"\\}',
    ],
)
def test_what_is_no_envelope_is_refused(ops: ModuleType, body: bytes) -> None:
    with pytest.raises(ValueError):
        ops.split_envelope(body)


@needs_kernel
@given(damaged(envelopes) | st.binary(max_size=60) | st.text('{}[]",:\\dkm1 ', max_size=30).map(str.encode))
def test_twins_split_alike(body: bytes) -> None:
    assert_same("split_envelope", body)


def test_any_buffer_can_be_split(ops: ModuleType) -> None:
    assert ops.split_envelope(bytearray(b'{"d":1}')) == (None, None, b"1")
    assert ops.split_envelope(memoryview(b'x{"k":"a","d":1}')[1:]) == ("a", None, b"1")
