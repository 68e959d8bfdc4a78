"""Rows on their way to Spark: small runs become large batches, and nothing changes its place."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark import rows as module
from topics.spark.places import Damage, Loss
from topics.spark.rows import TIME, Rows, merged


def rows(topic: str, count: int, first: int = 1, width: int = 3) -> Rows:
    seqs = range(first, first + count)
    texts = {"data": pa.array([f"{seq:0{width}d}" for seq in seqs]), "key": pa.array([None] * count, pa.string())}
    return Rows(topic, count, pa.array(seqs, pa.int64()), pa.array([seq * 1000 for seq in seqs], TIME), texts)


def flat(items: list[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if isinstance(item, Rows):
            columns = [item.seq, item.ts, item.texts["data"], item.texts["key"]]
            assert all(len(column) == item.count for column in columns)
            found += zip([item.topic] * item.count, *(column.to_pylist() for column in columns), strict=True)
        else:
            found.append(item)
    return found


runs = st.builds(rows, st.sampled_from("ab"), st.integers(1, 9), st.integers(1, 99), st.sampled_from([3, 60]))
others = st.sampled_from([Loss("a", 1, 2, "evicted"), Damage("a", 3, "f", 4)])


@given(items=st.lists(runs | others, max_size=12), size=st.integers(1, 2000))
def test_merged_rows_are_the_same_rows_in_the_same_order(items: list[Any], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MERGE_BYTES", size)
        found = list(merged(items))
    assert flat(found) == flat(items)
    for one, following in pairwise(found):
        if isinstance(one, Rows) and isinstance(following, Rows) and one.topic == following.topic:
            assert one.nbytes * 2 >= size  # its parts had offsets and bits of their own


def test_large_runs_pass_as_they_are() -> None:
    large = rows("a", 10_000, width=200)
    small = [rows("a", 5), rows("a", 5, 6)]
    first, second = merged([large, *small])
    assert first is large
    assert isinstance(second, Rows)
    assert second.count == 10
