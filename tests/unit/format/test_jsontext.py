from __future__ import annotations

import json
from types import ModuleType

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.format.twins import assert_same, damaged, json_values, needs_kernel
from topics.format.jsontext import (
    BAD_ESCAPE,
    BAD_NUMBER,
    CONTROL,
    DEPTH_LIMIT,
    ENDS_EARLY,
    NOT_CLOSED,
    NOT_UTF8,
    TOO_DEEP,
    TRAILING,
    UNEXPECTED,
    BadJson,
    scan_json,
)


@given(json_values, st.booleans(), st.sampled_from([None, 0, 1, "\t", " \n\r"]))
def test_whitespace_goes_and_all_else_stays(
    ops: ModuleType, value: object, ensure_ascii: bool, indent: int | str | None
) -> None:
    compact = json.dumps(value, ensure_ascii=ensure_ascii, separators=(",", ":")).encode()
    spaced = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent).encode()
    assert ops.compact_json(compact, 124) is compact
    assert ops.compact_json(spaced, 124) == compact
    assert ops.compact_json(b" \n" + spaced + b"\t\r ", 124) == compact


@pytest.mark.parametrize(
    "text",
    [
        b"0",
        b"-0",
        b"1e5",
        b"1E+5",
        b"-1.50e-007",
        b"123456789012345678901234567890.000",
        b'"\\u00e9\\/\\b\\f\\n\\r\\t\\"\\\\"',
        b'"\\ud83d\\ude00"',
        b'"\\uD83D\\uDE00x"',
        b'"\\ud7ff\\ue000\\ud800\\udc00\\udbff\\udfff"',
        '"é€😀\x7f\u2028"'.encode(),
        b'{"a":1,"a":2}',
        b'{"":{}}',
        b"[]",
        b"[[],{},[{}]]",
        b"null",
        b"true",
        b"false",
    ],
)
def test_spelling_is_kept(ops: ModuleType, text: bytes) -> None:
    assert ops.compact_json(text, 124) is text


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        (b"", 0, ENDS_EARLY),
        (b" \n", 2, ENDS_EARLY),
        (b"[", 1, ENDS_EARLY),
        (b"[1", 2, ENDS_EARLY),
        (b"[1,", 3, ENDS_EARLY),
        (b'{"a"', 4, ENDS_EARLY),
        (b'{"a":', 5, ENDS_EARLY),
        (b'{"a":1,"b":2,', 13, ENDS_EARLY),
        (b"[1,]", 3, UNEXPECTED),
        (b"[,1]", 1, UNEXPECTED),
        (b"{,}", 1, UNEXPECTED),
        (b'{"a":1,}', 7, UNEXPECTED),
        (b'{"a" 1}', 5, UNEXPECTED),
        (b"{1:1}", 1, UNEXPECTED),
        (b"[1}", 2, UNEXPECTED),
        (b'{"a":1]', 6, UNEXPECTED),
        (b"]", 0, UNEXPECTED),
        (b"nul", 0, UNEXPECTED),
        (b"NaN", 0, UNEXPECTED),
        (b"[Infinity]", 1, UNEXPECTED),
        (b"-Infinity", 0, BAD_NUMBER),
        (b"[-]", 1, BAD_NUMBER),
        (b"+1", 0, UNEXPECTED),
        (b".5", 0, UNEXPECTED),
        (b"01", 1, TRAILING),
        (b"[01]", 2, UNEXPECTED),
        (b"1.", 1, TRAILING),
        (b"1e", 1, TRAILING),
        (b"1e+", 1, TRAILING),
        (b"[1.e5]", 2, UNEXPECTED),
        (b"nullx", 4, TRAILING),
        (b"1 2", 2, TRAILING),
        (b"{} []", 3, TRAILING),
        (b'"abc', 0, NOT_CLOSED),
        (b'["a', 1, NOT_CLOSED),
        (b'"a\nb"', 2, CONTROL),
        (b'"a\x00"', 2, CONTROL),
        (b'"\\x"', 1, BAD_ESCAPE),
        (b'"\\u12g4"', 1, BAD_ESCAPE),
        (b'"\\ud800"', 1, BAD_ESCAPE),
        (b'"\\udc00"', 1, BAD_ESCAPE),
        (b'"\\ud800\\u0041"', 1, BAD_ESCAPE),
        (b'"\\ud83d\\ude0', 1, BAD_ESCAPE),
        (b'"\\udc00\\udc00"', 1, BAD_ESCAPE),
        (b'"\\udfff\\udfff"', 1, BAD_ESCAPE),
        (b'"\\ud800\\udbff"', 1, BAD_ESCAPE),
        (b'"\\ud800\\ue000"', 1, BAD_ESCAPE),
        (b'"\\', 1, BAD_ESCAPE),
        (b"'a'", 0, UNEXPECTED),
        (b"/**/1", 0, UNEXPECTED),
        (b"\xef\xbb\xbf1", 0, UNEXPECTED),
        (b'"\xff"', 1, NOT_UTF8),
        (b'"\xc3', 1, NOT_UTF8),
        (b'"\xed\xa0\x80"', 1, NOT_UTF8),
        (b'"\xc0\x80"', 1, NOT_UTF8),
        (b'"\xf4\x90\x80\x80"', 1, NOT_UTF8),
        (b'[1,2,"0123456789012345678901234567890123456789\x80"]', 46, NOT_UTF8),
    ],
)
def test_bad_text_is_refused_where_it_goes_wrong(ops: ModuleType, text: bytes, position: int, why: str) -> None:
    with pytest.raises(BadJson) as caught:
        ops.compact_json(text, 124)
    assert (caught.value.position, caught.value.why) == (position, why)


def test_bytes_behind_the_text_are_not_looked_at(ops: ModuleType) -> None:
    for behind, why in ((b'"\xc3\xa9"', NOT_UTF8), (b'"ab', NOT_CLOSED), (b"[12", ENDS_EARLY)):
        with pytest.raises(BadJson, match=why):
            ops.compact_json(memoryview(behind)[:2], 124)
    for cut, why in ((b"[[1]]", ENDS_EARLY), (b'{"a":{}}', ENDS_EARLY), (b'{"a":[1]},1]', TRAILING)):
        with pytest.raises(BadJson, match=why):
            ops.compact_json(memoryview(cut)[:-1], 124)
    assert ops.compact_json(memoryview(b"12")[:1], 124) == b"1"
    assert ops.compact_json(memoryview(b"1.5")[:1], 124) == b"1"
    with pytest.raises(BadJson, match=UNEXPECTED):
        ops.compact_json(memoryview(b"true")[:3], 124)


def test_depth_is_counted_in_brackets(ops: ModuleType) -> None:
    assert ops.compact_json(b"1", 0) == b"1"
    with pytest.raises(BadJson, match=TOO_DEEP):
        ops.compact_json(b"[]", 0)
    assert ops.compact_json(b"[]", 1) == b"[]"
    for depth in (1, 63, 64, 65, 124, 128, 1023, DEPTH_LIMIT):
        nested = b"[" * depth + b"]" * depth
        assert ops.compact_json(nested, depth) == nested
        mixed = b'{"a":[' * (depth // 2) + b"1" + b"]}" * (depth // 2)
        assert ops.compact_json(mixed, depth) == mixed
        if depth > 1:
            with pytest.raises(BadJson, match=TOO_DEEP) as caught:
                ops.compact_json(nested, depth - 1)
            assert caught.value.position == depth - 1


def test_depth_beyond_the_stack_is_refused(ops: ModuleType) -> None:
    for depth_max in (-1, DEPTH_LIMIT + 1, 1 << 70):
        with pytest.raises(ValueError, match="depth_max"):
            ops.compact_json(b"1", depth_max)


def test_siblings_do_not_add_to_the_depth(ops: ModuleType) -> None:
    text = b"[" + b",".join([b"[[]]", b'{"a":{}}'] * 200) + b"]"
    assert ops.compact_json(text, 3) == text


def test_hostile_text_takes_time_in_proportion(ops: ModuleType) -> None:
    for text in (b"[" * 500_000, b'{"a":' * 200_000, b'"' + b"\\" * 500_000, b"1" * 500_000 + b"x", b'"' * 500_001):
        with pytest.raises(BadJson):
            ops.compact_json(text, 124)
    spaces = b"[" + b" " * 500_000 + b"1" + b"\n" * 500_000 + b"]"
    assert ops.compact_json(spaces, 124) == b"[1]"


json_like = st.text('{}[]",:\\ \n1-.e0tfnu d8"é\x00', max_size=40).map(lambda text: text.encode())
documents = json_values.map(msgspec.json.encode) | json_values.map(lambda value: json.dumps(value, indent=1).encode())


@needs_kernel
@given(damaged(documents) | json_like | st.binary(max_size=40), st.sampled_from([0, 1, 2, 3, 124]))
@example(b"[" * 70 + b"]" * 70, 124)
def test_twins_judge_every_text_alike(text: bytes, depth_max: int) -> None:
    assert_same("compact_json", text, depth_max)


@given(damaged(documents))
def test_accepted_text_means_the_same_to_other_readers(ops: ModuleType, text: bytes) -> None:
    try:
        compact = ops.compact_json(text, 124)
    except BadJson:
        return
    # `repr`, because equal dicts of NaN-free values print alike, and 1 == 1.0 == True must not hide a change.
    assert repr(json.loads(compact)) == repr(json.loads(text))
    assert b"\n" not in compact


@given(json_values)
def test_keys_of_the_outermost_object_are_counted(value: object) -> None:
    expected = len(value) if isinstance(value, dict) else 0
    assert scan_json(json.dumps(value, indent=1).encode(), 124, True)[1] == expected


plain_texts = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters='"\\'), max_size=150)
plain_values = st.recursive(
    plain_texts | st.integers(-(10**9), 10**9),
    lambda children: st.lists(children, max_size=6) | st.dictionaries(plain_texts, children, max_size=6),
    max_leaves=30,
)


@needs_kernel
@given(damaged(plain_values.map(lambda value: json.dumps(value, separators=(",", ":")).encode())))
def test_texts_without_escapes_are_judged_alike_by_kernel_and_reference(text: bytes) -> None:
    assert_same("compact_json", text, 124)


TOKENS = ["{", "}", "[", "]", ",", ":", " ", '"a"', '""', "0", "-", "12", ".", "3", "e", "E+", "true", "false", "null"]
soups = st.lists(st.sampled_from([*TOKENS, '"a":', '"b":1', ",1", "[]", "{}"]), max_size=14)


@needs_kernel
@given(soups.map("".join), st.sampled_from(["[]", "{}", "[}", "{]"]), st.sampled_from([0, 1, 2, 124]))
def test_brackets_around_any_tokens_are_judged_alike_by_kernel_and_reference(
    soup: str, brackets: str, depth_max: int
) -> None:
    assert_same("compact_json", f"{brackets[0]}{soup}{brackets[1]}".encode(), depth_max)


@needs_kernel
@pytest.mark.parametrize("size", [62, 63, 64, 65, 126, 127, 128, 129, 1022, 1023, 1024, 1025, 1026])
def test_a_string_that_ends_around_a_border_of_the_quote_map_is_judged_alike(size: int) -> None:
    text = b'{"a":"' + b"x" * (size - 8) + b'"}'
    assert len(text) == size
    for cut in range(max(size - 70, 0), size + 1):
        assert_same("compact_json", text[:cut], 124)
    for byte in (b'"', b"\\", b"\n", b"\x80", b" "):
        assert_same("compact_json", text[:-1] + byte, 124)
        assert_same("compact_json", text[:-3] + byte + text[-2:], 124)
        assert_same("compact_json", text + byte, 124)
