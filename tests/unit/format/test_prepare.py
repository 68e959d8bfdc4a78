from __future__ import annotations

import dataclasses
import math
import re
import struct
from itertools import accumulate
from types import MappingProxyType, ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.twins import NOW, TOPIC, assert_same, batches, damaged, json_values, needs_kernel, outcome
from topics.format.envelope import split_envelope
from topics.format.frame import DURABLE, MORE, NODE, OVERHEAD, TAG, decode_frame
from topics.format.segment import ENTRY, ENTRY_SIZE
from topics.format.walscan import OFFSETS_END
from topics.model import limits
from topics.model.errors import BatchTooLarge, InvalidRecord, RecordTooLarge
from topics.model.record import Record


class Sent(msgspec.Struct):
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    tag: str | msgspec.UnsetType | None = msgspec.UNSET
    node: str | None = None
    key: str | None = None
    meta: msgspec.Raw | None = None


def bodies(prepared: Any) -> list[bytes]:
    found = []
    for offset, length, _ts, _flags, _accounted in ENTRY.iter_unpack(prepared.entries):
        header = prepared.frames[offset : offset + 38]
        names = int.from_bytes(header[30:32], "little") + int.from_bytes(header[32:34], "little")
        found.append(bytes(prepared.frames[offset + 38 + names : offset + length - 8]))
    return found


@given(batches)
def test_prepared_and_stamped_records_can_be_read_back(ops: ModuleType, batch: list[dict[str, Any]]) -> None:
    prepared = ops.prepare(batch)
    ops.stamp(prepared.frames, prepared.entries, prepared.count, TOPIC, 5, NOW, True, False)
    records = ops.make_records(prepared.frames, prepared.entries, 0, len(batch), 5, 0, 0, None, Record)
    for i, (record, sent) in enumerate(zip(records, batch, strict=True)):
        assert (record.seq, record.ts) == (5 + i, NOW)
        assert (record.tag, record.node, record.key) == (sent.get("tag"), sent.get("node"), sent.get("key"))
        assert msgspec.json.encode(record.data) == msgspec.json.encode(msgspec.json.decode(record.raw))
        assert record.raw == msgspec.json.encode(sent["data"])
        assert record.meta_raw == (None if sent.get("meta") is None else msgspec.json.encode(sent["meta"]))
    assert prepared.count == len(batch)
    assert prepared.has_tags == any(sent.get("tag") is not None for sent in batch)
    assert prepared.accounted == sum(len(r.raw) + len(r.meta_raw or b"") for r in records)


@given(batches, st.booleans(), st.booleans())
def test_stamped_frames_are_one_submission(
    ops: ModuleType, batch: list[dict[str, Any]], durable: bool, more_last: bool
) -> None:
    prepared = ops.prepare(batch)
    ops.stamp(prepared.frames, prepared.entries, prepared.count, TOPIC, 5, NOW, durable, more_last)
    at = 0
    for i in range(prepared.count):
        offset, length, ts, flags, accounted = ENTRY.unpack_from(prepared.entries, i * ENTRY_SIZE)
        frame = decode_frame(prepared.frames, at, len(prepared.frames))
        assert (frame.offset, frame.end, frame.ts) == (offset, offset + length, ts) == (at, at + length, NOW)
        assert (frame.seq, frame.topic_id, frame.kind) == (5 + i, TOPIC, 1)
        assert frame.flags & (TAG | NODE) == flags
        assert bool(frame.flags & DURABLE) == durable
        assert bool(frame.flags & MORE) == (more_last or i < prepared.count - 1)
        _key, meta, data = split_envelope(frame.body)
        assert int.from_bytes(accounted, "little") == len(data) + len(meta or b"")
        at = frame.end
    assert at == len(prepared.frames)


@given(st.lists(batches, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_each_request_of_a_shared_batch_is_a_submission(
    ops: ModuleType, requests: list[list[dict[str, Any]]], durable: bool, more_last: bool
) -> None:
    prepared = ops.prepare([record for request in requests for record in request])
    counts = list(accumulate(map(len, requests)))
    ends = struct.pack(f"<{len(counts)}I", *counts)
    ops.stamp(prepared.frames, prepared.entries, prepared.count, TOPIC, 5, NOW, durable, more_last, ends)
    at = 0
    for i in range(prepared.count):
        frame = decode_frame(prepared.frames, at, len(prepared.frames))
        is_last = i + 1 == prepared.count
        assert bool(frame.flags & MORE) == (more_last if is_last else i + 1 not in counts)
        at = frame.end
    assert at == len(prepared.frames)


def test_stamping_again_replaces_the_first_stamp(ops: ModuleType) -> None:
    once, twice = ops.prepare([{"data": 1}, {"data": 2}]), ops.prepare([{"data": 1}, {"data": 2}])
    ops.stamp(twice.frames, twice.entries, 2, 1, 1, 1, True, True)
    for prepared in (once, twice):
        ops.stamp(prepared.frames, prepared.entries, 2, TOPIC, 9, NOW, False, False)
    assert (once.frames, once.entries) == (twice.frames, twice.entries)


def test_unstamped_frames_leave_the_open_fields_zero(ops: ModuleType) -> None:
    prepared = ops.prepare([{"data": b'{"n":1}', "tag": "t"}])
    assert prepared.frames[6:30] == bytes(24)
    assert prepared.frames[-8:] == bytes(8)
    assert prepared.frames[5] == TAG


def test_empty_batch_prepares_to_nothing(ops: ModuleType) -> None:
    prepared = ops.prepare([])
    assert (prepared.count, prepared.accounted, len(prepared.frames), len(prepared.entries)) == (0, 0, 0, 0)
    ops.stamp(prepared.frames, prepared.entries, 0, 1, 1, 1, True, False)


@pytest.mark.parametrize("text_type", [bytes, bytearray, memoryview, msgspec.Raw])
def test_bytes_are_json_text(ops: ModuleType, text_type: Any) -> None:
    prepared = ops.prepare([{"data": text_type(b'{"a": 1.0}'), "meta": text_type(b" [ 1 ] ")}])
    assert bodies(prepared) == [b'{"m":[1],"d":{"a":1.0}}']
    assert prepared.accounted == 3 + 9


def test_str_is_a_json_string(ops: ModuleType) -> None:
    assert bodies(ops.prepare([{"data": '{"a":1}'}])) == [b'{"d":"{\\"a\\":1}"}']


def test_none_is_null_for_data_and_absence_elsewhere(ops: ModuleType) -> None:
    record = {"data": None, "tag": None, "node": None, "key": None, "meta": None}
    assert bodies(ops.prepare([record])) == [b'{"d":null}']
    for null in (b"null", b" null\n", msgspec.Raw(b"null")):
        prepared = ops.prepare([{"data": 1, "meta": null}])
        assert bodies(prepared) == [b'{"d":1}']
        assert prepared.accounted == 1


def test_empty_names_are_not_absent(ops: ModuleType) -> None:
    prepared = ops.prepare([{"data": 1, "tag": "", "node": "", "key": ""}])
    assert bodies(prepared) == [b'{"k":"","d":1}']
    assert prepared.frames[5] == TAG | NODE
    assert prepared.has_tags


def test_default_node_fills_in_only_where_none_is_given(ops: ModuleType) -> None:
    prepared = ops.prepare([{"data": 1}, {"data": 1, "node": "b"}, {"data": 1, "node": None}], default_node="a")
    ops.stamp(prepared.frames, prepared.entries, 3, 1, 1, 1, False, False)
    records = ops.make_records(prepared.frames, prepared.entries, 0, 3, 1, 0, 0, None, Record)
    assert [record.node for record in records] == ["a", "b", "a"]


def test_mappings_and_objects_are_records_too(ops: ModuleType) -> None:
    @dataclasses.dataclass
    class Plain:
        data: Any

    records = [
        {"data": b"1"},
        MappingProxyType({"data": b"1"}),
        Sent(msgspec.Raw(b"1")),
        Plain(b"1"),
        {"data": b"1", "tag": msgspec.UNSET},
    ]
    assert bodies(ops.prepare(records)) == [b'{"d":1}'] * 5
    assert bodies(ops.prepare(tuple(records[:2]))) == [b'{"d":1}'] * 2


def test_names_that_are_equal_but_other_objects_are_the_same_names(ops: ModuleType) -> None:
    fields = {"data": b"1", "tag": "t", "node": "n", "key": "k", "meta": b"2"}
    # Made at run time, so that none of them is the object that a literal of this name is.
    other = {"".join(list(name)): value for name, value in fields.items()}
    half = {name if at % 2 else "".join(list(name)): value for at, (name, value) in enumerate(fields.items())}
    prepared = ops.prepare([fields, other, half, {"".join(list("data")): b"1"}])
    size = len(prepared.frames) - len(ops.prepare([{"data": b"1"}]).frames)
    assert prepared.frames[: size // 3] * 3 == prepared.frames[:size]
    assert bodies(prepared)[3] == b'{"d":1}'


def test_a_field_of_one_record_is_not_taken_for_the_next(ops: ModuleType) -> None:
    full = {"data": b"1", "tag": "t", "node": "n", "key": "k", "meta": b"2"}
    prepared = ops.prepare([full, {"data": b"3"}, full, {"".join(list("data")): b"3"}])
    assert bodies(prepared)[1] == bodies(prepared)[3] == b'{"d":3}'
    alone = ops.prepare([{"data": b"3"}]).frames
    assert prepared.frames[-len(alone) :] == alone


def test_checked_text_is_taken_as_it_is(ops: ModuleType) -> None:
    assert bodies(ops.prepare([{"data": b"[1]"}], checked=True)) == [b'{"d":[1]}']
    with pytest.raises(InvalidRecord):
        ops.prepare([{"data": msgspec.Raw(b"[1]"), "meta": b"nope"}], checked=True)


def test_unknown_field_is_named(ops: ModuleType) -> None:
    with pytest.raises(InvalidRecord, match=r"record 1: unknown field 'tga'") as caught:
        ops.prepare([{"data": 1}, {"data": 1, "tga": "x"}])
    assert caught.value.index == 1
    assert ops.prepare([{"data": 1, "tga": "x"}], strict_fields=False).count == 1


class Opaque:
    def __repr__(self) -> str:
        return "Opaque()"


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"tag": "x"},
        {"data": msgspec.UNSET},
        Sent(),
        Opaque(),
        5,
        {"data": 1, "tag": 5},
        {"data": 1, "tag": b"x"},
        {"data": 1, "tag": "\ud800"},
        {"data": 1, "tag": "x" * 257},
        {"data": 1, "tag": "é" * 129},
        {"data": 1, "node": "x" * 129},
        {"data": 1, "node": 1},
        {"data": 1, "key": "x" * 513},
        {"data": 1, "key": ["a"]},
        {"data": 1, "meta": {str(i): 0 for i in range(65)}},
        {"data": 1, "meta": "x" * 16_383},
        {"data": 1, "meta": b"{"},
        {"data": 1, "meta": math.nan},
        {"data": b""},
        {"data": b"{'a':1}"},
        {"data": b"\xff"},
        {"data": msgspec.Raw(b"[1,]")},
        {"data": math.nan},
        {"data": [None, {"a": (1.0, -math.inf)}]},
        {"data": {1, math.nan}},
        {"data": Opaque()},
        {"data": {"a": "\ud800"}},
        {"data": {None: 1}},
        {"data": [msgspec.Raw(b"[1")]},
        {"data": b"[" * 125 + b"]" * 125},
        {"data": 1, 5: 6},
    ],
    ids=lambda record: re.sub(r" object at 0x[0-9a-f]+", "", repr(record)),
)
def test_record_that_breaks_a_rule_is_refused_with_its_index(ops: ModuleType, record: Any) -> None:
    with pytest.raises(InvalidRecord) as caught:
        ops.prepare([{"data": 1}, record, {"data": 2}])
    assert caught.value.index == 1
    assert outcome(ops, "prepare", [record])[:3] == outcome_of_reference(record)


def outcome_of_reference(record: Any) -> tuple[Any, ...]:
    from topics.format import batchops

    return outcome(batchops, "prepare", [record])[:3]


def test_values_at_their_limits_are_taken(ops: ModuleType) -> None:
    record = {
        "data": b"[" * 124 + b"]" * 124,
        "tag": "é" * 128,
        "node": "x" * 128,
        "key": '"' * 512,
        "meta": {str(i): 0 for i in range(64)},
    }
    prepared = ops.prepare([record, {"data": 1, "meta": "x" * 16_382}])
    assert prepared.count == 2
    assert split_envelope(bodies(prepared)[0])[0] == '"' * 512


def test_record_beyond_a_mebibyte_is_too_large(ops: ModuleType) -> None:
    fits = b'"' + b"x" * (limits.RECORD_BYTES - 2) + b'"'
    assert ops.prepare([{"data": fits}]).accounted == limits.RECORD_BYTES
    assert ops.prepare([{"data": b"\n" * 10 + fits}]).accounted == limits.RECORD_BYTES
    with pytest.raises(RecordTooLarge) as caught:
        ops.prepare([{"data": 1}, {"data": fits, "meta": 1}])
    assert caught.value.index == 1
    assert caught.value.code == "record_too_large"


def test_batch_that_would_outgrow_a_wal_file_is_refused(ops: ModuleType) -> None:
    size = len(ops.prepare([{"data": 1}]).frames)
    assert ops.prepare([{"data": 1}] * 3, frames_max=3 * size).count == 3
    with pytest.raises(BatchTooLarge, match="append it in parts") as caught:
        ops.prepare([{"data": 1}] * 3, frames_max=3 * size - 1)
    assert caught.value.max == 3 * size - 1


def test_largest_batch_leaves_room_for_the_other_frames_of_its_file() -> None:
    small = 4 * (OVERHEAD + limits.IDEMPOTENCY_KEY_BYTES + 64)  # mark, evidence, idempotency key, eviction
    assert limits.APPEND_BYTES + 4 + limits.FRAME_BYTES + small <= OFFSETS_END


@needs_kernel
@given(batches, st.integers(0, 2000))
def test_twins_agree_on_when_a_batch_is_too_large(batch: list[Any], frames_max: int) -> None:
    assert_same("prepare", batch, frames_max=frames_max)


@pytest.mark.parametrize("record", [7, b'{"data":1}', "data", None, ["data"]])
def test_record_that_is_no_mapping_is_told_what_one_is(ops: ModuleType, record: Any) -> None:
    with pytest.raises(InvalidRecord, match=rf"record 1: it is of type {type(record).__name__}; a record is a mapping"):
        ops.prepare([{"data": 1}, record])


def test_nan_is_found_only_where_it_is(ops: ModuleType) -> None:
    fine = [None, {"a": [1.5, None]}, msgspec.Raw(b"null"), {"b": msgspec.Raw(b"[null]")}, "null"]
    assert ops.prepare([{"data": value} for value in fine]).count == len(fine)


def test_value_that_holds_itself_is_refused(ops: ModuleType) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidRecord, match="nested too deep or holds itself"):
        ops.prepare([{"data": value}])


def test_deep_value_is_refused_like_deep_text(ops: ModuleType) -> None:
    value: list[Any] = []
    for _ in range(124):
        value = [value]
    with pytest.raises(InvalidRecord, match="nested too deep"):
        ops.prepare([{"data": value}])


def test_key_needs_its_escapes(ops: ModuleType) -> None:
    for key in ('"', "\\", "\n", "\x00", "é", "😀", 'a"b\\c\x1f', "/", "\x7f"):
        (body,) = bodies(ops.prepare([{"data": 1, "key": key}]))
        assert split_envelope(body) == (key, None, b"1")
        assert msgspec.json.decode(body) == {"k": key, "d": 1}


wild_values = st.one_of(
    json_values,
    damaged(json_values.map(msgspec.json.encode)),
    st.floats(),
    st.just(Opaque()),
    st.lists(st.floats() | st.none(), max_size=3),
    st.just(msgspec.UNSET),
)
wild_names = st.one_of(
    st.none(), st.text(max_size=5), st.sampled_from(["x" * 128, "x" * 129, "x" * 600, "é" * 300]), st.just(3)
)
wild_records = st.fixed_dictionaries(
    {},
    optional={
        "data": wild_values,
        "tag": wild_names,
        "node": wild_names,
        "key": wild_names,
        "meta": wild_values,
        "more": st.just(1),
    },
)


@needs_kernel
@given(st.lists(wild_records, max_size=3), wild_names, st.booleans())
def test_twins_prepare_alike(batch: list[Any], default_node: Any, strict_fields: bool) -> None:
    assert_prepared_alike(batch, default_node=default_node, strict_fields=strict_fields)


@needs_kernel
@given(batches)
def test_twins_prepare_good_batches_alike(batch: list[Any]) -> None:
    assert_prepared_alike(batch)


def assert_prepared_alike(batch: list[Any], **options: Any) -> None:
    from topics.format import ops

    # The arguments are compared by identity: a NaN in them equals nothing.
    expected = outcome(ops.reference, "prepare", batch, **options)[:-1]
    assert outcome(ops.kernel, "prepare", batch, **options)[:-1] == expected


def test_stamp_refuses_entries_that_point_elsewhere(ops: ModuleType) -> None:
    prepared = ops.prepare([{"data": 1}, {"data": 2}])
    before = bytes(prepared.frames)
    for offset, length in ((1, 53), (0, 45), (0xFFFFFFFF, 53), (53, 0xFFFFFFFF)):
        entries = bytearray(prepared.entries[:20] + ENTRY.pack(offset, length, 0, 0, bytes(3)))
        if offset + length <= len(before) and length >= 46:
            continue
        with pytest.raises(ValueError, match="entry 1"):
            ops.stamp(prepared.frames, entries, 2, 1, 1, 1, True, False)
    assert prepared.frames == before
    with pytest.raises(ValueError, match="outside"):
        ops.stamp(prepared.frames, prepared.entries, 3, 1, 1, 1, True, False)


def test_stamp_knows_the_last_seq(ops: ModuleType) -> None:
    prepared = ops.prepare([{"data": 1}, {"data": 2}])
    ops.stamp(prepared.frames, prepared.entries, 2, 1, (1 << 64) - 2, 1, True, False)
    with pytest.raises(OverflowError):
        ops.stamp(prepared.frames, prepared.entries, 2, 1, (1 << 64) - 1, 1, True, False)


@needs_kernel
@given(batches, st.integers(0, 1 << 40), st.integers(1, 1 << 60), st.booleans(), st.booleans())
def test_twins_stamp_alike(batch: list[Any], topic_id: int, seq: int, durable: bool, more_last: bool) -> None:
    from topics.format import ops

    prepared = ops.reference.prepare(batch)
    count = prepared.count
    assert_same("stamp", prepared.frames, prepared.entries, count, topic_id, seq, NOW, durable, more_last)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ([1, b"x"], r"data\[1\]"),
        ({"a": {"b": bytearray(b"x")}}, r"data\['a'\]\['b'\]"),
        ((None, [memoryview(b"x")]), r"data\[1\]\[0\]"),
        ({"a": [{b"k": 1}]}, r"data\['a'\]\[0\], as a key"),
        ({"a": {"b": 1, "c": {b"x"}}}, r"data\['a'\]\['c'\]\[0\]"),
    ],
)
def test_bytes_inside_a_value_are_refused_with_their_place(ops: ModuleType, value: Any, place: str) -> None:
    with pytest.raises(InvalidRecord, match=f"record 1: 'data' holds bytes at {place}, which JSON cannot say"):
        ops.prepare([{"data": {"a": [1, 2.5, None, True, "x"]}}, {"data": value}])
    with pytest.raises(InvalidRecord, match="record 0: 'meta' holds bytes at meta"):
        ops.prepare([{"data": 1, "meta": {"m": value}}])


def test_other_types_become_their_nearest_json(ops: ModuleType) -> None:
    value = {1: (1, 2), "s": frozenset({3}), "raw": msgspec.Raw(b"[4]"), "deep": [{"a": {2.5: None}}]}
    assert bodies(ops.prepare([{"data": value}])) == [
        b'{"d":{"1":[1,2],"s":[3],"raw":[4],"deep":[{"a":{"2.5":null}}]}}'
    ]
