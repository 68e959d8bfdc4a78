"""Inputs for the batch functions, valid and broken, and the comparison of reference and kernel."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
from hypothesis import strategies as st

from topics.format.frame import DURABLE, MORE, Kind, encode_frame
from topics.format.marks import FileMark, SyncMark

with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    from topics.format import ops

needs_kernel = pytest.mark.skipif(not ops.KERNEL, reason="the kernel was not built here")

TOPIC = 7
NOW = 1_700_000_000_000


def outcome(module: Any, name: str, *args: Any, **options: Any) -> tuple[Any, ...]:
    """What a call returns or raises, and what it made of its arguments."""
    args = copy.deepcopy(args)
    try:
        result = getattr(module, name)(*args, **options)
    except Exception as error:
        return "raises", type(error), str(error), args
    slots = getattr(type(result), "__slots__", None)
    if slots and not isinstance(result, tuple):
        result = {slot: getattr(result, slot) for slot in slots}
    return "returns", result, args


def assert_same(name: str, *args: Any, **options: Any) -> tuple[Any, ...]:
    """Both twins do the same; that is what they did."""
    expected = outcome(ops.reference, name, *args, **options)
    assert outcome(ops.kernel, name, *args, **options) == expected
    return expected


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    lambda children: (
        st.lists(children, max_size=5)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), children, max_size=5)
    ),
    max_leaves=12,
)

names = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

records = st.fixed_dictionaries(
    {"data": json_values},
    optional={"tag": names, "node": names, "key": names, "meta": json_values},
)

batches = st.lists(records, min_size=1, max_size=8)


@st.composite
def wal_bytes(draw: st.DrawFn) -> bytes:
    """Submissions as a WAL file holds them, maybe with an unfinished one or zeros at the end."""
    parts: list[bytes] = [encode_frame(Kind.CHECKPOINT_MARK, 0, FileMark(0, 3, 0, 0).encode(), flags=DURABLE)]
    next_seq = {1: 1, 2: 100}
    for _ in range(draw(st.integers(0, 5))):
        topic_id = draw(st.sampled_from([1, 2]))
        more_last = draw(st.sampled_from([False, False, False, True]))
        if draw(st.booleans()):
            prepared = ops.reference.prepare(draw(batches))
            first_seq = next_seq[topic_id] + draw(st.sampled_from([0, 0, 0, 5]))
            ops.reference.stamp(
                prepared.frames,
                prepared.entries,
                prepared.count,
                topic_id,
                first_seq,
                NOW,
                draw(st.booleans()),
                more_last,
            )
            next_seq[topic_id] = first_seq + prepared.count
            parts.append(bytes(prepared.frames))
        else:
            kind = draw(st.sampled_from([Kind.HEAD_WATERMARK, Kind.DEDUPE, Kind.CHECKPOINT_MARK]))
            body = SyncMark(0, 3, sum(map(len, parts))).encode() if kind == Kind.CHECKPOINT_MARK else b"12345678"
            parts.append(encode_frame(kind, topic_id, body, ts=NOW, flags=MORE if more_last else 0))
    parts.append(bytes(draw(st.sampled_from([0, 0, 1, 3, 4, 46, 100]))))
    return b"".join(parts)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes with a few of them changed, cut out or put in."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["flip", "set", "cut", "insert", "repeat"])):
            case "flip":
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "set":
                data[at] = draw(st.sampled_from([0, 1, 0x22, 0x2C, 0x5C, 0x7B, 0x7D, 0x80, 0xFF]))
            case "cut":
                del data[at : at + draw(st.integers(1, 20))]
            case "insert":
                data[at:at] = draw(st.binary(max_size=8))
            case "repeat":
                data[at:at] = data[at : at + 60]
    return bytes(data)
